"""Aligned extents: products of a library are extended to multiples of 16 bytes along the axes that are contiguous.

cuBLASLt chooses its fast kernels for tensor cores only if the extents are aligned, and not only the rows: a product of
50257 columns takes six times as long as one of 50264.  So

    c[m, n] = sum over k of a[m, k] b[k, n]     is computed for rounded up m, n and k

where the memory allows it: the rows of an operand are padded (`leading_dimension.py`), or a few rows follow its last.
Invariant: the padding of an operand is zero, so that the sums over k equal the sums without padding, and the padding of
a result is zero again.  Copies of states are zero there from the beginning; small kernels fill the padding of other
buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from wholestep.compiler.backends.gpu.grids.gemm_library import accumulates_in_place, is_direct, is_library_gemm
from wholestep.compiler.backends.gpu.grids.reductions import schedule_nest
from wholestep.compiler.backends.gpu.grids.row_loads import has_vector_loads, is_padded_row
from wholestep.compiler.backends.gpu.kernel_schedule import Form
from wholestep.compiler.backends.gpu.leading_dimension import ALIGNED, is_aligned_gemm, with_shape
from wholestep.compiler.backends.gpu.strides import stride_of
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import DType, evaluate, float32
from wholestep.compiler.plan.model.bodies import Dot, Nest
from wholestep.compiler.plan.model.kernel import Draft, Index, Instr, Kernel, Level, Load, Space, Store


@dataclass(frozen=True)
class Margin:
    """The padding of a buffer along one dimension, which must be zero: elements `first` to `end` - 1."""

    load: Load
    dimension: int
    first: int
    end: int


def align_extents(draft: Draft) -> Draft:
    """Extends the products of a library, and fills the padding that they read."""
    kernels, margins, written = list(draft.kernels), dict[tuple[int, int], Margin](), set[tuple[int, int]]()
    for k in draft.kernels:
        if is_aligned_gemm(draft, k) and is_library_gemm(draft, k, draft.sizes) and is_direct(draft, k.body):  # type: ignore[arg-type]
            kernels[k.id], operands, results = _extend(draft, k)
            margins |= {(m.load.buffer, m.dimension): m for m in operands}
            written |= {(k.id, m.load.buffer) for m in results}
            draft = _with_slack(draft, (*operands, *results))
    if not margins:
        return draft
    filled = list(_with_fills(draft, kernels, margins, written))
    return replace(draft, kernels=tuple(replace(k, id=n) for n, k in enumerate(filled)))


def _extend(draft: Draft, kernel: Kernel) -> tuple[Kernel, list[Margin], list[Margin]]:
    """A product with aligned extents, and the padding of its operands and of its result."""
    operands, results = list[Margin](), list[Margin]()
    dot = kernel.body
    assert isinstance(dot, Dot)
    for axis in () if dot.batch else (dot.m, dot.n, dot.k):
        extent = kernel.axes[axis]
        if not isinstance(extent, int) or extent % ALIGNED == 0 or not _is_contiguous(dot, axis):
            continue
        end = -(-extent // ALIGNED) * ALIGNED
        (store,) = dot.levels[0].stores
        loads = [_margin(draft, x, axis, extent, end) for x in (dot.a, dot.b, store.load) if _depends(x, axis)]
        # The padding of m and n is computed and discarded, which is free only if no epilogue runs along it; the padding
        # of k adds nothing, since `_with_fills` stores zeros there.
        is_free = len(dot.levels[0].body) == 1 or accumulates_in_place(dot) or not _has_epilogue_along(dot, axis)
        if not is_free or None in loads:
            continue
        margins = [m for m in loads if m is not None]
        operands += [m for m in margins if m.load.buffer != store.load.buffer]
        results += [m for m in margins if m.load.buffer == store.load.buffer]
        dot = _with_shapes(dot, margins)
        axes = tuple(end if a == axis else e for a, e in enumerate(kernel.axes))
        kernel = replace(kernel, axes=axes, body=dot)
    return kernel, operands, results


def _is_contiguous(dot: Dot, axis: int) -> bool:
    """Does the library load or store vectors along an axis?"""
    return any(stride_of(x, axis) == 1 for x in (dot.a, dot.b, *dot.stores()))


def _depends(load: Load, axis: int) -> bool:
    return any(a == axis for i in load.index for a, _ in i.terms)


def _has_epilogue_along(dot: Dot, axis: int) -> bool:
    """Does the epilogue read a buffer along an axis?"""
    return any(i.load is not None and _depends(i.load, axis) for i in (*dot.levels[0].row, *dot.levels[0].body))


def _margin(draft: Draft, load: Load, axis: int, extent: int, end: int) -> Margin | None:
    """The padding of an operand along an axis; None if it has none and cannot have any."""
    buffer, dimensions = draft.buffers[load.buffer], [d for d, i in enumerate(load.index) if i.plain == axis]
    if len(dimensions) != 1 or buffer.space not in (Space.ARENA, Space.COPY) or buffer.is_part or buffer.transposed:
        return None
    (at,) = dimensions
    length = load.shape[at]
    has_room = isinstance(length, int) and length >= end and at == len(load.shape) - 1
    may_grow = at == 0 and len(load.shape) == 2 and load.shape[1] == buffer.type.shape[-1] and length in (extent, end)
    return Margin(load, at, extent, end) if has_room or may_grow else None


def _with_shapes(dot: Dot, margins: list[Margin]) -> Dot:
    """The product with the extended shapes of the operands that have more rows."""
    ends = {m.load.buffer: m.end for m in margins if m.dimension == 0}

    def extend(load: Load) -> Load:
        return replace(load, shape=(ends[load.buffer], *load.shape[1:])) if load.buffer in ends else load

    (level,) = dot.levels
    body = tuple(i if i.load is None else replace(i, load=extend(i.load)) for i in level.body)
    stores = tuple(replace(s, load=extend(s.load)) for s in level.stores)
    return replace(dot, a=extend(dot.a), b=extend(dot.b), levels=(replace(level, body=body, stores=stores),))


def _with_slack(draft: Draft, margins: tuple[Margin, ...]) -> Draft:
    """The draft with room for the rows after the last one of each buffer."""
    buffers = list(draft.buffers)
    for m in margins:
        buffer = buffers[m.load.buffer]
        if m.dimension == 0 and buffer.type.rank == 2 and buffer.type.shape[0] == m.first:
            buffers[buffer.id] = with_shape(draft, buffer, (m.end, buffer.type.shape[1]))
    return replace(draft, buffers=tuple(buffers))


def _with_fills(
    draft: Draft, kernels: list[Kernel], margins: Mapping[tuple[int, int], Margin], written: set[tuple[int, int]]
) -> Iterator[Kernel]:
    """The kernels; a kernel that does not write the padding of its result is followed by a kernel that does."""
    for k in kernels:
        yield k
        for id in dict.fromkeys(x.buffer for x in k.body.stores()):
            if (k.id, id) in written or draft.buffers[id].space is not Space.ARENA or _zeroes_padding(draft, k, id):
                continue
            for margin in (m for (buffer, _), m in margins.items() if buffer == id):
                yield _fill(margin, draft.buffers[id].type.dtype, k)


def _zeroes_padding(draft: Draft, kernel: Kernel, buffer: int) -> bool:
    """Does a kernel store the last vector of each row together with its padding?"""
    nest = kernel.body
    if not isinstance(nest, Nest) or nest.vector is None:
        return False
    schedule, length, dtype = schedule_nest(draft, kernel), kernel.axes[nest.vector], draft.buffers[buffer].type.dtype
    if schedule.form == Form.ELEMENTS and evaluate(kernel.axes[0], draft.sizes) <= costs_of(draft).fusion.rows:
        return False  # in a chain of rows, its elements are stored one by one
    return schedule.form in (Form.ELEMENTS, Form.ROWS) and all(
        is_padded_row(draft, x, nest.vector, length) and has_vector_loads(x, dtype, nest.vector, schedule.vector)
        for x in nest.stores()
        if x.buffer == buffer
    )


def _fill(margin: Margin, dtype: DType, after: Kernel) -> Kernel:
    """A kernel that stores zeros in the padding."""
    shape, at = margin.load.shape, margin.dimension
    lengths = tuple(margin.end - margin.first if d == at else e for d, e in enumerate(shape))
    if at == 0:
        shape = (margin.end, *shape[1:])
    index = tuple(Index(((d, 1),), margin.first if d == at else 0) for d in range(len(shape)))
    zero = Instr(0, "const", float32, const=0.0)
    body = (zero,) if dtype == float32 else (zero, Instr(1, "cast", dtype, (0,)))
    level = Level(body=body, stores=(Store(Load(margin.load.buffer, shape, index), body[-1].id),))
    last = len(shape) - 1
    return replace(after, axes=lengths, body=Nest(tuple(range(last)), last, (level,)), origin=("zero padding",))
