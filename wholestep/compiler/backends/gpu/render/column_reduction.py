"""Column reduction: one block per tile of columns, whose warps split the reduced axis.

Order of the sums: part p (a warp or less) adds rows p, p + parts, ...; then the parts are added in order; then, if the
axis is split, the chunks of each group of `JOINED_CHUNKS` blocks, by the last of them to arrive, and the groups.  No
atomics, so the bits are reproducible.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.backends.gpu.grids.row_loads import is_plain_load
from wholestep.compiler.backends.gpu.kernel_schedule import JOINED_CHUNKS, PARTS, Form
from wholestep.compiler.backends.gpu.render.language import STORED
from wholestep.compiler.backends.gpu.render.vectorize import VectorizedLevel, moves_along
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.plan.model.bodies import Columns
from wholestep.compiler.plan.model.kernel import Load, Reduce


def render_columns(w: GpuWriter) -> None:
    """Emits the reduction and its epilogue.

    A block reduces one chunk of a long axis; the last block to arrive adds the chunks in the same order.
    """
    columns = w.kernel.body
    assert isinstance(columns, Columns)
    if w.schedule.form == Form.ELEMENTS:
        render_short_columns(w, columns)
        return
    sums, epilogue = columns.levels
    lanes, each = w.schedule.width, w.schedule.vector
    extent, parts, wide = w.axis_extent(columns.vector), w.schedule.threads // lanes, lanes * each
    w.emit(f"const int lane = threadIdx.x % {lanes}, part = threadIdx.x / {lanes};")
    w.emit(f"const {w.int} across = ({extent} + {wide - 1}) / {wide}, total = {w.count(columns.rows)} * across;")
    for r in sums.reduces if parts > 1 else ():
        type = STORED[w.dtypes[r.value]]
        kind = f"ws_best<{type}>" if r.op == "argmax" else type
        w.emit(f"__shared__ {kind} parts{r.id}[{parts}][{wide}];")
    chunks(w, columns)
    with w.block(f"for ({w.int} at = blockIdx.x; at < total; at += gridDim.x)"):
        w.emit(f"const {w.int} first_column = at % across * {wide}, row = at / across;")
        w.decompose("row", columns.rows)
        begin, end = ("first", "last") if w.schedule.chunk else ("0", w.axis_extent(columns.reduced))
        if each > 1:
            add_packs(w, columns, begin, end, parts, each)
        elif parts > 1:
            add_columns(w, columns, begin, end, parts)
        w.emit(f"const {w.int} column = threadIdx.x, i{columns.vector} = first_column + column;")
        w.emit(f"const bool inside = column < {wide} && i{columns.vector} < {extent};")
        if parts > 1:
            add_parts(w, sums.reduces, parts)
        else:
            add_alone(w, columns, begin, end)
        if w.schedule.chunk:
            add_chunks(w, sums.reduces, parts, wide, each)
        with w.block("if (inside)"):
            for r in sums.reduces:
                w.finish(r, f"t{r.id}")
            w.instructions(epilogue.body)
            w.stores(epilogue.stores)


def render_short_columns(w: GpuWriter, columns: Columns) -> None:
    """One thread per result or vector of results, which adds the few elements of the reduced axis."""
    (sums, epilogue), axis, each = columns.levels, columns.vector, w.schedule.vector
    packs, across = VectorizedLevel(w, axis, each), f"({w.axis_extent(axis)}/{each})"
    w.emit(f"const {w.int} total = {w.count(columns.rows)} * {across};")
    first, stride = f"({w.int})blockIdx.x*blockDim.x + threadIdx.x", f"({w.int})gridDim.x*blockDim.x"
    with w.block(f"for ({w.int} at = {first}; at < total; at += {stride})"):
        w.emit(f"const {w.int} base = at % {across} * {each}, row = at / {across};")
        w.decompose("row", columns.rows)
        start_packs(w, sums.reduces, each)
        w.emit("#pragma unroll")
        with w.loop(f"i{columns.reduced}", "0", w.axis_extent(columns.reduced)):
            packs.render(sums, sums_of="[e]")
        for r in sums.reduces:
            w.values[r.id] = f"r{r.id}[e]"
        packs.render(epilogue)


def start_packs(w: GpuWriter, reduces: tuple[Reduce, ...], each: int) -> None:
    """Declares the accumulators of several adjacent columns, with their neutral elements."""
    for r in reduces:
        first = "0" if r.op == "sum" else f"ws_lowest(({STORED[w.dtypes[r.value]]})0)"
        w.emit(f"{STORED[w.dtypes[r.value]]} r{r.id}[{each}];")
        w.emit("#pragma unroll")
        w.emit(f"for (int e = 0; e < {each}; e++) r{r.id}[e] = {first};")


def add_alone(w: GpuWriter, columns: Columns, begin: str, end: str) -> None:
    """One thread per column: it computes the parts that warps would compute, one after the other."""
    sums = columns.levels[0]
    for r in sums.reduces:
        w.emit(f"{STORED[w.dtypes[r.value]]} t{r.id} = {{}};")
    with w.block("if (inside)"):
        w.emit("#pragma unroll")
        with w.block(f"for (int p = 0; p < {PARTS}; p++)"):
            for r in sums.reduces:
                w.start(r)
            with w.loop(f"i{columns.reduced}", f"{begin} + p", end, str(PARTS)):
                w.instructions(sums.body)
                for r in sums.reduces:
                    w.accumulate(r, columns.reduced)
            for r in sums.reduces:
                join = "add" if r.op == "sum" else "max"
                w.emit(f"t{r.id} = p == 0 ? r{r.id} : ws_{join}(t{r.id}, r{r.id});")


def add_columns(w: GpuWriter, columns: Columns, begin: str, end: str, parts: int) -> None:
    """One column per thread."""
    sums = columns.levels[0]
    with w.block(""):
        w.emit(f"const {w.int} i{columns.vector} = first_column + lane;")
        for r in sums.reduces:
            w.start(r)
        inside = f"if (i{columns.vector} < {w.axis_extent(columns.vector)})"
        with w.block(inside):
            w.emit("#pragma unroll 4")
            with w.loop(f"i{columns.reduced}", f"{begin} + part", end, str(parts)):
                w.instructions(sums.body)
                for r in sums.reduces:
                    w.accumulate(r, columns.reduced)
        w.emit("__syncthreads();")
        for r in sums.reduces:
            w.emit(f"parts{r.id}[part][lane] = r{r.id};")
        w.emit("__syncthreads();")


def add_packs(w: GpuWriter, columns: Columns, begin: str, end: str, parts: int, each: int) -> None:
    """Several adjacent columns per thread, with vector loads; several rows are in flight at a time."""
    sums, axis = columns.levels[0], columns.vector
    packs = VectorizedLevel(w, axis, each)
    with w.block(""):
        w.emit(f"const {w.int} base = first_column + lane*{each};")
        start_packs(w, sums.reduces, each)
        with w.block(f"if (base < {w.axis_extent(axis)})"):
            loads = [i.load for i in sums.body if i.load is not None and is_plain_load(i) and packs.packs(i.load)]
            same = {x: f"same{n}" for n, x in enumerate(dict.fromkeys(loads)) if not moves_along(x, columns.reduced)}
            for load, name in same.items():
                packs.read(load, name)
            w.emit(f"#pragma unroll {rows_in_flight(w, [x for x in dict.fromkeys(loads) if x not in same], each)}")
            with w.loop(f"i{columns.reduced}", f"{begin} + part", end, str(parts)):
                packs.render(sums, same, sums_of="[e]")
        w.emit("__syncthreads();")
        for r in sums.reduces:
            w.emit("#pragma unroll")
            w.emit(f"for (int e = 0; e < {each}; e++) parts{r.id}[part][lane*{each} + e] = r{r.id}[e];")
        w.emit("__syncthreads();")


def rows_in_flight(w: GpuWriter, loads: Sequence[Load], each: int) -> int:
    """Rows whose loads a thread issues together: as many bytes as hide the latency of memory."""
    bytes = sum(each * w.buffer_dtype(x).size for x in loads)
    return max(4, min(8, costs_of(w.plan).reductions.loads_in_flight // max(1, bytes)))


def add_parts(w: GpuWriter, reduces: tuple[Reduce, ...], parts: int) -> None:
    """Adds the warps' parts of a column in order, in one thread of the block."""
    for r in reduces:
        join, type = {"argmax": "better", "sum": "add", "max": "max"}[r.op], STORED[w.dtypes[r.value]]
        w.emit(f"{f'ws_best<{type}>' if r.op == 'argmax' else type} t{r.id} = {{}};")
    with w.block("if (inside)"):
        for r in reduces:
            join = {"argmax": "better", "sum": "add", "max": "max"}[r.op]
            w.emit(f"t{r.id} = parts{r.id}[0][column];")
            w.emit(f"#pragma unroll {min(parts, 32)}")
            w.emit(f"for (int p = 1; p < {parts}; p++) t{r.id} = ws_{join}(t{r.id}, parts{r.id}[p][column]);")


