"""What a plan is made of: plain frozen data, no source and no machine code.

A kernel is a loop nest over its `axes`.  Inside, values are instructions with small integer ids; loads and stores
address buffers by one index per dimension, affine in the kernel's axes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from wholestep.compiler.ir.attrs import Initializer
from wholestep.compiler.ir.types import DType, Extent, Shape, TensorType, evaluate, transpose_type
from wholestep.records import dataclass

if TYPE_CHECKING:
    from wholestep.compiler.plan.model.bodies import Body

POOL_AXES = (4, 5)  # of a kernel with a pool behind a convolution: row and column in the pool's window
VERSION = 5  # of plans: changes whenever an older one cannot be read


class Space(enum.Enum):
    """Where a buffer lives."""

    STATE = "state"  # owned by the State, shared by all entry points
    INPUT = "input"  # the caller's array
    OUTPUT = "output"  # read by the caller after the step
    CONSTANT = "constant"  # arrays that belong to the program
    ARENA = "arena"  # alive within one step; bytes are shared over time
    COPY = "copy"  # a second stored form of a state, half as wide or transposed, rewritten by whoever updates it
    WORK = "work"  # private to a thread, alive within one row or block of a kernel


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory: in dense rows, or its matrices in blocks of columns, [..., columns/n][rows][n]."""

    ROWS: ClassVar[Layout]
    name: str = "rows"  # for people
    columns: int = 0  # of a block; 0: dense rows, the last axis contiguous
    rows: int = 1  # that lie side by side in a block: [..., columns/n][rows/m][n][m]


Layout.ROWS = Layout()


@dataclass(frozen=True)
class Buffer:
    id: int
    name: str  # the user's name, or "" for intermediates
    type: TensorType
    space: Space
    layout: Layout
    bytes: int  # at capacity, padding included
    offset: int = 0  # in its segment: the arena, the copies, or a thread's workspace; decided by the schedule
    source: int | None = None  # of a COPY: its state
    turned: bool = False  # is a COPY its state's transpose, a STATE that of what the user sees?
    by_columns: bool = False  # of a STATE: was it declared so, wherever it is stored?
    parts: int = 0  # of a STATE: how many ranks hold a part of it each; `type` is that of a part, and
    whole: Shape = ()  # the shape is this one as the user sees it
    split: tuple[int, ...] = ()  # of a STATE: how ranks divide it that divide layers, a `parts.Cut`
    first: int = 0  # the first and last kernel that touches it
    last: int = 0

    @property
    def shown(self) -> TensorType:
        """The type as the user sees it, who does not see that a state is turned, or divided among ranks."""
        if self.is_part:
            return TensorType(self.whole, self.type.dtype)
        return self.held

    @property
    def is_part(self) -> bool:
        """Of a STATE: has each of several ranks a part of it?"""
        return bool(self.parts or self.split)

    @property
    def held(self) -> TensorType:
        """The type of what one rank has, as it was declared and not as it is stored."""
        return transpose_type(self.type) if self.turned and self.space is Space.STATE else self.type


@dataclass(frozen=True)
class Index:
    """offset + sum of coefficient * axis (+ a computed value, clamped into the dimension), divided by `over`.

    Only stores have axes and a value together: the place behind a computed start, where what lies outside is dropped.
    """

    terms: tuple[tuple[int, Extent], ...] = ()
    offset: Extent = 0
    value: int | None = None
    over: int = 1

    @staticmethod
    def axis(a: int) -> Index:
        return Index(((a, 1),))

    @property
    def is_behind_start(self) -> bool:
        return self.value is not None and bool(self.terms)

    @property
    def plain(self) -> int | None:
        """The axis this index is, or None."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and self.offset == 0 and self.value is None:
            return self.terms[0][0] if self.over == 1 else None
        return None


@dataclass(frozen=True)
class Guard:
    """lo <= index < hi."""

    index: Index
    lo: Extent
    hi: Extent


@dataclass(frozen=True)
class Load:
    """An element of a buffer.  `shape` is the buffer's own, or another of as many elements (a reshape, ROWS only)."""

    buffer: int
    shape: Shape
    index: tuple[Index, ...]


