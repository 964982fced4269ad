"""GEMMs: calls of `ws_product` or, for medium sizes, `ws_middle_product` with operand accessors and an epilogue."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.backends.gpu.grids.gemm_medium import is_contiguous_along_k
from wholestep.compiler.backends.gpu.kernel_schedule import Form, GpuSchedule
from wholestep.compiler.backends.gpu.render.elementwise import over_elements
from wholestep.compiler.backends.gpu.render.language import LOCAL, STORED, widen_operand
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.strides import is_aligned_in, is_multiple, stride_of
from wholestep.compiler.ir.types import DType, float32
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Instr, Level, Load

DEPTH = 16  # k elements per thread group and iteration: an argument of `ws_product` in native/product.h


def render_dot(w: GpuWriter) -> None:
    dot = w.kernel.body
    assert isinstance(dot, Dot)
    (level,) = dot.levels
    acc = next(i for i in level.body if i.op == "acc")
    if w.schedule.form == Form.LIBRARY:
        render_library_epilogue(w, dot, level, acc)
        return
    names = {dot.m: "i", dot.n: "j", dot.k: "k"}
    w.axes |= names
    accumulate = accumulator(w.buffer_dtype(dot.a))

    def read(load: Load) -> str:
        return f"return {widen_operand(w.element(load), w.buffer_dtype(load), accumulate)};"

    along = [stride_of(dot.a, dot.k) == 1, stride_of(dot.b, dot.k) == 1]
    tiles(w, w.axis_extent(dot.m), w.axis_extent(dot.n), w.axis_extent(dot.k), dot.batch, accumulate)
    contiguous = [dot.k if one else other for one, other in zip(along, (dot.m, dot.n), strict=True)]
    fours = [is_in_fours(w, x, axis) for x, axis in zip((dot.a, dot.b), contiguous, strict=True)]
    product_call(w, accumulate, along, [read(dot.a)], [read(dot.b)], level, acc.id, {}, fours=fours)


def is_in_fours(w: GpuWriter, load: Load, along: int) -> bool:
    """Are elements along an axis contiguous and aligned in groups of four, in the dtype of the multiplication?"""
    return w.buffer_dtype(load) == float32 and is_multiple(w.kernel.axes[along], 4) and is_aligned_in(load, along, 4)


def render_library_epilogue(w: GpuWriter, dot: Dot, level: Level, acc: Instr) -> None:
    """Epilogue of a library GEMM whose result is in scratch memory: one thread per element."""
    axes = (*dot.batch, dot.m, dot.n)
    with w.block(over_elements(w, axes)):
        w.decompose("at", axes)
        w.emit(f"const {LOCAL[acc.dtype]} v{acc.id} = ((const {STORED[acc.dtype]} *)scratch)[at];")
        w.instructions(level.row)
        w.instructions(level.body)
        w.stores((*level.row_stores, *level.stores))


def accumulator(dtype: DType) -> DType:
    return float32 if dtype.is_half else dtype


def tiles(w: GpuWriter, m: str, n: str, k: str, batch: tuple[int, ...], dtype: DType) -> None:
    """Emits which tile and which chunk of k this block computes."""
    tall, wide, _ = w.schedule.tile
    w.emit(f"const int m = {m}, n = {n}, depth = {k};")
    w.emit(f"const int down = (m + {tall - 1}) / {tall}, across = (n + {wide - 1}) / {wide};")
    w.emit("const int tile = blockIdx.x % (down * across), each = blockIdx.x / (down * across);")
    if batch:
        w.emit(f"if (each >= {w.count(batch)}) return;")
        w.decompose("each", batch)
    else:
        w.emit("if (each) return;")
    w.emit(f"const int m0 = tile / across * {tall}, n0 = tile % across * {wide};")
    type, chunk = STORED[dtype], w.schedule.chunk
    if is_whole(w.schedule):
        return
    if chunk:
        w.emit(f"const int chunks = depth > {chunk} ? (depth + {chunk - 1}) / {chunk} : 1;")
        w.emit("if (blockIdx.y >= chunks) return;")
        w.emit(f"const int from = blockIdx.y*{chunk}, to = from + {chunk} < depth ? from + {chunk} : depth;")
        arguments = f"({type} *)scratch, counters + tile, (int)blockIdx.y, chunks, tile, down * across"
    else:
        w.emit("const int from = 0, to = depth;")
        arguments = f"({type} *)0, (int *)0, 0, 1, 0, 0"
    w.emit(f"const ws_chunks<{type}> cut = {{{arguments}}};")


def early_loads(level: Level) -> tuple[Instr, ...]:
    """Epilogue loads with a computable address: they are issued before the product, to hide their latency."""
    return tuple(
        i
        for i in (*level.row, *level.body)
        if i.op == "load" and i.load is not None and not i.guards and all(p.value is None for p in i.load.index)
    )


def is_whole(schedule: GpuSchedule) -> bool:
    """Does a block process all of k, in chunks that it adds itself?"""
    return bool(schedule.chunk) and schedule.chunks == 1


def product_call(
    w: GpuWriter,
    dtype: DType,
    along: list[bool],
    a: list[str],
    b: list[str],
    level: Level,
    acc: int,
    axes: dict[int, str],
    before: tuple[str, ...] = (),
    fours: Sequence[bool] = (False, False),
) -> None:
    """Emits the call; the epilogue handles one element, whose indices are `axes`, computed by the lines `before`."""
    tall, wide, groups = w.schedule.tile
    type = STORED[dtype]
    flags = ", ".join("true" if x else "false" for x in along)
    # Loads of the epilogue that do not depend on the product are issued before it, to hide their latency.
    early = () if before else early_loads(level)
    seen = "Early" if early else "ws_nothing"
    if early:
        w.emit(f"struct Early {{ {' '.join(f'{STORED[i.dtype]} v{i.id};' for i in early)} }};")
    single_block = is_whole(w.schedule)
    if single_block:
        dot = w.kernel.body
        assert isinstance(dot, Dot), "only matrix products use these tiles"
        depth, chunk = w.kernel.axes[dot.k], w.schedule.chunk
        assert isinstance(depth, int), "k is static"
        bytes = [16 if along[0] and fours[0] else 4, 16 if fours[1] else 4]
        # Three stages of operand tiles (asynchronous copies); afterwards the same memory holds the partial sums of
        # groups.
        count = max(3 * (tall + wide) * (DEPTH * groups + 4), -(-depth // chunk) * groups * tall * wide)
        head = f"ws_whole_product<{type}, {tall}, {wide}, {DEPTH}, {groups}, {depth}, {chunk}, "
        head += f"{bytes[0]}, {bytes[1]}, {'true' if along[1] else 'false'}>("
        arguments = "operands, m, n, m0, n0,"
    else:
        count = max(
            DEPTH * groups * (tall + wide + 8), groups * tall * wide
        )  # rows are padded by 4 against bank conflicts
        head = f"ws_product<{type}, {tall}, {wide}, {DEPTH}, {groups}, {flags}>("
        arguments = "operands, m, n, from, to, m0, n0, cut,"
    w.emit(f"__shared__ __align__(16) {type} operands[{count}];")
    w.emit(head)
    w.emit(f"    {arguments}")
    w.depth += 1
    # Two accessors for the operands, two for the epilogue: its early loads, and the value v of element (i, j).
    for opening, lines, four in (("[&](int i, int k)", a, fours[0]), ("[&](int k, int j)", b, fours[1])):
        operand_type = f"const {type} *" if single_block else f"const {type} &" if four else type
        with w.block(f"{opening} -> {operand_type}", "},"):
            for line in lines:
                w.emit(line.replace("return ", "return &", 1) if single_block else line)
    outer_axes = dict(w.axes)
    w.axes |= axes
    with w.block(f"[&](int i, int j) -> {seen}", "},"):
        w.emit(f"return {{{', '.join(w.expression(i) for i in early)}}};")
    with w.block(f"[&](int i, int j, {type} v{acc}, const {seen} &early)", "});"):
        for line in before:
            w.emit(line)
        for i in early:
            w.emit(f"const {LOCAL[i.dtype]} v{i.id} = early.v{i.id};")
        ids = {i.id for i in early}
        w.instructions([i for i in (*level.row, *level.body) if i.id not in ids])
        w.stores(level.row_stores)
        w.stores(level.stores)
    w.axes = outer_axes
    w.depth -= 1


def render_medium_gemm(w: GpuWriter) -> None:
    dot = w.kernel.body
    assert isinstance(dot, Dot)
    (level,), (tall, wide, deep) = dot.levels, w.schedule.tile
    acc = next(i for i in level.body if i.op == "acc")
    w.axes |= {dot.m: "i", dot.n: "j", dot.k: "k"}
    w.emit(f"const int m = {w.axis_extent(dot.m)}, n = {w.axis_extent(dot.n)}, depth = {w.axis_extent(dot.k)};")
    w.emit(f"const int down = (m + {tall - 1}) / {tall}, across = (n + {wide - 1}) / {wide};")
    w.emit("const int tile = blockIdx.x % (down * across), each = blockIdx.x / (down * across);")
    w.emit(f"if (each >= {w.count(dot.batch)}) return;")
    w.decompose("each", dot.batch)
    groups = 256 // tall
    rounds = 2 if groups * tall * wide > 8192 else 1
    count = max(groups * deep * (tall + wide + 8), groups * tall * wide // rounds)  # as in `ws_middle`
    w.emit(f"__shared__ __align__(16) float operands[{count}];")
    early = early_loads(level)
    seen = "Early" if early else "ws_nothing"
    if early:
        w.emit(f"struct Early {{ {' '.join(f'{STORED[i.dtype]} v{i.id};' for i in early)} }};")
    along_k = [is_contiguous_along_k(w.kernel, x, axis) for x, axis in ((dot.a, dot.m), (dot.b, dot.n))]
    flags = ["true" if contiguous else "false" for contiguous in along_k]
    w.emit(f"ws_middle_product<{tall}, {wide}, {deep}, {', '.join(flags)}>(")
    w.emit(f"    operands, m, n, depth, tile / across * {tall}, tile % across * {wide},")
    w.emit(f"    [&](int i, int k) -> const float * {{ return &{w.element(dot.a)}; }},")
    w.emit(f"    [&](int k, int j) -> const float * {{ return &{w.element(dot.b)}; }},")
    w.emit(f"    [&](int i, int j) -> {seen} {{ return {{{', '.join(w.expression(i) for i in early)}}}; }},")
    w.depth += 1
    with w.block(f"[&](int i, int j, float v{acc.id}, const {seen} &early)", "});"):
        for i in early:
            w.emit(f"const {LOCAL[i.dtype]} v{i.id} = early.v{i.id};")
        ids = {i.id for i in early}
        w.instructions([i for i in (*level.row, *level.body) if i.id not in ids])
        w.stores((*level.row_stores, *level.stores))
    w.depth -= 1
