"""Leading dimension padding: rows of GEMM operands are padded so that cuBLASLt can use 16-byte loads.

GPT-2's logits over 50257 tokens in half precision have rows of an odd number of elements, for which the library has
slower kernels only.  Their buffer gets rows of 50304 elements, of which the last 47 are never read; all addresses
follow, because they are computed from shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wholestep.compiler.backends.gpu.grids.gemm_library import is_direct, is_library_gemm
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.plan.lower.rewrite_loads import with_loads
from wholestep.compiler.plan.model.bodies import Columns, Dot, Nest
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Load, Space
from wholestep.compiler.plan.model.layout import layout_bytes

NEEDED = 16  # bytes: row alignment that the library's fast kernels require


def pad_leading_dimensions(draft: Draft) -> Draft:
    """Pads the rows of library operands, if every kernel that accesses the buffer addresses it by rows."""
    pitches = _pitches(draft)
    if not pitches:
        return draft

    def pad_shape(load: Load) -> Load:
        if load.buffer not in pitches:
            return load
        return replace(load, shape=(*load.shape[:-1], pitches[load.buffer]))

    buffers = list(draft.buffers)
    for id, pitch in pitches.items():
        type = TensorType((*buffers[id].type.shape[:-1], pitch), buffers[id].type.dtype)
        buffers[id] = replace(buffers[id], type=type, bytes=layout_bytes(type, buffers[id].layout, draft.sizes))
    kernels = tuple(replace(k, body=with_loads(k.body, pad_shape)) for k in draft.kernels)
    lengths = " and ".join(
        sorted({f"{draft.buffers[id].type.shape[-1]} to {pitch} elements" for id, pitch in pitches.items()})
    )
    alignment = costs_of(draft).gemm.row_alignment
    note = f"rows of library GEMM operands are padded to multiples of {alignment} bytes: {lengths}"
    return replace(draft, buffers=tuple(buffers), kernels=kernels, notes=(*draft.notes, note))


def _pitches(draft: Draft) -> dict[int, int]:
    """Buffer -> elements per padded row."""
    accesses: dict[int, list[tuple[Kernel, Load]]] = {}
    for k in draft.kernels:
        for load in (*(x for x, _ in k.body.reads()), *k.body.stores()):
            accesses.setdefault(load.buffer, []).append((k, load))
    pitches, costs = {}, costs_of(draft).gemm
    for id in sorted(_half_gemm_operands(draft)):
        buffer = draft.buffers[id]
        columns = buffer.type.shape[-1] if buffer.type.rank > 1 else 0
        size = buffer.type.dtype.size
        if buffer.space is not Space.ARENA or not isinstance(columns, int) or columns < costs.padded_columns:
            continue
        by_rows = all(isinstance(k.body, Dot | Nest | Columns) and x.shape[-1:] == (columns,) for k, x in accesses[id])
        if columns * size % NEEDED and by_rows:
            pitches[id] = -(-columns * size // costs.row_alignment) * costs.row_alignment // size
    return _consistent_pairs(draft, pitches)


def _half_gemm_operands(draft: Draft) -> set[int]:
    """Half-precision operands and results of library GEMMs."""
    operands: set[int] = set()
    for k in draft.kernels:
        dot = k.body
        is_half = isinstance(dot, Dot) and draft.buffers[dot.a.buffer].type.dtype.is_half
        if isinstance(dot, Dot) and is_half and is_library_gemm(draft, k, draft.sizes):
            operands |= {dot.a.buffer, dot.b.buffer}
            if is_direct(draft, dot):
                operands |= {load.buffer for load in dot.stores()}
    return {id for id in operands if draft.buffers[id].type.dtype.is_half}


def _consistent_pairs(draft: Draft, pitches: Mapping[int, int]) -> dict[int, int]:
    """Drops paddings that would prevent in-place reuse: both buffers of an in-place pair are padded, or neither."""
    result = dict(pitches)
    pairs = [
        (x.buffer, y.buffer)
        for k in draft.kernels
        if isinstance(k.body, Nest)
        for x, _ in k.body.reads()
        for y in k.body.stores()
        if x.buffer in pitches or y.buffer in pitches
    ]
    inplace_pairs = {
        pair
        for pair in pairs
        if len({draft.buffers[id].type for id in pair}) == 1
        and all(draft.buffers[id].space is Space.ARENA for id in pair)
    }
    while (
        unpaired := {id for pair in inplace_pairs for id in pair if len({other in result for other in pair}) == 2}
        & result.keys()
    ):
        result = {id: pitch for id, pitch in result.items() if id not in unpaired}
    return result
