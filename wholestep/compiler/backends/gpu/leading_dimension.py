"""Leading dimension padding: rows of GEMM operands are padded so that a library can use 16-byte loads.

GPT-2's half-precision logits over 50257 tokens have rows of an odd number of elements, for which the library has only
slow kernels.  Their buffer gets rows of 50304 elements; addresses need no change, since they are computed from shapes.
A buffer is padded if only kernels of the plan access it, and only by its rows: values in the arena, and half-precision
copies of states.  `aligned_extents.py` then rounds up the extents of the products, which should be aligned too.
"""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.backends.gpu.cost_model import GemmCosts
from wholestep.compiler.backends.gpu.strides import stride_of
from wholestep.compiler.backends.gpu.target import costs_of, target_of
from wholestep.compiler.ir.types import TensorType, float32
from wholestep.compiler.plan.lower.rewrite_loads import with_loads
from wholestep.compiler.plan.model.bodies import Columns, Dot, Nest
from wholestep.compiler.plan.model.kernel import Buffer, Draft, Kernel, Load, Space
from wholestep.compiler.plan.model.layout import layout_bytes

ALIGNED = 8  # elements of a half type in 16 bytes, the alignment that the library's fast kernels require


def pad_leading_dimensions(draft: Draft) -> Draft:
    """Pads the rows of GEMM operands, if every kernel that accesses the buffer addresses it by rows."""
    pitches = _pitches(draft)
    if not pitches:
        return draft

    def pad_shape(load: Load) -> Load:
        if load.buffer not in pitches:
            return load
        return replace(load, shape=(*load.shape[:-1], pitches[load.buffer]))

    buffers = list(draft.buffers)
    for id, pitch in pitches.items():
        *rows, columns = buffers[id].type.shape
        assert isinstance(columns, int), "padded rows have a static length"
        buffers[id] = replace(with_shape(draft, buffers[id], (*rows, pitch)), columns=columns)
    kernels = tuple(replace(k, body=with_loads(k.body, pad_shape)) for k in draft.kernels)
    lengths = sorted({(draft.buffers[id].type.shape[-1], pitch) for id, pitch in pitches.items()}, key=str)
    listed = " and ".join(f"{columns} to {pitch} elements" for columns, pitch in lengths)
    note = f"rows of library GEMM operands are padded to multiples of 16 bytes: {listed}"
    return replace(draft, buffers=tuple(buffers), kernels=kernels, notes=(*draft.notes, note))


def with_shape(draft: Draft, buffer: Buffer, shape: tuple[object, ...]) -> Buffer:
    """The buffer with another shape."""
    type = TensorType(shape, buffer.type.dtype)  # type: ignore[arg-type]
    return replace(buffer, type=type, bytes=layout_bytes(type, buffer.layout, draft.sizes))


def is_aligned_gemm(draft: Draft, kernel: Kernel) -> bool:
    """Does a product profit from aligned rows?  It does if tensor cores compute it and it is not in a loop."""
    dot = kernel.body
    if not isinstance(dot, Dot) or kernel.loop is not None or len(dot.levels) > 1:
        return False
    a, b = (draft.buffers[x.buffer].type.dtype for x in (dot.a, dot.b))
    return a == b and (a.is_half or (a == float32 and target_of(draft).tf32))


def _pitches(draft: Draft) -> dict[int, int]:
    """Buffer -> elements per padded row, from shapes alone: it does not depend on the capacity."""
    accesses: dict[int, list[tuple[Kernel, Load]]] = {}
    for k in draft.kernels:
        for load in (*(x for x, _ in k.body.reads()), *k.body.stores()):
            accesses.setdefault(load.buffer, []).append((k, load))
    costs, pitches = costs_of(draft).gemm, dict[int, int]()
    for id in sorted(_gemm_operands(draft)):
        pitch = _pitch(draft.buffers[id], costs)
        if pitch and _is_addressed_by_rows(draft.buffers[id], accesses[id]):
            pitches[id] = pitch
    pending, neighbours = list(pitches), _neighbours(draft)
    while pending:
        id = pending.pop()
        for other in neighbours.get(id, ()):
            if other not in pitches and _is_addressed_by_rows(draft.buffers[other], accesses[other]):
                pitches[other] = pitches[id]
                pending.append(other)
    return pitches


def _pitch(buffer: Buffer, costs: GemmCosts) -> int:
    """Elements of a padded row; 0 if rows are already aligned, or too short for padding to pay off."""
    columns = buffer.type.shape[-1] if buffer.type.rank > 1 else 0
    if not isinstance(columns, int) or columns % ALIGNED == 0 or columns < costs.padded_columns:
        return 0
    line = costs.row_alignment // buffer.type.dtype.size
    unit = line if columns >= costs.long_row else ALIGNED
    return -(-columns // unit) * unit


def _is_addressed_by_rows(buffer: Buffer, accesses: list[tuple[Kernel, Load]]) -> bool:
    """Do our kernels address the buffer by rows only, so that any leading dimension is valid?"""
    if buffer.is_part or buffer.transposed or buffer.space not in (Space.ARENA, Space.COPY):
        return False
    columns = buffer.type.shape[-1:]
    if buffer.type.shape[-2:] == (1, 1):  # the weight of a 1x1 convolution: its rows are along another axis
        return False
    return all(isinstance(k.body, Dot | Nest | Columns) and x.shape[-1:] == columns for k, x in accesses)


def _gemm_operands(draft: Draft) -> set[int]:
    """The operands and the result of a product that are contiguous along one of the product's axes."""
    operands: set[int] = set()
    for k in draft.kernels:
        if is_aligned_gemm(draft, k):
            dot = k.body
            assert isinstance(dot, Dot)
            axes = (dot.m, dot.n, dot.k)
            loads = (dot.a, dot.b, *dot.stores())
            operands |= {x.buffer for x in loads if any(stride_of(x, a) == 1 for a in axes)}
    return operands


def _neighbours(draft: Draft) -> dict[int, set[int]]:
    """Groups of buffers to pad alike: buffers of one nest that may share bytes, or whose long rows the nest reads."""
    least, neighbours = costs_of(draft).reductions.warp_row // 4, dict[int, set[int]]()
    for nest in (k.body for k in draft.kernels if isinstance(k.body, Nest)):
        accesses = {x.buffer for x in (*(load for load, _ in nest.reads()), *nest.stores())}
        types = {id: draft.buffers[id].type for id in accesses if draft.buffers[id].type.rank > 1}
        for id, type in types.items():
            columns = type.shape[-1]
            is_long = isinstance(columns, int) and columns >= least
            neighbours.setdefault(id, set()).update(
                other for other, t in types.items() if t == type or (is_long and t.shape[-1] == columns)
            )
    return neighbours
