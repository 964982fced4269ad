"""Ownership analysis: which dimension of a buffer each kernel axis traverses, hence which thread owns which elements.

The range of an axis that a thread owns is one function of (extent, granule, thread), the same for every kernel.  Two
kernels that access the same buffer need no barrier between them if both are split along the same dimension of it, or
along the outermost dimension of two views in which a granule has equally many elements: then each element is accessed
by only one thread, in program order.  `free` implements this rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.backends.cpu.kernel_schedule import Tiles, schedule_of
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.ir.types import Dim, Extent, product
from wholestep.compiler.plan.io.traffic import loads, stores
from wholestep.compiler.plan.model.bodies import Scatter
from wholestep.compiler.plan.model.kernel import Buffer, Index, Kernel, Kind, Layout, Load, Space


def granule(extent: Extent) -> int:
    """The unit of ownership, in steps of the axis; a function of the extent alone.

    Rows of a batch are owned one by one: eight images can occupy eight threads.  An extent of 64*batch is partitioned
    as batch is, in units of 64 rows, so a reshape between the two changes no owner.
    """
    if not isinstance(extent, Dim):
        return LANES
    return max(1, extent.terms[0][1]) if len(extent.terms) == 1 else 1


def kernel_granule(kernel: Kernel, axis: int) -> int:
    """The unit in which an axis of a kernel is partitioned, in steps of the axis."""
    return native_granule(kernel) or granule(kernel.axes[axis])


def native_granule(kernel: Kernel) -> int:
    """The unit that the kernel's native code requires, or 0 if it requires none."""
    inner = schedule_of(kernel).inner
    return inner.granule if isinstance(inner, Tiles) else 0


def shared_accesses(accesses: Sequence[Load], buffers: Sequence[Buffer]) -> list[Load]:
    return [a for a in accesses if buffers[a.buffer].space is not Space.WORK]


# How a kernel's split axis traverses a buffer: along one of its dimensions, or linearly in runs of n elements.
Traversal = tuple[str, Extent]


class KernelAccesses:
    """The buffers a kernel reads and writes, and along which dimensions each of its axes traverses them."""

    def __init__(self, kernel: Kernel, buffers: Sequence[Buffer]) -> None:
        self.kernel = kernel
        self.reads = shared_accesses(list(loads(kernel)), buffers)
        self.writes = shared_accesses(list(stores(kernel)), buffers)
        self.read_ids = {a.buffer for a in self.reads}
        self.written_ids = {a.buffer for a in self.writes}
        self.by_buffer: dict[int, list[Load]] = {}
        for a in (*self.reads, *self.writes):
            self.by_buffer.setdefault(a.buffer, []).append(a)
        self.buffers = buffers
        self.walks: dict[tuple[int, int], frozenset[Traversal]] = {}

    def traversals(self, axis: int, buffer: int) -> frozenset[Traversal]:
        """The traversals common to all accesses to the buffer: this axis alone covers it from end to end."""
        key = (axis, buffer)
        if key not in self.walks:
            ways = [self.traversals_by_load(axis, load) for load in self.by_buffer[buffer]]
            self.walks[key] = frozenset.intersection(*ways)
        return self.walks[key]

    def traversals_by_load(self, axis: int, load: Load) -> frozenset[Traversal]:
        buffer, extent = self.buffers[load.buffer], self.kernel.axes[axis]
        shape, traversals = buffer.type.shape, set[Traversal]()
        if unit := native_granule(self.kernel):  # a native routine with its own unit of work
            dims = [d for d, i in enumerate(load.index) if i.plain == axis and load.shape == shape]
            return frozenset((f"dimension in {unit}s", d) for d in dims)
        for d, index in enumerate(load.index):
            if index.is_behind_start and index.terms == ((axis, 1),):
                traversals.add(("from a start", d))  # one start for all rows; no other kernel accesses the state
            stride = self.stride(axis, index)
            if stride is not None and load.shape[d] == stride * extent:
                if shape[: d + 1] == load.shape[: d + 1] and granule(load.shape[d]) == stride * granule(extent):
                    traversals.add(("dimension", d))
                if d == 0 and buffer.layout == Layout.ROWS:
                    traversals.add(("granules of", product(load.shape[1:]) * stride * granule(extent)))
        return frozenset(traversals)

    def stride(self, axis: int, index: Index) -> Extent | None:
        """The elements of a dimension per step of the axis, or None if steps overlap or are not affine."""
        stride = dict(index.terms).get(axis)
        if index.plain == axis or stride is None or index.value is not None or index.over != 1:
            return stride if index.plain == axis else None
        last = index.offset
        for a, c in index.terms:
            last = last + (c * (self.kernel.axes[a] - 1) if a != axis else 0)
        forward = all(isinstance(e, int) and e >= 0 for e in (index.offset, *(c for a, c in index.terms if a != axis)))
        inside = last < stride if isinstance(last, int) and isinstance(stride, int) else last == stride - 1
        return stride if forward and inside else None

    def options(self) -> list[int | None]:
        """The axes that can be partitioned: every thread then writes results that no other thread writes.

        Reduced axes are never among them: partial sums per thread would make the order of a sum depend on their number.
        """
        k = self.kernel
        inner = [] if k.vector is None else [k.vector]
        if k.kind is Kind.NEST and (any(level.reduces or level.row_stores for level in k.levels)):
            inner = []
        candidates = [*k.rows, *inner]
        if isinstance(k.body, Scatter):
            candidates = [a for a in range(len(k.axes)) if a not in k.body.over]
        if k.kind is Kind.WINDOW:
            candidates = window_axes(k)
        useful = [a for a in candidates if k.axes[a] != 1 and all(self.traversals(a, b) for b in self.written_ids)]
        return list(useful) or [None]


def window_axes(kernel: Kernel) -> list[int]:
    """The axes of a window kernel that can be partitioned: images, or a weight's outputs; of GEMMs also channels."""
    inner = schedule_of(kernel).inner
    return [0, 3] if isinstance(inner, Tiles) and inner.images else [0]


def needs_no_barrier(u: KernelAccesses, su: int | None, v: KernelAccesses, sv: int | None, buffer: int) -> bool:
    """Is no barrier needed between two kernels with splits su and sv, as far as this buffer is concerned?"""
    if su is None or sv is None:
        return su is None and sv is None  # unsplit kernels both run on the first thread
    return bool(u.traversals(su, buffer) & v.traversals(sv, buffer))
