"""Layout selection: which matrices are stored in column panels rather than rows.

Panels are for matrices that contractions read by columns, and for those passed from one product to the next.
In the draft every value has dense rows.  A value in the arena simply changes its layout; a value that the caller reads,
or that a loop stacks, keeps its rows and gets a second copy in the arena, which the other kernels of the step read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from wholestep.compiler.backends.cpu.layout.operand_layout import keeps_panels
from wholestep.compiler.backends.cpu.layout.stored_layout import PANELS, state_layout
from wholestep.compiler.ir.types import Shape, TensorType, symbols_of
from wholestep.compiler.plan.lower.rewrite_loads import with_loads, with_stores
from wholestep.compiler.plan.model.bodies import Call, Columns, Dot, Exchange, Nest, Scatter, Window
from wholestep.compiler.plan.model.kernel import Buffer, Draft, Index, Kernel, Layout, Level, Load, Space, Store
from wholestep.compiler.plan.model.layout import layout_bytes


@dataclass(frozen=True)
class StoredValue:
    """The content of a buffer, or the slice of a stacked buffer that a loop iteration computes and reads."""

    buffer: int
    is_slice: bool = False  # only the slice of the current iteration


@dataclass
class LayoutRequests:
    """The requirements of a draft's kernels on the layout of each value."""

    draft: Draft
    long_row: int  # bytes: see `Settings.long_row`
    read: set[StoredValue] = field(default_factory=set)
    by_columns: set[StoredValue] = field(default_factory=set)  # values that a contraction reads by columns
    refused: set[StoredValue] = field(default_factory=set)  # values with an access that cannot be expressed on panels
    between: set[StoredValue] = field(default_factory=set)  # results of products that are stored completely
    # Values that some kernel reads in another order than panel by panel.
    elsewhere: set[StoredValue] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.shapes: dict[int, Shape] = {b.id: b.type.shape for b in self.draft.buffers}
        # (loop, stacked buffer) -> index of the slice that an iteration writes
        self.slots: dict[tuple[int, int], Index] = {}
        for k in self.draft.kernels:
            for load in k.body.stores():
                if self.draft.buffers[load.buffer].space is Space.OUTPUT:
                    self.shapes[load.buffer] = load.shape  # an output may be computed in another shape than the user's
                if k.loop is not None and _is_iteration_slice(load, self.draft.loops[k.loop].symbol):
                    self.slots[k.loop, load.buffer] = load.index[0]

    def value(self, kernel: Kernel, load: Load) -> StoredValue:
        is_slice = kernel.loop is not None and load.index[:1] == (self.slots.get((kernel.loop, load.buffer)),)
        return StoredValue(load.buffer, is_slice)

    def type(self, value: StoredValue) -> TensorType:
        shape = self.shapes[value.buffer]
        return TensorType(shape[1:] if value.is_slice else shape, self.draft.buffers[value.buffer].type.dtype)

    # -- requirements of each kernel -------------------------------------------------------------------------------
    def record_kernel(self, kernel: Kernel) -> None:
        body = kernel.body
        for load, _ in body.reads():
            self.read.add(self.value(kernel, load))
            if load.shape != self.shapes[load.buffer] or any(i.value is not None for i in load.index):
                self.refused.add(self.value(kernel, load))
        if isinstance(body, Dot):
            self.record_product(kernel, body)
        elif isinstance(body, Scatter):
            self.refused |= {StoredValue(x.buffer) for x in (body.target, body.updates, body.index)}
        elif isinstance(body, Exchange):
            self.refused |= {self.value(kernel, load) for load in (*body.operands, *body.results)}
        elif isinstance(body, Window):
            self.refused |= {self.value(kernel, o.load) for o in body.operands}
        elif isinstance(body, Call):
            items = (*body.operands, *body.results)
            self.refused |= {self.value(kernel, o.load) for o in items if not keeps_panels(o.load.index, o.axes[-1])}
        self.record_traversals(kernel)

    def record_product(self, kernel: Kernel, dot: Dot) -> None:
        for load in (dot.a, dot.b):
            if not load.index or load.index[-1].plain is None:
                self.refused.add(self.value(kernel, load))  # a slice of a panel has no constant stride
        if self.has_panels(dot.b) and _matrix_axes(dot.b) == [dot.k, dot.n]:
            self.by_columns.add(self.value(kernel, dot.b))
        if self.has_panels(dot.a) and _matrix_axes(dot.a) == [dot.k, dot.m] and self.is_long(dot.a):
            self.by_columns.add(self.value(kernel, dot.a))

    def has_panels(self, load: Load) -> bool:
        return len(load.index) >= 2 and isinstance(self.shapes[load.buffer][-1], int)

    def is_long(self, load: Load) -> bool:
        """Is the stride down a column so large that reading columns from rows is slow?"""
        columns = self.shapes[load.buffer][-1]
        return isinstance(columns, int) and columns * self.draft.buffers[load.buffer].type.dtype.size >= self.long_row

    def record_traversals(self, kernel: Kernel) -> None:
        """Record products' results that may be stored in panels, and values that some kernel reads in another order."""
        body = kernel.body
        for load in body.stores():
            if isinstance(body, Dot) and self.is_traversed(kernel, load, [body.m, body.n]):
                self.between.add(self.value(kernel, load))
        level_loads = [
            (x, axes) for level, axes in zip(body.levels, body.level_axes(), strict=True) for x in _loads(level)
        ]
        operands = [load for load, _ in body.reads()][len(level_loads) :]
        by_panels = self.iterates_over_panels(kernel)
        out_of_order = [
            x for x, axes in level_loads if not (by_panels and self.is_traversed(kernel, x, _matrix(kernel, axes)))
        ]
        self.elsewhere |= {self.value(kernel, x) for x in (*operands, *out_of_order)}

    def is_traversed(self, kernel: Kernel, load: Load, axes: Sequence[int]) -> bool:
        """Does the access cover the complete value, element by element along these axes?"""
        own = self.value(kernel, load).is_slice
        return load.shape == self.shapes[load.buffer] and [i.plain for i in load.index[1 if own else 0 :]] == axes

    def iterates_over_panels(self, kernel: Kernel) -> bool:
        """Does the kernel iterate panel by panel: a blocked product, a column sum, or an update of paneled states?"""
        body = kernel.body
        if not isinstance(body, Nest):
            return isinstance(body, Dot | Columns)
        stored = [s.load for level in body.levels for s in level.stores if s.load.shape == kernel.axes]
        updates = any(self.draft.buffers[x.buffer].space is Space.STATE for x in stored)
        return len(kernel.axes) == 2 and updates and not any(level.reduces for level in body.levels)

    # -- resulting choice ------------------------------------------------------------------------------------------
    def values_in_panels(self) -> list[StoredValue]:
        requested = sorted(self.by_columns - self.refused, key=lambda v: (v.buffer, v.is_slice))
        chosen = [v for v in requested if self.is_stored_in(v)]
        passed = [
            v
            for v in sorted((self.between & self.read) - self.elsewhere, key=lambda v: (v.buffer, v.is_slice))
            if v not in chosen and self.is_stored_in(v, Space.ARENA) and self.is_small_in_panels(v)
        ]
        return chosen + passed

    def is_stored_in(self, value: StoredValue, *spaces: Space) -> bool:
        return self.draft.buffers[value.buffer].space in (spaces or (Space.ARENA, Space.OUTPUT))

    def is_small_in_panels(self, value: StoredValue) -> bool:
        type, sizes = self.type(value), self.draft.sizes
        dense = layout_bytes(type, Layout.ROWS, sizes)
        return state_layout(type) == PANELS and layout_bytes(type, PANELS, sizes) <= dense


