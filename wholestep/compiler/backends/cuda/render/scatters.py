"""Sums at computed places: a thread an element of the target, which looks at every index in order."""

from __future__ import annotations

from contextlib import ExitStack

from wholestep.compiler.backends.cuda.render.language import STORED, cast_text
from wholestep.compiler.backends.cuda.render.nests import over_elements
from wholestep.compiler.backends.cuda.render.products import accumulator
from wholestep.compiler.backends.cuda.render.writer import Writer
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
