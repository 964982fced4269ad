"""Scatter-add into many rows: indices are sorted, then a few threads per row add the updates of its segment in order.

The launches before it (`Preparation`) sort keys `row << 32 | position`, and add up slices of equal rows, so that a row
that many indices name (the most frequent token) does not take longer than others.
"""

from __future__ import annotations

from collections.abc import Callable

from wholestep.compiler.backends.gpu.grids.row_loads import PACKED
from wholestep.compiler.backends.gpu.grids.scatter import (
    SLICE,
    Preparation,
    SortedScatter,
    row_axes_of,
    sorted_scatter,
)
from wholestep.compiler.backends.gpu.render.gemm import accumulator
from wholestep.compiler.backends.gpu.render.language import STORED, cast_text
from wholestep.compiler.backends.gpu.render.writer import INT, GpuWriter
from wholestep.compiler.backends.gpu.strides import is_multiple
from wholestep.compiler.ir.types import product
from wholestep.compiler.plan.model.bodies import Scatter
from wholestep.compiler.plan.model.kernel import Load


def read_elements(w: GpuWriter, scatter: Scatter, count: int, give: Callable[[str, str], str]) -> None:
    """Emits loads of `count` adjacent updates; `give` is the statement that takes the value of element `e`."""
    of, type = w.buffer_dtype(scatter.updates), accumulator(w.buffer_dtype(scatter.target))
    place = f"{w.params[scatter.updates.buffer]} + {w.offset(scatter.updates)}"
    if is_vectorized(w, scatter.updates, count):
        w.emit(f"{STORED[of]} a[{count}];")
        w.emit(f"ws_pack<{STORED[of]}, {count}> pack; pack.read({place}); pack.split(a);")
    else:
        w.emit(f"const {STORED[of]} *const a = {place};")
    w.emit("#pragma unroll")
    value = f"({STORED[type]}){cast_text('a[e]', of, type)}"
    w.emit(f"for (int e = 0; e < {count}; e++) {give(value, 'e')}")


def is_vectorized(w: GpuWriter, load: Load, count: int) -> bool:
    """Are `count` adjacent elements of a row loaded or stored 16 bytes at a time?"""
    dtype = w.buffer_dtype(load)
    return dtype in PACKED and count * dtype.size >= 16 and is_multiple(load.shape[-1], count)


def render_preparation(w: GpuWriter, step: Preparation) -> None:
    """One launch before a sorted scatter."""
    scatter, layout = w.kernel.body, sorted_scatter(w.plan, w.kernel)
    assert isinstance(scatter, Scatter)
    w.emit(f"const int total = {w.count(scatter.over)};")
    if step.step == "slices":
        w.emit(f"ws_sum_slices<{sum_arguments(w, scatter, layout)}>(")
        w.emit(f"    (const long long *)scratch, {slices(w, scatter, layout)}, total, {row_text(w, scatter)},")
        render_add(w, scatter, layout, ");")
        return
    with w.block("auto key = [&](int at) -> long long", "};"):
        if step.source < 0:
            w.decompose("at", scatter.over)
            rows = w.extent(scatter.target.shape[scatter.at])
            w.emit(f"return (long long)ws_clamp({w.element(scatter.index)}, {rows} - 1) << 32 | at;")
        else:
            w.emit(f"return ((const long long *)(scratch + {layout.keys_at(step.source)}))[at];")
    counts = f"(int *)(scratch + {layout.counts_at})"
    if step.step == "rank":
        number, text = "int", "(int)(key >> 32)*total + (int)key"
        if layout.rows * layout.indices >= INT:
            number, text = "long long", "key"
        w.emit(f"ws_rank_keys<{number}>((long long *)scratch, total, key, [&](long long key) -> {number} {{")
        w.emit(f"  return {text};")
        w.emit("});")
    elif step.step == "count":
        w.emit(f"ws_count_digits({counts}, counters, total, {step.shift}, key);")
    else:
        passed = step.shift // 8 + 1  # the last pass writes the first array
        to = f"(long long *)(scratch + {layout.keys_at((layout.passes - passed) % 2)})"
        w.emit(f"ws_place_digits({to}, {counts}, total, {step.shift}, key);")


def row_text(w: GpuWriter, scatter: Scatter) -> str:
    return w.count(row_axes_of(w.kernel, scatter))


def slices(w: GpuWriter, scatter: Scatter, layout: SortedScatter) -> str:
    return f"({STORED[accumulator(w.buffer_dtype(scatter.target))]} *)(scratch + {layout.slices_at})"