@dataclass(frozen=True)
class Instr:
    """One value.  `op` is a pointwise op of the IR or one of:

    load      an element; where a guard fails, the value `fill` instead
    const     a literal
    scalar    slot `slot` of the scalar prologue
    index     the value of `index`, an integer
    random    the uniform number of element `index` under `key`
    acc       the dot product of a contraction kernel, the pixel of a window kernel
    position  where in its window a pool found its maximum
    """

    id: int
    op: str
    dtype: DType
    args: tuple[int, ...] = ()
    load: Load | None = None
    guards: tuple[Guard, ...] = ()
    fill: int | None = None
    const: float = 0.0
    slot: int = 0
    index: Index | None = None
    key: int = 0


@dataclass(frozen=True)
class Store:
    load: Load  # where
    value: int


@dataclass(frozen=True)
class Reduce:
    """sum, max or argmax of `value` along the stage's reduced axis; `id` is the result."""

    id: int
    op: str
    value: int
    dtype: DType


@dataclass(frozen=True)
class Level:
    """One pass over a row: first what the row needs once, then a loop over the vector axis."""

    row: tuple[Instr, ...] = ()
    row_stores: tuple[Store, ...] = ()
    body: tuple[Instr, ...] = ()
    stores: tuple[Store, ...] = ()
    reduces: tuple[Reduce, ...] = ()
    sums: tuple[Store, ...] = ()  # added up over rows: the first axis of where it goes is the part of the rows


@dataclass(frozen=True)
class Operand:
    """What a routine reads or writes: `load` is the element where the routine's own `axes` begin, in their order."""

    name: str
    load: Load
    axes: tuple[int, ...]


class Kind(enum.Enum):
    NEST = "nest"  # rows, then levels of loops over the vector axis
    COLUMNS = "columns"  # sums along an outer axis, then one loop over the vector axis
    DOT = "dot"  # a contraction and a pointwise epilogue; then column sums of its right operand, and theirs
    SCATTER = "scatter"
    CALL = "call"  # an op with a native routine of its own
    WINDOW = "window"  # a convolution, a pool or an adjoint, and a pointwise epilogue
    EXCHANGE = "exchange"  # a collective: what ranks tell each other
    LOOP = "loop"  # while planning only: its kernels take its place


@dataclass(frozen=True)
class Schedule:
    """How a backend runs a kernel: a record of the backend's own.  A draft's have this one."""

    tag: ClassVar[str] = "in order"  # in files: the family of targets
    heading: ClassVar[str] = ""  # in reports

    @property
    def text(self) -> str:
        """What a report says of it, below the heading."""
        return ""


@dataclass(frozen=True)
class Kernel:
    """A loop nest over `axes`: what it computes, and how the backend runs it."""

    id: int
    axes: Shape  # extents of the iteration space
    body: Body
    schedule: Schedule = Schedule()
    loop: int | None = None  # the loop over steps that it runs in
    flops: int = 0
    bytes: int = 0  # each distinct buffer read plus written once, at capacity
    origin: tuple[str, ...] = ()  # the nodes it came from, for people

    @property
    def kind(self) -> Kind:
        return self.body.kind

    @property
    def rows(self) -> tuple[int, ...]:
        """The axes looped outside."""
        return self.body.rows

    @property
    def vector(self) -> int | None:
        """The axis looped inside."""
        return self.body.vector

    @property
    def levels(self) -> tuple[Level, ...]:
        return self.body.levels


@dataclass(frozen=True)
class Loop:
    """Kernels next to each other that run once per step; their indices may hold `symbol`, the number of the step."""

    id: int
    symbol: str
    length: Extent
    reverse: bool = False  # from the last step to the first
    barrier: bool = True  # is there a barrier after each step?


