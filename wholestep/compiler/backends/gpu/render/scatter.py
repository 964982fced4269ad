"""Deterministic scatter-add: one thread per target element, one block per row, or tables of partial sums."""

from __future__ import annotations

from contextlib import ExitStack

from wholestep.compiler.backends.gpu.grids.scatter import row_axes_of
from wholestep.compiler.backends.gpu.kernel_schedule import JOINED, WARP, Form
from wholestep.compiler.backends.gpu.render.elementwise import over_elements
from wholestep.compiler.backends.gpu.render.gemm import accumulator
from wholestep.compiler.backends.gpu.render.language import STORED, cast_text
from wholestep.compiler.backends.gpu.render.sorted_scatter import read_elements, render_sorted
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import product
from wholestep.compiler.plan.model.bodies import Scatter


def render_scatter(w: GpuWriter) -> None:
    """One thread per target element scans all indices.  No atomics, so the order of the additions is fixed."""
    scatter = w.kernel.body
    assert isinstance(scatter, Scatter)
    target, at = scatter.target, scatter.at
    row_axes = row_axes_of(w.kernel, scatter)
    summed = [a for a in range(len(w.kernel.axes)) if a not in row_axes]
    dtype = w.buffer_dtype(target)
    type = accumulator(dtype)
    if w.schedule.form == Form.SCATTER_ROWS:
        render_rows(w, scatter, row_axes, summed)
        return
    if w.schedule.form == Form.SCATTER_SORTED:
        render_sorted(w, scatter)
        return
    if w.schedule.form == Form.SCATTER_TABLE:
        render_table(w, scatter)
        return
    w.emit(f"const {w.int} rows = {w.extent(target.shape[at])}, each = {w.count(row_axes)};")
    loop = over_elements(w, ()).replace("total", "rows*each")
    w.lines.pop()  # drops the declaration of `total`: the loop runs over rows * each
    with w.block(loop):
        w.emit(f"const {w.int} place = at / each, other = at % each;")
        w.decompose("other", row_axes)
        w.emit(f"{STORED[type]} sum = 0;")
        with ExitStack() as stack:
            for axis in summed:
                stack.enter_context(w.loop(f"i{axis}", "0", w.axis_extent(axis)))
            with w.block(f"if (ws_clamp({w.element(scatter.index)}, rows - 1) == place)"):
                value = cast_text(w.element(scatter.updates), w.buffer_dtype(scatter.updates), type)
                w.emit(f"sum = ws_add(sum, ({STORED[type]}){value});")
        stride = product(target.shape[at + 1 :])
        element = f"{w.params[target.buffer]}[{w.offset(target)} + {w.times('place', stride)}]"
        w.emit(f"{element} = {cast_text('sum', type, dtype)};")


