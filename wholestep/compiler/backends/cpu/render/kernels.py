"""Code generation, one function per kind of kernel: plan data -> C loops.

The order of every sum is a function of its length alone: reductions use 16 logical lanes in rows and in columns alike,
contractions one chain per element.  Threads own ranges of axes that are not reduced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from wholestep.compiler.backends.cpu.kernel_schedule import blocks_of
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES, PAIRS, PANELS
from wholestep.compiler.backends.cpu.render.address import axis_stride
from wholestep.compiler.backends.cpu.render.call import render_call, render_exchange
from wholestep.compiler.backends.cpu.render.convolution.backward import (
    render_conv2d_grad_weight,
    render_pooled_grad_input,
    render_pooled_grad_weight,
)
from wholestep.compiler.backends.cpu.render.convolution.forward import render_conv2d, render_conv2d_grad_input
from wholestep.compiler.backends.cpu.render.convolution.pooling import (
    render_max_pool2d,
    render_max_pool2d_grad,
    render_max_pool2d_pick,
)
from wholestep.compiler.backends.cpu.render.language import LOWEST, OPS, STORED, SUFFIX
from wholestep.compiler.backends.cpu.render.prefetch import prefetch_epilogue
from wholestep.compiler.backends.cpu.render.transposes import render_transpose, transposes
from wholestep.compiler.backends.cpu.render.writer import REDUCE_SUFFIX, CWriter, panel
from wholestep.compiler.ir.types import Extent, product
from wholestep.compiler.plan.model.bodies import Columns, Dot, Scatter, Window
from wholestep.compiler.plan.model.kernel import Kind, Level, Load, Reduce

UNROLLED = 16  # iterations of a loop up to which gcc may unroll it completely, with the lanes in registers


def render_nest(w: CWriter) -> None:
    k = w.kernel
    by_panel = (
        len(k.levels) == 1
        and k.rows
        and w.is_paneled(k.levels[0])
        and not k.levels[0].reduces
        and not k.levels[0].row_stores
    )
    if by_panel:
        render_panels_outside(w)
        return
    with ExitStack() as stack:
        for axis in k.rows:
            stack.enter_context(w.loop(f"i{axis}", *w.span(axis)))
        for level in k.levels:
            w.instructions(level.row)
            w.stores(level.row_stores)
            if k.vector is not None:
                w.vector_loop(level)


def render_panels_outside(w: CWriter) -> None:
    """An elementwise nest over paneled buffers, with panels as the outer loop: the order of elements in memory."""
    k, (full_level,) = w.kernel, w.kernel.levels
    assert k.vector is not None
    lo, hi = w.span(k.vector)
    extent = k.axes[k.vector]
    copies = transposes(w) if len(k.rows) == 1 else {}
    level = replace(full_level, stores=tuple(s for s in full_level.stores if s not in copies))
    with w.loop("p", panel(lo), f"({hi} + {LANES - 1})/{LANES}"):
        tail = not (isinstance(extent, int) and extent % LANES == 0)
        if tail:
            left = f"{w.extent(extent)} - p*{LANES}"
            w.emit(f"const long w = {left} < {LANES} ? {left} : {LANES};")
        with ExitStack() as stack:
            for axis in k.rows:
                stack.enter_context(w.loop(f"i{axis}", *w.span(axis)))
            w.instructions(level.row)
            w.lanes(level, "w" if tail else str(LANES), "p")
        for copy, state in copies.items():  # while the panel is in the first-level cache
            (row,), columns = k.rows, (f"p*{LANES}", f"p*{LANES} + {'w' if tail else LANES}")
            render_transpose(w, copy.load, state.load, {row: w.span(row), k.vector: columns})


def render_columns(w: CWriter) -> None:
    """Sums along an outer axis, 16 columns at a time: element i of a column is added to lane i % 16, as in a row."""
    body = w.kernel.body
    assert isinstance(body, Columns)
    sums, epilogue = body.levels
    lo, hi = w.span(body.vector)
    with ExitStack() as stack:
        for axis in body.rows:
            stack.enter_context(w.loop(f"i{axis}", *w.span(axis)))
        column_panels(w, sums, epilogue, body.reduced, lo, hi)


def column_panels(w: CWriter, sums: Level, epilogue: Level, along: int, lo: str, hi: str) -> None:
    """Reduce columns `lo` to `hi` of the vector axis along the axis `along`, then run the epilogue."""
    vector = w.kernel.vector
    assert vector is not None
    width = panel_width(w)
    with w.loop("p", lo, hi, str(LANES)):
        if width == "w":
            w.emit(f"const long w = {hi} - p < {LANES} ? {hi} - p : {LANES};")
        outside, w.axes[vector] = w.axes[vector], "(p + l)"
        if isinstance(w.kernel.axes[vector], int):
            w.axis_panels[vector] = (f"(p/{LANES})", "l")
        reduce_columns(w, sums, along, width)
        w.emit("#pragma omp simd")
        with w.block(f"for (long l = 0; l < {width}; l++)"):
            w.instructions(epilogue.body)
            w.stores(epilogue.stores)
        w.axes[vector] = outside
        w.axis_panels.clear()


def panel_width(w: CWriter) -> str:
    """The constant panel width if threads, and blocks of a product, own complete panels; else the C variable `w`."""
    extent, granule = w.kernel.axes[w.kernel.vector or 0], w.schedule.granule
    blocks = blocks_of(w.kernel).columns if isinstance(w.kernel.body, Dot) else LANES
    pieces = (blocks, granule if w.schedule.split == w.kernel.vector else LANES)
    if not isinstance(extent, int) or any(n % LANES for n in pieces) or (extent > LANES and extent % LANES):
        return "w"
    return str(min(extent, LANES))


def reduce_columns(w: CWriter, level: Level, along: int, width: str) -> None:
    """Accumulate 16 lanes of 16 columns, one row of `r` per lane, then combine the lanes in the order used for rows."""
    for r in level.reduces:
        start_columns(w, r)
    if width == "w":  # full panels get a loop of constant width
        with w.block(f"if (w == {LANES})"):
            add_columns(w, level, along, str(LANES))
        with w.block("else"):
            add_columns(w, level, along, width)
    else:
        add_columns(w, level, along, width)
    extent = w.kernel.axes[along]
    few = "few_" if isinstance(extent, int) and extent <= UNROLLED else ""
    for r in level.reduces:
        if r.op == "argmax":
            w.values[r.id] = f"a{r.id}[l]"
        else:
            w.emit(f"ws_{few}columns_{r.op}_{REDUCE_SUFFIX[w.dtypes[r.value]]}(r{r.id});")
            w.values[r.id] = f"r{r.id}[0][l]"


def add_columns(w: CWriter, level: Level, along: int, width: str) -> None:
    """Add every row of a panel of columns to the lane it belongs to."""
    with w.loop(f"i{along}", "0", w.extent(w.kernel.axes[along])):
        for r in level.reduces:  # argmax has one running maximum per column: the first of equals wins in any order
            lane = "0" if r.op == "argmax" else f"i{along} & {LANES - 1}"
            w.emit(f"{STORED[w.dtypes[r.value]]} *const lane{r.id} = r{r.id}[{lane}];")
        w.emit("#pragma omp simd")
        with w.block(f"for (long l = 0; l < {width}; l++)"):
            w.instructions(level.body)
            for r in level.reduces:
                add_to_column(w, r, along)


def start_columns(w: CWriter, r: Reduce) -> None:
    dtype = w.dtypes[r.value]
    w.emit(f"{STORED[dtype]} r{r.id}[{LANES}][{LANES}];")
    if r.op == "sum":  # gcc compiles a loop of 256 stores as slowly as the complete rest of the kernel
        w.emit(f"__builtin_memset(r{r.id}, 0, sizeof r{r.id});")
    else:
        lanes = f"for (int k = 0; k < {LANES}; k++) for (int l = 0; l < {LANES}; l++)"
        w.emit(f"{lanes} r{r.id}[k][l] = {LOWEST[dtype]};")
    if r.op == "argmax":
        w.emit(f"int32_t a{r.id}[{LANES}]; for (int l = 0; l < {LANES}; l++) a{r.id}[l] = 0;")


def add_to_column(w: CWriter, r: Reduce, along: int) -> None:
    value, dtype, lane = w.values[r.value], w.dtypes[r.value], f"lane{r.id}[l]"
    if r.op == "argmax":
        w.emit(f"const int b{r.id} = ws_exceeds_{REDUCE_SUFFIX[dtype]}({value}, {lane});")
        w.emit(f"a{r.id}[l] = b{r.id} ? (int32_t)i{along} : a{r.id}[l];")
        w.emit(f"{lane} = b{r.id} ? {value} : {lane};")
    else:
        w.emit(f"{lane} = {OPS['add' if r.op == 'sum' else 'maximum'](dtype, (lane, value))};")


# -- contractions ------------------------------------------------------------------------------------------------------


def render_dot(w: CWriter) -> None:
    """Blocked GEMM with a fused epilogue, which runs on each block while it is in the first-level cache."""
    dot, blocks = dot_of(w), blocks_of(w.kernel)
    with ExitStack() as stack:
        for axis in dot.batch:
            stack.enter_context(w.loop(f"i{axis}", *w.span(axis)))
        for name, axis, size in (("n", dot.n, blocks.columns), ("m", dot.m, blocks.rows)):
            lo, hi = w.span(axis)
            stack.enter_context(w.loop(f"{name}0", lo, hi, str(size)))
            w.emit(f"const long {name}b = {hi} - {name}0 < {size} ? {hi} - {name}0 : {size};")
            # Fused column sums first: the blocks below then read these columns from the cache.
            if axis == dot.n and len(dot.levels) > 1:
                column_panels(w, dot.levels[1], dot.levels[2], dot.k, "n0", "n0 + nb")
            if axis == dot.n and blocks_of(w.kernel).pairs is not None:
                pair_columns(w)
        w.axes[dot.m], w.axes[dot.n], w.axes[dot.k] = "m0", "n0", "0"
        call_gemm(w, *direct_target(w) if dot.is_direct else block_target(w))
        if not dot.is_direct:
            render_epilogue(w)


def dot_of(w: CWriter) -> Dot:
    assert isinstance(w.kernel.body, Dot)
    return w.kernel.body


def pair_columns(w: CWriter) -> None:
    """Pack the columns of a half-precision right operand into pairs of rows, which all blocks below them read."""
    dot, t = dot_of(w), w.extent
    outside = dict(w.axes)
    w.axes[dot.n], w.axes[dot.k] = "n0", "0"
    b_k, b_p = right_steps(w, dot)
    depth = t(w.kernel.axes[dot.k])
    w.emit(f"const ws_pairs columns = {{{depth}, nb, {w.address(dot.b)}, {t(b_k)}, {t(b_p)},")
    w.emit(f"  pairs, ({depth} + 1)/2*{2 * LANES}}};")
    w.emit("call->api->pair_rows(&columns);")
    w.axes.update(outside)


def right_steps(w: CWriter, dot: Dot) -> tuple[Extent, Extent]:
    """Strides from one row of a right operand to the next (in pairs: to the next pair), and from panel to panel."""
    buffer = w.plan.buffers[dot.b.buffer]
    if buffer.layout == PAIRS:
        rows = dot.b.shape[-2]
        assert isinstance(rows, int), f"a matrix in pairs has a constant number of rows, not {rows}"
        return 2 * LANES, -(-rows // 2) * 2 * LANES
    b_k, _ = axis_stride(dot.b, dot.k, buffer)
    return b_k, dot.b.shape[-2] * LANES if buffer.layout == PANELS else LANES


def direct_target(w: CWriter) -> tuple[str, str, str]:
    """The product is stored directly in its result: (pointer, stride of rows, stride of panels)."""
    dot, target = dot_of(w), w.kernel.levels[0].stores[0].load
    buffer = w.plan.buffers[target.buffer]
    row, _ = axis_stride(target, dot.m, buffer)
    step = target.shape[-2] * LANES if buffer.layout == PANELS else LANES
    return w.address(target), w.extent(row), w.extent(step)


def block_target(w: CWriter) -> tuple[str, str, str]:
    return "block", str(LANES), str(blocks_of(w.kernel).rows * LANES)


def call_gemm(w: CWriter, c: str, c_m: str, c_p: str) -> None:
    dot = dot_of(w)
    a = w.plan.buffers[dot.a.buffer]
    (a_m, across_panels), (a_k, by_panels) = axis_stride(dot.a, dot.m, a), axis_stride(dot.a, dot.k, a)
    a_kp = dot.a.shape[-2] * LANES if by_panels else a_k * LANES
    t, depth = w.extent, w.extent(w.kernel.axes[dot.k])
    right = f"{w.address(dot.b)}, {', '.join(map(t, right_steps(w, dot)))}"
    if blocks_of(w.kernel).pairs is not None:
        right = f"pairs, {2 * LANES}, ({depth} + 1)/2*{2 * LANES}"
    prefetches = prefetch_epilogue(w)
    if prefetches:
        w.emit(f"const ws_ahead ahead[] = {{{', '.join(prefetches)}}};")
    options = f", .ahead = ahead, .aheads = {len(prefetches)}" if prefetches else ""
    if across_panels and a.type.dtype.is_half:
        options += f", .a_mp = {t(dot.a.shape[-2] * LANES)}"
    w.emit(f"const ws_gemm product = {{mb, nb, {depth},")
    w.emit(f"  {w.address(dot.a)}, {t(a_m)}, {t(a_k)}, {t(a_kp)},")
    w.emit(f"  {right}, {c}, {c_m}, {c_p}{options}}};")
    w.emit(f"call->api->gemm_{SUFFIX[a.type.dtype]}(&product);")


def render_epilogue(w: CWriter) -> None:
    dot, rows, full_level = dot_of(w), blocks_of(w.kernel).rows, w.kernel.levels[0]
    copies = transposes(w)
    level = replace(full_level, stores=tuple(s for s in full_level.stores if s not in copies))
    w.axes[dot.m] = f"i{dot.m}"
    w.axes[dot.k] = f"i{dot.k}"
    (acc,) = (i.id for i in level.body if i.op == "acc")
    w.values[acc] = "acc[l]"
    extent = w.kernel.axes[dot.n]
    with w.loop("q", "0", f"(nb + {LANES - 1})/{LANES}"):
        if isinstance(extent, int):
            w.emit(f"const long p = n0/{LANES} + q;")
        with w.loop(f"i{dot.m}", "m0", "m0 + mb"):
            w.emit(f"const {STORED[w.dtypes[acc]]} *const acc = block + (q*{rows} + i{dot.m} - m0)*{LANES};")
            base = "" if isinstance(extent, int) else f"n0 + q*{LANES}"
            if isinstance(extent, int) and (extent % LANES == 0 or extent < LANES):
                w.lanes(level, str(min(extent, LANES)), "p", base)
            else:
                w.emit(f"const long w = nb - q*{LANES} < {LANES} ? nb - q*{LANES} : {LANES};")
                w.lanes(level, "w", "p", base)
    for copy, state in copies.items():
        render_transpose(w, copy.load, state.load, {dot.m: ("m0", "m0 + mb"), dot.n: ("n0", "n0 + nb")})


# -- scatter -----------------------------------------------------------------------------------------------------------


def render_scatter(w: CWriter) -> None:
    """Zero the target, then add every update in index order; threads divide an axis that is not indexed."""
    k, scatter = w.kernel, w.kernel.body
    assert isinstance(scatter, Scatter)
    target, at = scatter.target, scatter.at
    with ExitStack() as stack:
        for d, index in enumerate(target.index):
            if d == at:
                stack.enter_context(w.loop("at", "0", w.extent(target.shape[d])))
            elif index.plain is not None:
                stack.enter_context(w.loop(f"i{index.plain}", *w.span(index.plain)))
        w.emit(f"{scatter_element(w, target, at)} = 0;")
    with ExitStack() as stack:
        for axis in range(len(k.axes)):
            stack.enter_context(w.loop(f"i{axis}", *w.span(axis)))
            if axis == max(scatter.over, default=-1):
                w.emit(f"const long at = ws_clamp({w.element(scatter.index)}, {w.extent(target.shape[at] - 1)});")
        if not scatter.over:
            w.emit(f"const long at = ws_clamp({w.element(scatter.index)}, {w.extent(target.shape[at] - 1)});")
        element = scatter_element(w, target, at)
        dtype = w.plan.buffers[target.buffer].type.dtype
        w.emit(f"{element} = {OPS['add'](dtype, (element, w.element(scatter.updates)))};")


def scatter_element(w: CWriter, target: Load, at: int) -> str:
    base = w.offset(target)
    return f"{w.params[target.buffer]}[{base} + {w.times('at', product(target.shape[at + 1 :]))}]"


RENDER_WINDOW: Mapping[str, Callable[[CWriter], None]] = {
    "conv2d": render_conv2d,
    "conv2d_grad_input": render_conv2d_grad_input,
    "conv2d_grad_weight": render_conv2d_grad_weight,
    "pooled_grad_weight": render_pooled_grad_weight,
    "pooled_grad_input": render_pooled_grad_input,
    "max_pool2d": render_max_pool2d,
    "max_pool2d_index": render_max_pool2d,
    "max_pool2d_grad": render_max_pool2d_grad,
    "max_pool2d_pick": render_max_pool2d_pick,
}


def render_window(w: CWriter) -> None:
    """Emit the loops of a window kernel."""
    assert isinstance(w.kernel.body, Window)
    RENDER_WINDOW[w.kernel.body.op](w)


RENDER: Mapping[Kind, Callable[[CWriter], None]] = {
    Kind.NEST: render_nest,
    Kind.COLUMNS: render_columns,
    Kind.DOT: render_dot,
    Kind.SCATTER: render_scatter,
    Kind.CALL: render_call,
    Kind.EXCHANGE: render_exchange,
    Kind.WINDOW: render_window,
}
