"""Rows narrower than a panel, and what is left of a row after its whole panels.

Ten elements are two vectors of eight, computed in full: what is loaded past the end is zero, what is reduced there is
neutral, and nothing is stored there outside of padding.  The alternative, a vector and two scalars, runs an
exponential at a quarter of the speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wholestep.compiler.plan.kernel import LANES, Instr, Layout, Level, Load, Space
from wholestep.compiler.render.language import LOWEST, OPS, STORED

if TYPE_CHECKING:
    from wholestep.compiler.render.writer import Writer


def can_widen(w: Writer, level: Level) -> bool:
    """No load of the level depends on a value or a condition of its own lane."""
    plain = all(not i.guards and all(x.value is None for x in i.load.index) for i in level.body if i.load is not None)
    return plain and all(r.op != "argmax" for r in level.reduces)


def is_padded(w: Writer, load: Load) -> bool:
    """Is there room for all 16 lanes where this access ends?"""
    buffer = w.buffers[load.buffer]
    if not load.index or load.index[-1].plain != w.kernel.vector:
        return False
    if buffer.layout is Layout.PANELS:
        return True
    extent = load.shape[-1]
    whole = isinstance(extent, int) and -(-extent // LANES) * LANES * buffer.type.dtype.size <= buffer.bytes
    return buffer.space is Space.WORK and len(load.shape) == 1 and whole


def widened_lanes(w: Writer, level: Level, count: int) -> None:
    """All 16 lanes of a level of which `count` exist."""
    gathered = [i for i in level.body if i.load is not None and not is_padded(w, i.load)]
    scattered = [s for s in level.stores if not is_padded(w, s.load)]
    kept = dict(w.values)
    for i in gathered:
        w.emit(f"{STORED[i.dtype]} x{i.id}v[{LANES}] = {{0}};")
        with w.block(f"for (long l = 0; l < {count}; l++)"):
            w.emit(f"x{i.id}v[l] = {w.expression(i)};")
        w.values[i.id] = f"x{i.id}v[l]"
    for n, s in enumerate(scattered):
        w.emit(f"{STORED[w.buffers[s.load.buffer].type.dtype]} y{n}[{LANES}];")
    w.emit("#pragma omp simd")
    with w.block(f"for (long l = 0; l < {LANES}; l++)"):
        for i in level.body:
            if i.op == "acc":
                zero_past_the_end(w, i, count)
        w.instructions([i for i in level.body if i not in gathered])
        for r in level.reduces:
            dtype, lane = w.dtypes[r.value], f"r{r.id}[l]"
            neutral = "0" if r.op == "sum" else LOWEST[dtype]
            value = f"(l < {count} ? {w.values[r.value]} : {neutral})"
            w.emit(f"{lane} = {OPS['add' if r.op == 'sum' else 'maximum'](dtype, (lane, value))};")
        w.stores([s for s in level.stores if s not in scattered])
        for n, s in enumerate(scattered):
            w.emit(f"y{n}[l] = {w.values[s.value]};")
    w.values = kept
    for n, s in enumerate(scattered):
        with w.block(f"for (long l = 0; l < {count}; l++)"):
            w.emit(f"{w.element(s.load)} = y{n}[l];")


def zero_past_the_end(w: Writer, acc: Instr, count: int) -> None:
    """The columns of a product that do not exist, so that the padding of what it updates stays zero."""
    w.emit(f"const {STORED[acc.dtype]} v{acc.id} = l < {count} ? {w.values[acc.id]} : 0;")
    w.values[acc.id] = f"v{acc.id}"