def render_rows(w: GpuWriter, scatter: Scatter, row_axes: list[int], summed: list[int]) -> None:
    """One block per target row.

    Warp p scans indices 32 p .. 32 p + 31, then 256 further, and so on, and adds its matches in order; then the warps'
    sums are added in order.
    """
    target, row, parts = scatter.target, w.schedule.width, w.schedule.threads // WARP
    dtype = w.buffer_dtype(target)
    type, each = accumulator(dtype), -(-row // WARP)
    text = STORED[type]
    w.emit(f"const int lane = threadIdx.x % {WARP}, part = threadIdx.x / {WARP};")
    w.emit(f"__shared__ {text} parts[{parts}][{row}];")
    w.emit(f"const {w.int} rows = {w.extent(target.shape[scatter.at])}, total = {w.count(summed)};")
    with w.block(f"for ({w.int} place = blockIdx.x; place < rows; place += gridDim.x)"):
        w.emit(f"{text} sum[{each}] = {{}};")
        with w.block(f"for ({w.int} first = part*{WARP}; first < total; first += {w.schedule.threads})"):
            w.emit("bool found = false;")
            with w.block("if (first + lane < total)"):
                w.emit(f"const {w.int} at = first + lane;")
                w.decompose("at", summed)
                w.emit(f"found = ws_clamp({w.element(scatter.index)}, rows - 1) == place;")
            with w.block("for (unsigned left = __ballot_sync(WS_ALL, found); left; left &= left - 1)"):
                w.emit(f"const {w.int} at = first + __ffs(left) - 1;")
                w.decompose("at", summed)
                w.emit("#pragma unroll")
                with w.block(f"for (int e = 0; e < {each}; e++)"):
                    w.emit(f"const {w.int} other = e*{WARP} + lane;")
                    with w.block(f"if (other < {row})"):
                        w.decompose("other", row_axes)
                        value = cast_text(w.element(scatter.updates), w.buffer_dtype(scatter.updates), type)
                        w.emit(f"sum[e] = ws_add(sum[e], ({text}){value});")
        w.emit("__syncthreads();")
        w.emit("#pragma unroll")
        w.emit(f"for (int e = 0; e < {each}; e++) if (e*{WARP} + lane < {row}) parts[part][e*{WARP} + lane] = sum[e];")
        w.emit("__syncthreads();")
        with w.block(f"for ({w.int} other = threadIdx.x; other < {row}; other += {w.schedule.threads})"):
            w.decompose("other", row_axes)
            w.emit(f"{text} all = parts[0][other];")
            w.emit(f"for (int p = 1; p < {parts}; p++) all = ws_add(all, parts[p][other]);")
            stride = product(target.shape[scatter.at + 1 :])
            element = f"{w.params[target.buffer]}[{w.offset(target)} + {w.times('place', stride)}]"
            w.emit(f"{element} = {cast_text('all', type, dtype)};")


def render_table(w: GpuWriter, scatter: Scatter) -> None:
    """Few target rows: `ws_scatter_table`, one block per tile of columns and slice of the indices."""
    target, (lanes, each) = scatter.target, (w.schedule.width, w.schedule.vector)
    dtype, row_axes = w.buffer_dtype(target), row_axes_of(w.kernel, scatter)
    type, (rows, row) = accumulator(dtype), (target.shape[scatter.at], w.count(row_axes))
    assert isinstance(rows, int), "the grid has checked it"
    text, tables, columns = STORED[type], WARP * 8 // lanes, lanes * each
    most = costs_of(w.plan).scatter.most_slices
    w.emit(f"const int total = {w.count(scatter.over)};")
    w.emit(f"const int slices = ws_min({most}, (total + {w.schedule.chunk - 1}) / {w.schedule.chunk});")
    w.emit("if ((int)blockIdx.y >= slices) return;")
    w.emit(f"__shared__ __align__(16) {text} tables[{tables * rows * columns}];")
    parts, groups = w.schedule.chunks, -(-w.schedule.chunks // JOINED)
    w.emit(f"ws_scatter_table<{text}, {rows}, {each}, {lanes}, {JOINED}>(")
    w.emit(f"    tables, ({text} *)scratch + (int)blockIdx.x*{(parts + groups) * rows * columns},")
    w.emit(f"    counters + (int)blockIdx.x*{1 + groups}, (int)blockIdx.y, slices, total, {row},")
    w.emit(f"    (int)blockIdx.x*{columns},")
    w.depth += 1
    with w.block("[&](int at) -> int", "},"):
        w.decompose("at", scatter.over)
        w.emit(f"return (int)ws_clamp({w.element(scatter.index)}, {rows - 1});")
    with w.block(f"[&](int at, int other, {text} *values)", "},"):
        w.decompose("at", scatter.over)
        w.decompose("other", row_axes)
        read_elements(w, scatter, each, lambda value, e: f"values[{e}] = {value};")
    with w.block(f"[&](int place, int other, {text} value)", "});"):
        w.decompose("other", row_axes)
        stride = product(target.shape[scatter.at + 1 :])
        element = f"{w.params[target.buffer]}[{w.offset(target)} + {w.times('place', stride)}]"
        w.emit(f"{element} = {cast_text('value', type, dtype)};")
    w.depth -= 1
