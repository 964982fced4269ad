"""Which matrices lie in panels: those that contractions read by columns, and those that pass between products.

The draft has every value in dense rows.  A value of the arena gets another layout; one that the caller reads, or that a
loop stacks, keeps its rows and has a second place in the arena, which its readers in the step then read.
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
    """What a buffer holds, or the slice of a stack that a step computes and reads."""

    buffer: int
    own: bool = False  # the step's own slice


@dataclass
class LayoutRequests:
    """What the kernels of a draft ask of each value's layout."""

    draft: Draft
    long_row: int
    read: set[StoredValue] = field(default_factory=set)
    by_columns: set[StoredValue] = field(default_factory=set)  # a contraction reads it by columns
    refused: set[StoredValue] = field(default_factory=set)  # somebody reads it in a way that panels do not have
    between: set[StoredValue] = field(default_factory=set)  # a product's result that is stored whole
    elsewhere: set[StoredValue] = field(default_factory=set)  # somebody reads it in another order than panel by panel

    def __post_init__(self) -> None:
        self.shapes: dict[int, Shape] = {b.id: b.type.shape for b in self.draft.buffers}
        self.slots: dict[tuple[int, int], Index] = {}  # loop, stack -> where a step writes
        for k in self.draft.kernels:
            for load in k.body.stores():
                if self.draft.buffers[load.buffer].space is Space.OUTPUT:
                    self.shapes[load.buffer] = load.shape  # a result is seen in another shape than it is computed in
                if k.loop is not None and _moves(load, self.draft.loops[k.loop].symbol):
                    self.slots[k.loop, load.buffer] = load.index[0]

    def value(self, kernel: Kernel, load: Load) -> StoredValue:
        own = kernel.loop is not None and load.index[:1] == (self.slots.get((kernel.loop, load.buffer)),)
        return StoredValue(load.buffer, own)

    def type(self, value: StoredValue) -> TensorType:
        shape = self.shapes[value.buffer]
        return TensorType(shape[1:] if value.own else shape, self.draft.buffers[value.buffer].type.dtype)

    # -- what each kernel asks for ---------------------------------------------------------------------------------
    def look_at(self, kernel: Kernel) -> None:
        body = kernel.body
        for load, _ in body.reads():
            self.read.add(self.value(kernel, load))
            if load.shape != self.shapes[load.buffer] or any(i.value is not None for i in load.index):
                self.refused.add(self.value(kernel, load))
        if isinstance(body, Dot):
            self.look_at_product(kernel, body)
        elif isinstance(body, Scatter):
            self.refused |= {StoredValue(x.buffer) for x in (body.target, body.updates, body.index)}
        elif isinstance(body, Exchange):
            self.refused |= {self.value(kernel, load) for load in (*body.operands, *body.results)}
        elif isinstance(body, Window):
            self.refused |= {self.value(kernel, o.load) for o in body.operands}
        elif isinstance(body, Call):
            items = (*body.operands, *body.results)
            self.refused |= {self.value(kernel, o.load) for o in items if not keeps_panels(o.load.index, o.axes[-1])}
        self.look_between_products(kernel)

    def look_at_product(self, kernel: Kernel, dot: Dot) -> None:
        for load in (dot.a, dot.b):
            if not load.index or load.index[-1].plain is None:
                self.refused.add(self.value(kernel, load))  # a part of a panel has no stride
        if self.has_panels(dot.b) and _order(dot.b) == [dot.k, dot.n]:
            self.by_columns.add(self.value(kernel, dot.b))
        if self.has_panels(dot.a) and _order(dot.a) == [dot.k, dot.m] and self.is_long(dot.a):
            self.by_columns.add(self.value(kernel, dot.a))

    def has_panels(self, load: Load) -> bool:
        return len(load.index) >= 2 and isinstance(self.shapes[load.buffer][-1], int)

    def is_long(self, load: Load) -> bool:
        """Is each step down a column nearly a page?"""
        columns = self.shapes[load.buffer][-1]
        return isinstance(columns, int) and columns * self.draft.buffers[load.buffer].type.dtype.size >= self.long_row

    def look_between_products(self, kernel: Kernel) -> None:
        """A matrix that a product stores may lie in panels where everybody else walks it so."""
        body = kernel.body
        for load in body.stores():
            if isinstance(body, Dot) and self.is_walked(kernel, load, [body.m, body.n]):
                self.between.add(self.value(kernel, load))
        seen = [(x, axes) for level, axes in zip(body.levels, body.level_axes(), strict=True) for x in _loads(level)]
        operands = [load for load, _ in body.reads()][len(seen) :]
        by_panels = self.walks_panels(kernel)
        out_of_order = [x for x, axes in seen if not (by_panels and self.is_walked(kernel, x, _matrix(kernel, axes)))]
        self.elsewhere |= {self.value(kernel, x) for x in (*operands, *out_of_order)}

    def is_walked(self, kernel: Kernel, load: Load, axes: Sequence[int]) -> bool:
        """Is a value read or written whole, element by element along these axes?"""
        own = self.value(kernel, load).own
        return load.shape == self.shapes[load.buffer] and [i.plain for i in load.index[1 if own else 0 :]] == axes

    def walks_panels(self, kernel: Kernel) -> bool:
        """A product in blocks, a sum in columns, or an update of states that lie in panels."""
        body = kernel.body
        if not isinstance(body, Nest):
            return isinstance(body, Dot | Columns)
        stored = [s.load for level in body.levels for s in level.stores if s.load.shape == kernel.axes]
        updates = any(self.draft.buffers[x.buffer].space is Space.STATE for x in stored)
        return len(kernel.axes) == 2 and updates and not any(level.reduces for level in body.levels)

    # -- what follows ----------------------------------------------------------------------------------------------
    def paneled(self) -> list[StoredValue]:
        asked = sorted(self.by_columns - self.refused, key=lambda v: (v.buffer, v.own))
        found = [v for v in asked if self.is_made(v)]
        passed = [
            v
            for v in sorted((self.between & self.read) - self.elsewhere, key=lambda v: (v.buffer, v.own))
            if v not in found and self.is_made(v, Space.ARENA) and self.is_small_in_panels(v)
        ]
        return found + passed

    def is_made(self, value: StoredValue, *spaces: Space) -> bool:
        return self.draft.buffers[value.buffer].space in (spaces or (Space.ARENA, Space.OUTPUT))

    def is_small_in_panels(self, value: StoredValue) -> bool:
        type, sizes = self.type(value), self.draft.sizes
        dense = layout_bytes(type, Layout.ROWS, sizes)
        return state_layout(type) == PANELS and layout_bytes(type, PANELS, sizes) <= dense