def sum_arguments(w: GpuWriter, scatter: Scatter, layout: SortedScatter) -> str:
    type = STORED[accumulator(w.buffer_dtype(scatter.target))]
    return f"{type}, {SLICE}, {layout.lanes}, {layout.pieces}, {layout.vector}"


def render_add(w: GpuWriter, scatter: Scatter, layout: SortedScatter, end: str) -> None:
    """Emits the lambda that adds a lane's elements of the row of updates at a position."""
    type, each = STORED[accumulator(w.buffer_dtype(scatter.target))], layout.vector
    w.depth += 1
    with w.block(f"[&](int at, int begin, {type} (*sum)[{each}])", "}" + end):
        w.decompose("at", scatter.over)
        w.emit("#pragma unroll")
        with w.block(f"for (int p = 0; p < {layout.pieces}; p++)"):
            w.emit(f"const {w.int} other = begin + p*{layout.lanes * each};")
            with w.block(f"if (other < {row_text(w, scatter)})"):
                w.decompose("other", row_axes_of(w.kernel, scatter))
                read_elements(w, scatter, each, lambda value, e: f"sum[p][{e}] = ws_add(sum[p][{e}], {value});")
    w.depth -= 1


def render_sorted(w: GpuWriter, scatter: Scatter) -> None:
    """Up to a warp per target row or part of it, or per first index of a row if the target has values already."""
    target, layout = scatter.target, sorted_scatter(w.plan, w.kernel)
    dtype, row_axes, each = w.buffer_dtype(target), row_axes_of(w.kernel, scatter), layout.vector
    type, pieces, lanes, wide = accumulator(dtype), layout.pieces, layout.lanes, layout.wide
    w.emit(f"const long long *const sorted = (const long long *)scratch; const int lane = threadIdx.x % {lanes};")
    w.emit(f"const int rows = {w.extent(target.shape[scatter.at])}, indices = {w.count(scatter.over)};")
    w.emit(f"const int row = {row_text(w, scatter)}, across = (row + {wide - 1}) / {wide};")
    w.emit(f"const {w.int} total = ({w.int}){'indices' if scatter.onto else 'rows'}*across;")
    first = f"(({w.int})blockIdx.x*blockDim.x + threadIdx.x) / {lanes}"
    with w.block(f"for ({w.int} piece = {first}; piece < total; piece += ({w.int})gridDim.x*blockDim.x / {lanes})"):
        w.emit(f"const int begin = piece % across * {wide} + lane*{each};")
        if scatter.onto:
            w.emit("const int low = piece / across;")
            w.emit("const long long place = sorted[low] >> 32;")
            w.emit("if (low > 0 && sorted[low - 1] >> 32 == place) continue;")
        else:
            w.emit("const long long place = piece / across;")
            w.emit(f"const int low = ws_first_key<{lanes}>(sorted, indices, place);")
        w.emit(f"const int high = ws_last_key<{lanes}>(sorted, indices, place, low);")
        w.emit(f"{STORED[type]} sum[{pieces}][{each}] = {{}};")
        w.emit(f"ws_sum_segment<{sum_arguments(w, scatter, layout)}>(")
        w.emit(f"    sum, sorted, {slices(w, scatter, layout)}, low, high, row, begin,")
        render_add(w, scatter, layout, ");")
        w.emit("#pragma unroll")
        with w.block(f"for (int p = 0; p < {pieces}; p++)"):
            w.emit(f"const {w.int} other = begin + p*{lanes * each};")
            with w.block("if (other < row)"):
                w.decompose("other", row_axes)
                stride = product(target.shape[scatter.at + 1 :])
                at = f"{w.params[target.buffer]} + {w.offset(target)} + {w.times('place', stride)}"
                w.emit(f"{STORED[dtype]} q[{each}];")
                w.emit("#pragma unroll")
                total = f"ws_add({cast_text(f'({at})[e]', dtype, type)}, sum[p][e])" if scatter.onto else "sum[p][e]"
                w.emit(f"for (int e = 0; e < {each}; e++) q[e] = {cast_text(total, type, dtype)};")
                if is_vectorized(w, target, each):
                    w.emit(f"ws_pack<{STORED[dtype]}, {each}> pack; pack.join(q); pack.write({at});")
                else:
                    w.emit(f"for (int e = 0; e < {each}; e++) ({at})[e] = q[e];")
