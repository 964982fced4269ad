"""Sums at computed places: a thread an element of the target, which looks at every index in order."""

from __future__ import annotations

from contextlib import ExitStack

from wholestep.compiler.backends.cuda.render.language import STORED, cast_text
from wholestep.compiler.backends.cuda.render.nests import over_elements
from wholestep.compiler.backends.cuda.render.products import accumulator
from wholestep.compiler.backends.cuda.render.writer import Writer
from wholestep.compiler.backends.cuda.schedule import WARP
from wholestep.compiler.backends.cuda.scheduled import SCATTER_ROWS
from wholestep.compiler.ir.types import product
from wholestep.compiler.plan.bodies import Scatter


def render_scatter(w: Writer) -> None:
    """No atomics: the updates of an element are added in their order, whatever runs when."""
    scatter = w.kernel.body
    assert isinstance(scatter, Scatter)
    target, at = scatter.target, scatter.at
    own = [i.plain for d, i in enumerate(target.index) if d != at]
    assert None not in own, "a scatter's target is indexed by axes"
    kept = [a for a in own if a is not None]
    summed = [a for a in range(len(w.kernel.axes)) if a not in kept]
    dtype = w.buffer_dtype(target)
    type = accumulator(dtype)
    if w.schedule.form == SCATTER_ROWS:
        render_rows(w, scatter, kept, summed)
        return
    w.emit(f"const {w.int} rows = {w.extent(target.shape[at])}, each = {w.count(kept)};")
    loop = over_elements(w, ()).replace("total", "rows*each")
    w.lines.pop()  # the number of elements is another
    with w.block(loop):
        w.emit(f"const {w.int} place = at / each, other = at % each;")
        w.decompose("other", kept)
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


def render_rows(w: Writer, scatter: Scatter, kept: list[int], summed: list[int]) -> None:
    """A block a row of the target.  Warp p looks at indices 32 p .. 32 p + 31, then 256 further, and so on; what it
    finds it adds in order, and then the warps are added in order."""
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
                        w.decompose("other", kept)
                        value = cast_text(w.element(scatter.updates), w.buffer_dtype(scatter.updates), type)
                        w.emit(f"sum[e] = ws_add(sum[e], ({text}){value});")
        w.emit("__syncthreads();")
        w.emit("#pragma unroll")
        w.emit(f"for (int e = 0; e < {each}; e++) if (e*{WARP} + lane < {row}) parts[part][e*{WARP} + lane] = sum[e];")
        w.emit("__syncthreads();")
        with w.block(f"for ({w.int} other = threadIdx.x; other < {row}; other += {w.schedule.threads})"):
            w.decompose("other", kept)
            w.emit(f"{text} all = parts[0][other];")
            w.emit(f"for (int p = 1; p < {parts}; p++) all = ws_add(all, parts[p][other]);")
            stride = product(target.shape[scatter.at + 1 :])
            element = f"{w.params[target.buffer]}[{w.offset(target)} + {w.times('place', stride)}]"
            w.emit(f"{element} = {cast_text('all', type, dtype)};")
