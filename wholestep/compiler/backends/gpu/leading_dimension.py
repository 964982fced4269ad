"""Rows of a library's products begin where it can read 16 bytes at a time: it has slower kernels for those that do not.

The scores over GPT-2's 50257 tokens in half precision have rows of an odd number of elements.  Their buffer gets rows
of 50304, of which nobody reads the last 47; the places of all kernels follow, since they are computed from shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wholestep.compiler.backends.cuda.libraries.gemm_library import is_direct, takes
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.plan.lower.rewrite_loads import with_loads
from wholestep.compiler.plan.model.bodies import Columns, Dot, Nest
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Load, Space
from wholestep.compiler.plan.model.layout import layout_bytes

NEEDED = 16  # bytes: where rows begin that a library reads fast
CHOSEN = 128  # where others are made to begin: a line of the cache
LEAST_COLUMNS = 1024  # of rows that grow by little


def align_rows(draft: Draft) -> Draft:
    """The draft with such rows, where everybody who touches them goes by rows."""
    pitches = _pitches(draft)
    if not pitches:
        return draft

    def change(load: Load) -> Load:
        if load.buffer not in pitches:
            return load
        return replace(load, shape=(*load.shape[:-1], pitches[load.buffer]))

    buffers = list(draft.buffers)
    for id, pitch in pitches.items():
        type = TensorType((*buffers[id].type.shape[:-1], pitch), buffers[id].type.dtype)
        buffers[id] = replace(buffers[id], type=type, bytes=layout_bytes(type, buffers[id].layout, draft.sizes))
    kernels = tuple(replace(k, body=with_loads(k.body, change)) for k in draft.kernels)
    lengths = " and ".join(sorted({f"{draft.buffers[id].type.shape[-1]}, as {pitch}" for id, pitch in pitches.items()}))
    note = f"rows that a library multiplies begin at multiples of {CHOSEN} bytes: those of {lengths}"
    return replace(draft, buffers=tuple(buffers), kernels=kernels, notes=(*draft.notes, note))


def _pitches(draft: Draft) -> dict[int, int]:
    """Buffer -> the elements of its rows, with those that nobody reads."""
    places: dict[int, list[tuple[Kernel, Load]]] = {}
    for k in draft.kernels:
        for load in (*(x for x, _ in k.body.reads()), *k.body.stores()):
            places.setdefault(load.buffer, []).append((k, load))
    found = {}
    for id in sorted(_half_gemm_operands(draft)):
        buffer = draft.buffers[id]
        columns = buffer.type.shape[-1] if buffer.type.rank > 1 else 0
        size = buffer.type.dtype.size
        if buffer.space is not Space.ARENA or not isinstance(columns, int) or columns < LEAST_COLUMNS:
            continue
        by_rows = all(isinstance(k.body, Dot | Nest | Columns) and x.shape[-1:] == (columns,) for k, x in places[id])
        if columns * size % NEEDED and by_rows:
            found[id] = -(-columns * size // CHOSEN) * CHOSEN // size
    return _in_pairs(draft, found)


def _half_gemm_operands(draft: Draft) -> set[int]:
    """What a library reads and writes in half precision."""
    found: set[int] = set()
    for k in draft.kernels:
        dot = k.body
        if isinstance(dot, Dot) and draft.buffers[dot.a.buffer].type.dtype.is_half and takes(draft, k, draft.sizes):
            found |= {dot.a.buffer, dot.b.buffer}
            if is_direct(draft, dot):
                found |= {load.buffer for load in dot.stores()}
    return {id for id in found if draft.buffers[id].type.dtype.is_half}


def _in_pairs(draft: Draft, pitches: Mapping[int, int]) -> dict[int, int]:
    """Without those of which a value that could lie in the same place would have other rows."""
    kept = dict(pitches)
    pairs = [
        (x.buffer, y.buffer)
        for k in draft.kernels
        if isinstance(k.body, Nest)
        for x, _ in k.body.reads()
        for y in k.body.stores()
        if x.buffer in pitches or y.buffer in pitches
    ]
    same = {
        pair
        for pair in pairs
        if len({draft.buffers[id].type for id in pair}) == 1
        and all(draft.buffers[id].space is Space.ARENA for id in pair)
    }
    while odd := {id for pair in same for id in pair if len({other in kept for other in pair}) == 2} & kept.keys():
        kept = {id: pitch for id, pitch in kept.items() if id not in odd}
    return kept