@dataclass(frozen=True)
class HostValue:
    """One float64 instruction of the scalar prologue; `slot` where kernels read it, or None."""

    id: int
    op: str  # pointwise ops, or const, scalar (runtime scalar `index`), size (`extent`), cast
    args: tuple[int, ...] = ()
    const: float = 0.0
    index: int = 0
    extent: Extent = 0
    dtype: DType | None = None
    slot: int | None = None


@dataclass(frozen=True)
class Scalar:
    name: str
    default: float


@dataclass(frozen=True)
class Bound:
    """Values of an integer input are used as indices below `size`: checked before anything is written."""

    input: str
    size: Extent
    excused: int | None = None  # a value that is replaced before it is used: the index that a loss ignores
    # The elements meant, where not all are: (start, stop, step) of each axis; below 0 from its end, a stop of 0 at it
    part: tuple[tuple[int, int, int], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Are all elements meant, and all values?"""
        return self.excused is None and not self.part


@dataclass(frozen=True)
class Least:
    """An extent that depends on what a step is given must be `size` or more: checked before anything is written."""

    extent: Extent
    size: int
    why: str
    batch: str = ""  # of a window: the symbol that is cut into parts,
    part: int = 0  # and the rows of each but the last

    def value(self, sizes: Mapping[str, int]) -> int:
        """The extent in a call of these sizes; in a window, in its last part."""
        if self.batch:
            sizes = {**sizes, self.batch: (sizes[self.batch] - 1) % self.part + 1}
        return evaluate(self.extent, sizes)


@dataclass(frozen=True)
class Draft:
    """Everything about an entry point that no device decides: kernels that may run in their order, loops, buffers.

    Buffers lie in dense rows and have no offsets; kernels have no schedules.  A backend makes a plan of it.
    """

    version: int
    target: str
    symbols: tuple[str, ...]
    capacity: tuple[int, ...]  # of each symbol
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    scalars: tuple[Scalar, ...]
    host: tuple[HostValue, ...]
    slots: int  # of the prologue's results
    inputs: tuple[tuple[str, int], ...]  # name -> buffer id
    outputs: tuple[tuple[str, int], ...]
    states: tuple[tuple[str, int], ...]
    initial: tuple[Initializer, ...]  # how each of them gets its first value
    updated: tuple[str, ...]  # names of the states it changes
    bounds: tuple[Bound, ...]
    constants: tuple[tuple[int, bytes], ...]  # buffer id -> its bytes
    param_grad_pairs: tuple[tuple[int, int | None], ...] = ()
    param_buffers: tuple[int, ...] = ()
    loops: tuple[Loop, ...] = ()
    least: tuple[Least, ...] = ()
    divided: str = ""  # the symbol whose rows ranks divide; its capacity is that of one of them
    whole: int = 0  # and that of all of them together
    notes: tuple[str, ...] = field(default=())  # what a reader of the report should know

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.symbols, self.capacity, strict=True))


@dataclass(frozen=True)
class Plan(Draft):
    """A draft that a backend has scheduled: every kernel has its schedule, every buffer its layout and its place."""

    arena_bytes: int = 0
    copy_bytes: int = 0
    work_bytes: int = 0  # a thread
    regions: int = 1  # of kernels, with barriers between them

    @property
    def dispatches(self) -> tuple[Kernel, ...]:
        return self.kernels

    @property
    def loss_buffer(self) -> int | None:
        return self.outputs[0][1] if self.outputs else None

    @property
    def input_buffers(self) -> tuple[tuple[str, int], ...]:
        return self.inputs

    @property
    def flops(self) -> int:
        return sum(k.flops for k in self.kernels)

    @property
    def bytes_moved(self) -> int:
        return sum(k.bytes for k in self.kernels)

    def pointer_buffers(self) -> tuple[Buffer, ...]:
        """The buffers whose addresses are handed to a call, in order."""
        return tuple(b for b in self.buffers if b.space in POINTER_SPACES)


POINTER_SPACES = (Space.STATE, Space.INPUT, Space.OUTPUT, Space.CONSTANT, Space.COPY)