def _moves(load: Load, symbol: str) -> bool:
    """Does a place begin at the number of a loop's step?"""
    return bool(load.index) and not load.index[0].terms and symbol in symbols_of([load.index[0].offset])


def _loads(level: Level) -> list[Load]:
    return [i.load for i in (*level.row, *level.body) if i.load is not None]


def _order(load: Load) -> list[int | None]:
    return [i.plain for i in load.index[-2:]]


def _matrix(kernel: Kernel, axes: tuple[int, ...]) -> list[int]:
    """The rows and columns of a matrix that a level over these axes reads element by element."""
    if isinstance(kernel.body, Columns) and len(kernel.axes) == 2:
        return [kernel.body.reduced, kernel.body.vector]
    if isinstance(kernel.body, Dot) and kernel.body.k in axes:
        return [kernel.body.k, kernel.body.n]
    return list(axes)


def lay_out(draft: Draft, long_row: int) -> Draft:
    """The draft with its states, and what contractions read by columns, in panels."""
    choice = LayoutRequests(draft, long_row)
    for kernel in draft.kernels:
        choice.look_at(kernel)
    buffers = [_with_layout(b, state_layout(b.type), draft) if b.space is Space.STATE else b for b in draft.buffers]
    second: dict[StoredValue, int] = {}  # values with a second place in the arena
    stacks = {stack for _, stack in choice.slots}
    for value in choice.paneled():
        if value.own or buffers[value.buffer].space is Space.OUTPUT:
            second[value] = _add(buffers, choice.type(value), PANELS, draft)
            continue
        buffers[value.buffer] = _with_layout(buffers[value.buffer], PANELS, draft)
        own = StoredValue(value.buffer, own=True)
        if value.buffer in stacks and own in choice.read and own not in second:
            # A step reads what it has computed in rows.
            second[own] = _add(buffers, choice.type(own), Layout.ROWS, draft)
    kernels = [_with_second(k, choice, second) for k in draft.kernels] if second else draft.kernels
    return replace(draft, buffers=tuple(buffers), kernels=tuple(kernels))


def _with_layout(buffer: Buffer, layout: Layout, draft: Draft) -> Buffer:
    return replace(buffer, layout=layout, bytes=layout_bytes(buffer.type, layout, draft.sizes))


def _add(buffers: list[Buffer], type: TensorType, layout: Layout, draft: Draft) -> int:
    id = len(buffers)
    buffers.append(Buffer(id, "", type, Space.ARENA, layout, layout_bytes(type, layout, draft.sizes)))
    return id


def _with_second(kernel: Kernel, choice: LayoutRequests, second: dict[StoredValue, int]) -> Kernel:
    """The kernel reading values in their second places, and storing them there too, first."""

    def place(load: Load) -> Load:
        value = choice.value(kernel, load)
        if value not in second:
            return load
        skipped = 1 if value.own else 0
        return Load(second[value], load.shape[skipped:], load.index[skipped:])

    def stores(store: Store) -> list[Store]:
        there = place(store.load)
        return [store] if there is store.load else [Store(there, store.value), store]

    stored = {id(s.load) for level in kernel.levels for s in (*level.row_stores, *level.stores)}
    body = with_loads(kernel.body, lambda load: load if id(load) in stored else place(load))
    return replace(kernel, body=with_stores(body, stores))