def _is_iteration_slice(load: Load, symbol: str) -> bool:
    """Does the access begin at the loop's iteration number?"""
    return bool(load.index) and not load.index[0].terms and symbol in symbols_of([load.index[0].offset])


def _loads(level: Level) -> list[Load]:
    return [i.load for i in (*level.row, *level.body) if i.load is not None]


def _matrix_axes(load: Load) -> list[int | None]:
    return [i.plain for i in load.index[-2:]]


def _matrix(kernel: Kernel, axes: tuple[int, ...]) -> list[int]:
    """The row and column axes of a matrix that a level over these axes reads element by element."""
    if isinstance(kernel.body, Columns) and len(kernel.axes) == 2:
        return [kernel.body.reduced, kernel.body.vector]
    if isinstance(kernel.body, Dot) and kernel.body.k in axes:
        return [kernel.body.k, kernel.body.n]
    return list(axes)


def choose_layouts(draft: Draft, long_row: int) -> Draft:
    """The draft with states, and values that contractions read by columns, in panels."""
    choice = LayoutRequests(draft, long_row)
    for kernel in draft.kernels:
        choice.record_kernel(kernel)
    buffers = [_with_layout(b, state_layout(b.type), draft) if b.space is Space.STATE else b for b in draft.buffers]
    second: dict[StoredValue, int] = {}  # value -> buffer of its second copy in the arena
    stacks = {stack for _, stack in choice.slots}
    for value in choice.values_in_panels():
        if value.is_slice or buffers[value.buffer].space is Space.OUTPUT:
            second[value] = _add(buffers, choice.type(value), PANELS, draft)
            continue
        buffers[value.buffer] = _with_layout(buffers[value.buffer], PANELS, draft)
        current = StoredValue(value.buffer, is_slice=True)
        if value.buffer in stacks and current in choice.read and current not in second:
            # Within an iteration the slice is read in rows, as it was computed.
            second[current] = _add(buffers, choice.type(current), Layout.ROWS, draft)
    kernels = [_with_second_copies(k, choice, second) for k in draft.kernels] if second else draft.kernels
    return replace(draft, buffers=tuple(buffers), kernels=tuple(kernels))


def _with_layout(buffer: Buffer, layout: Layout, draft: Draft) -> Buffer:
    return replace(buffer, layout=layout, bytes=layout_bytes(buffer.type, layout, draft.sizes))


def _add(buffers: list[Buffer], type: TensorType, layout: Layout, draft: Draft) -> int:
    id = len(buffers)
    buffers.append(Buffer(id, "", type, Space.ARENA, layout, layout_bytes(type, layout, draft.sizes)))
    return id


def _with_second_copies(kernel: Kernel, choice: LayoutRequests, second: dict[StoredValue, int]) -> Kernel:
    """The kernel with loads redirected to the second copies, and an additional store to each of them, first."""

    def redirect(load: Load) -> Load:
        value = choice.value(kernel, load)
        if value not in second:
            return load
        skipped = 1 if value.is_slice else 0
        return Load(second[value], load.shape[skipped:], load.index[skipped:])

    def stores(store: Store) -> list[Store]:
        redirected = redirect(store.load)
        return [store] if redirected is store.load else [Store(redirected, store.value), store]

    stored_loads = {id(s.load) for level in kernel.levels for s in (*level.row_stores, *level.stores)}
    body = with_loads(kernel.body, lambda load: load if id(load) in stored_loads else redirect(load))
    return replace(kernel, body=with_stores(body, stores))
