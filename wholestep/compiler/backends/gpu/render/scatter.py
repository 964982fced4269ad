"""Deterministic scatter-add: each target element is owned by one thread, block or warp, which adds in index order."""

from __future__ import annotations

from contextlib import ExitStack

from wholestep.compiler.backends.gpu.grids.row_loads import PACKED
from wholestep.compiler.backends.gpu.kernel_schedule import WARP, Form
from wholestep.compiler.backends.gpu.render.elementwise import over_elements
from wholestep.compiler.backends.gpu.render.gemm import accumulator
from wholestep.compiler.backends.gpu.render.language import STORED, cast_text
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import product
from wholestep.compiler.plan.model.bodies import Scatter


def render_scatter(w: GpuWriter) -> None:
    """One thread per target element scans all indices.  No atomics, so the order of the additions is fixed."""
    scatter = w.kernel.body
    assert isinstance(scatter, Scatter)
    target, at = scatter.target, scatter.at
    target_axes = [i.plain for d, i in enumerate(target.index) if d != at]
    assert None not in target_axes, "a scatter's target is indexed by axes"
    row_axes = [a for a in target_axes if a is not None]
    summed = [a for a in range(len(w.kernel.axes)) if a not in row_axes]
    dtype = w.buffer_dtype(target)
    type = accumulator(dtype)
    if w.schedule.form == Form.SCATTER_ROWS:
        render_rows(w, scatter, row_axes, summed)
        return
    if w.schedule.form == Form.SCATTER_SORTED:
        render_sorted(w, scatter, row_axes, summed)
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


def render_sorting(w: GpuWriter) -> None:
    """Rank sort before a sorted scatter: a key `row * indices + index` moves to the number of smaller keys."""
    scatter = w.kernel.body
    assert isinstance(scatter, Scatter)
    summed = [a for a in range(len(w.kernel.axes)) if a in scatter.over]
    rows = w.extent(scatter.target.shape[scatter.at])
    w.emit(f"long long *const sorted = (long long *)scratch; const {w.int} rows = {rows}, total = {w.count(summed)};")
    w.emit("__shared__ long long others[256];")
    with w.block(f"auto key = [&]({w.int} at) -> long long", "};"):
        w.decompose("at", summed)
        w.emit(f"return (long long)ws_clamp({w.element(scatter.index)}, rows - 1)*total + at;")
    with w.block(f"for ({w.int} first = ({w.int})blockIdx.x*256; first < total; first += ({w.int})gridDim.x*256)"):
        w.emit(f"const {w.int} mine = first + threadIdx.x;")
        w.emit("const long long own = mine < total ? key(mine) : 0;")
        w.emit("int before = 0;")
        with w.block(f"for ({w.int} other = 0; other < total; other += 256)"):
            w.emit("__syncthreads();")
            w.emit(
                f"others[threadIdx.x] = other + ({w.int})threadIdx.x < total ? key(other + threadIdx.x) : (1ll << 62);"
            )
            w.emit("__syncthreads();")
            w.emit("#pragma unroll 16")
            w.emit("for (int i = 0; i < 256; i++) before += others[i] < own;")
        w.emit("if (mine < total) sorted[before] = own;")


def render_sorted(w: GpuWriter, scatter: Scatter, row_axes: list[int], summed: list[int]) -> None:
    """One warp per target row or part of it: it finds its first index (binary search) and adds in order."""
    target, row, each = scatter.target, w.schedule.width, w.schedule.vector
    dtype = w.buffer_dtype(target)
    type, of = accumulator(dtype), w.buffer_dtype(scatter.updates)
    pieces = costs_of(w.plan).scatter.pieces_per_thread
    text, wide = STORED[type], WARP * each * pieces
    is_vectorized = of in PACKED and each * of.size >= 16
    w.emit("const long long *const sorted = (const long long *)scratch;")
    w.emit(f"const int lane = threadIdx.x % {WARP};")
    w.emit(f"const {w.int} rows = {w.extent(target.shape[scatter.at])}, indices = {w.count(summed)};")
    w.emit(f"const {w.int} across = {-(-row // wide)}, total = {'indices' if scatter.onto else 'rows'}*across;")
    stride = product(target.shape[scatter.at + 1 :])
    first = f"(({w.int})blockIdx.x*blockDim.x + threadIdx.x) / {WARP}"
    with w.block(f"for ({w.int} piece = {first}; piece < total; piece += ({w.int})gridDim.x*blockDim.x / {WARP})"):
        w.emit(f"const {w.int} begin = piece % across * {wide} + lane*{each};")
        if scatter.onto:  # one warp per index: the first of equal indices adds them all
            w.emit(f"{w.int} low = piece / across;")
            w.emit(f"const {w.int} place = ({w.int})(sorted[low] / indices);")
            w.emit("if (low > 0 && sorted[low - 1] / indices == place) continue;")
        else:
            w.emit(f"const {w.int} place = piece / across;")
            w.emit(f"{w.int} low = 0, high = indices;")
            with w.block("while (low < high)"):
                w.emit(f"const {w.int} middle = (low + high) / 2;")
                w.emit("if (sorted[middle] < (long long)place*indices) low = middle + 1; else high = middle;")
        w.emit(f"{text} sum[{pieces}][{each}] = {{}};")
        end = "low < indices && sorted[low] < (long long)(place + 1)*indices"
        w.emit("#pragma unroll 2")
        with w.block(f"for (; {end}; low++)"):
            w.emit(f"const {w.int} at = ({w.int})(sorted[low] - (long long)place*indices);")
            w.decompose("at", summed)
            w.emit("#pragma unroll")
            with w.block(f"for (int p = 0; p < {pieces}; p++)"):
                w.emit(f"const {w.int} other = begin + p*{WARP * each};")
                with w.block(f"if (other < {row})"):
                    w.decompose("other", row_axes)
                    place = f"{w.params[scatter.updates.buffer]} + {w.offset(scatter.updates)}"
                    w.emit(f"{STORED[of]} a[{each}];")
                    if is_vectorized:
                        w.emit(f"ws_pack<{STORED[of]}, {each}> pack; pack.read({place}); pack.split(a);")
                    else:
                        w.emit(f"for (int e = 0; e < {each}; e++) a[e] = ({place})[e];")
                    w.emit("#pragma unroll")
                    value = cast_text("a[e]", of, type)
                    w.emit(f"for (int e = 0; e < {each}; e++) sum[p][e] = ws_add(sum[p][e], ({text}){value});")
        w.emit("#pragma unroll")
        with w.block(f"for (int p = 0; p < {pieces}; p++)"):
            w.emit(f"const {w.int} other = begin + p*{WARP * each};")
            with w.block(f"if (other < {row})"):
                w.decompose("other", row_axes)
                at = f"{w.params[target.buffer]} + {w.offset(target)} + {w.times('place', stride)}"
                w.emit(f"{STORED[dtype]} q[{each}];")
                w.emit("#pragma unroll")
                total = f"ws_add({cast_text(f'({at})[e]', dtype, type)}, sum[p][e])" if scatter.onto else "sum[p][e]"
                w.emit(f"for (int e = 0; e < {each}; e++) q[e] = {cast_text(total, type, dtype)};")
                if dtype in PACKED and each * dtype.size >= 16:
                    w.emit(f"ws_pack<{STORED[dtype]}, {each}> pack; pack.join(q); pack.write({at});")
                else:
                    w.emit(f"for (int e = 0; e < {each}; e++) ({at})[e] = q[e];")