def chunks(w: GpuWriter, columns: Columns) -> None:
    """The rows that this block adds up; blocks past the end of the call's axis return."""
    if not w.schedule.chunk:
        return
    length, chunk = w.axis_extent(columns.reduced), w.schedule.chunk
    w.emit(f"const {w.int} chunks = {length} > {chunk} ? ({length} + {chunk - 1}) / {chunk} : 1;")
    w.emit("if (blockIdx.y >= chunks) return;")
    w.emit(f"const {w.int} first = ({w.int})blockIdx.y*{chunk};")
    w.emit(f"const {w.int} last = first + {chunk} < {length} ? first + {chunk} : {length};")


def add_chunks(w: GpuWriter, reduces: tuple[Reduce, ...], parts: int, wide: int, each: int) -> None:
    """Writes this block's result to scratch; the last block of a group adds the group's chunks, and the last block of
    the last group adds the groups.  A single block would read all chunks at the speed of one multiprocessor.
    """
    start, group = "scratch", JOINED_CHUNKS
    w.emit(f"const {w.int} most_groups = (gridDim.y + {group - 1}) / {group};")
    for r in reduces:
        type = STORED[w.dtypes[r.value]]
        w.emit(f"{type} *const chunks{r.id} = ({type} *)({start});")
        start = f"(char *)(chunks{r.id} + (long long)(gridDim.y + most_groups)*total*{wide})"
    with w.block("if (chunks > 1)"):
        w.emit(f"const {w.int} groups = (chunks + {group - 1}) / {group}, group = ({w.int})blockIdx.y / {group};")
        w.emit(f"const {w.int} size = group < groups - 1 ? {group} : chunks - group*{group};")
        join_chunks(w, reduces, parts, wide, each)
        store_part(w, reduces, "blockIdx.y", wide)
        w.emit("if (!ws_is_last(counters + at*(1 + most_groups) + 1 + group, size)) continue;")
        w.emit(f"join(group*{group}, size);")
        with w.block("if (groups > 1)"):
            store_part(w, reduces, "(gridDim.y + group)", wide)
            w.emit("if (!ws_is_last(counters + at*(1 + most_groups), groups)) continue;")
            w.emit("join(gridDim.y, groups);")


