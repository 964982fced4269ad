"""Masked tails: rows narrower than a panel, and the remainder of a row after its full panels.

Ten elements are computed as two full vectors of eight under a mask: loads past the end give zero, reductions there use
the neutral element, and nothing is stored there except in padding.  The alternative, one vector and two scalars, runs
an exponential at a quarter of the speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wholestep.compiler.backends.cpu.layout.stored_layout import LANES, PAIRS, PANELS
from wholestep.compiler.backends.cpu.render.language import LOCAL, LOWEST, OPS
from wholestep.compiler.ir.types import float32
from wholestep.compiler.plan.model.kernel import Instr, Level, Load, Space, Store

if TYPE_CHECKING:
    from wholestep.compiler.backends.cpu.render.writer import CWriter


def can_widen(level: Level) -> bool:
    """Can the level be computed under a mask: does no load or store depend on a value or condition of its lane?"""
    loads = [i for i in level.body if i.load is not None]
    plain = all(not i.guards and all(x.value is None for x in i.load.index) for i in loads if i.load is not None)
    inside = all(not x.is_behind_start for s in level.stores for x in s.load.index)
    return plain and inside and all(r.op != "argmax" for r in level.reduces)


def stores_rounded_as_vector(w: CWriter, level: Level) -> dict[Store, Instr]:
    """Stores of consecutive half elements, each with the cast to half that only this store reads."""
    vector = w.kernel.vector
    casts = {i.id: i for i in level.body if i.op == "cast" and i.dtype.is_half and w.dtypes[i.args[0]] == float32}
    for i in level.body:
        for a in i.args:
            casts.pop(a, None)
    for r in level.reduces:
        casts.pop(r.value, None)
    stores = {s: casts[s.value] for s in level.stores if s.value in casts}
    for s in stores:
        in_order = w.plan.buffers[s.load.buffer].layout != PAIRS and bool(s.load.index)
        if not in_order or s.load.index[-1].plain != vector or _depends_on(s.load, vector):
            casts.pop(s.value, None)
    return {s: cast for s, cast in stores.items() if s.value in casts}


def _depends_on(load: Load, axis: int | None) -> bool:
    """Does an index other than the last depend on the axis, or is any index computed?"""
    moves = any(a == axis for i in load.index[:-1] for a, _ in i.terms)
    return moves or any(i.value is not None for i in load.index)


def is_padded(w: CWriter, load: Load) -> bool:
    """Is there allocated memory for all 16 lanes at the end of this access?"""
    buffer = w.plan.buffers[load.buffer]
    if not load.index or load.index[-1].plain != w.kernel.vector:
        return False
    if buffer.layout == PANELS:
        return True
    extent = load.shape[-1]
    fits = isinstance(extent, int) and -(-extent // LANES) * LANES * buffer.type.dtype.size <= buffer.bytes
    return buffer.space is Space.WORK and len(load.shape) == 1 and fits


def write_masked_lanes(w: CWriter, level: Level, count: int, simd: str) -> None:
    """Emit all 16 lanes of a level of which only `count` exist."""
    exists = f"l < {count}"
    saved_values = dict(w.values)
    w.emit(simd)
    with w.block(f"for (long l = 0; l < {LANES}; l++)"):
        for i in level.body:
            masked = i.op == "acc" or (i.load is not None and not is_padded(w, i.load))
            if masked:  # a product's missing columns are zero too, so the padding of what it updates stays zero
                value = w.values[i.id] if i.op == "acc" else w.expression(i)
                w.emit(f"const {LOCAL[i.dtype]} v{i.id} = {exists} ? {value} : 0;")
                w.values[i.id] = f"v{i.id}"
            else:
                w.instructions([i])
        for r in level.reduces:
            dtype, lane = w.dtypes[r.value], f"r{r.id}[l]"
            value = f"({exists} ? {w.values[r.value]} : {'0' if r.op == 'sum' else LOWEST[dtype]})"
            w.emit(f"{lane} = {OPS['add' if r.op == 'sum' else 'maximum'](dtype, (lane, value))};")
        for s in level.stores:
            condition = "" if is_padded(w, s.load) else f"if ({exists}) "
            w.emit(f"{condition}{w.element(s.load)} = {w.store_operand(s)};")
    w.values = saved_values