def store_part(w: GpuWriter, reduces: tuple[Reduce, ...], position: str, wide: int) -> None:
    """Writes the block's sums to a row of the scratch memory."""
    with w.block("if (inside)"):
        for r in reduces:
            w.emit(f"chunks{r.id}[((long long){position}*total + at)*{wide} + column] = t{r.id};")


def join_chunks(w: GpuWriter, reduces: tuple[Reduce, ...], parts: int, wide: int, each: int) -> None:
    """Defines `join(from, count)`, which adds rows of the scratch memory, part by part, then the parts."""
    with w.block(f"auto join = [&]({w.int} from, {w.int} count)", "};"):
        for r in reduces:
            type, join = STORED[w.dtypes[r.value]], "add" if r.op == "sum" else "max"
            with w.block(f"if (first_column + lane*{each} < {w.axis_extent(w.kernel.vector or 0)})"):
                w.emit(f"{type} found[{each}];")
                first = "0" if r.op == "sum" else f"ws_lowest(({type})0)"
                w.emit("#pragma unroll")
                w.emit(f"for (int e = 0; e < {each}; e++) found[e] = {first};")
                w.emit("#pragma unroll 4")
                with w.block(f"for ({w.int} n = part; n < count; n += {parts})"):
                    w.emit(f"{type} seen[{each}];")
                    address = f"chunks{r.id} + ((long long)(from + n)*total + at)*{wide} + lane*{each}"
                    w.emit(f"ws_near<{type}, {each}>(seen, {address});")
                    w.emit("#pragma unroll")
                    w.emit(f"for (int e = 0; e < {each}; e++) found[e] = ws_{join}(found[e], seen[e]);")
                w.emit("#pragma unroll")
                w.emit(f"for (int e = 0; e < {each}; e++) parts{r.id}[part][lane*{each} + e] = found[e];")
        w.emit("__syncthreads();")
        with w.block("if (inside)"):
            for r in reduces:
                join = "add" if r.op == "sum" else "max"
                w.emit(f"t{r.id} = parts{r.id}[0][column];")
                w.emit("#pragma unroll")
                w.emit(f"for (int p = 1; p < {parts}; p++) t{r.id} = ws_{join}(t{r.id}, parts{r.id}[p][column]);")
