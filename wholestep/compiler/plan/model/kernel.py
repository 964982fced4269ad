"""The records of a plan: plain frozen data, neither source text nor machine code.

A kernel is a loop nest over its `axes`.  Inside, values are instructions in SSA form with small integer ids; loads and
stores address buffers by one index per dimension, affine in the kernel's axes.
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

POOL_AXES = (4, 5)  # in a convolution with a fused pool: the axes of row and column in the pool's window
VERSION = 5  # version of the plan format: increases whenever older plans cannot be read


class Space(enum.Enum):
    """The memory space of a buffer."""

    STATE = "state"  # owned by the State, shared by all entry points
    INPUT = "input"  # the caller's array
    OUTPUT = "output"  # read by the caller after the step
    CONSTANT = "constant"  # arrays that belong to the program
    ARENA = "arena"  # alive within one step; bytes are shared over time
    COPY = "copy"  # a second stored form of a state, in half precision or transposed; an update writes both
    WORK = "work"  # private to a thread, alive within one row or block of a kernel


@dataclass(frozen=True)
class Layout:
    """Memory layout of a tensor: dense rows, or its matrices in blocks of n columns, [..., columns/n][rows][n]."""

    ROWS: ClassVar[Layout]
    name: str = "rows"  # shown in reports
    columns: int = 0  # n, the columns of a block; 0: dense rows, the last axis contiguous
    rows: int = 1  # m, the rows interleaved in a block: [..., columns/n][rows/m][n][m]


Layout.ROWS = Layout()


@dataclass(frozen=True)
class Buffer:
    id: int
    name: str  # the user's name, or "" for intermediates
    type: TensorType
    space: Space
    layout: Layout
    bytes: int  # size at capacity, padding included
    columns: int = 0  # padded rows only: elements of a row, after which its padding begins
    offset: int = 0  # offset in its segment: the arena, the copies, or a thread's workspace; chosen by the schedule
    source: int | None = None  # COPY only: the id of its state
    transposed: bool = False  # stored transposed: a COPY relative to its state, a STATE relative to its declared type
    by_columns: bool = False  # STATE only: was it declared to be stored by columns (whether or not it is)?
    parts: int = 0  # STATE only: the number of ranks that hold a part each, or 0; `type` is the type of one part
    whole: Shape = ()  # partitioned STATE only: the shape that the user sees
    split: tuple[int, ...] = ()  # STATE of a tensor-parallel layer only: how ranks divide it
    first: int = 0  # the first and last kernel that accesses it: its lifetime
    last: int = 0

    @property
    def user_type(self) -> TensorType:
        """The type that the user sees: neither transposed nor partitioned."""
        if self.is_part:
            return TensorType(self.whole, self.type.dtype)
        return self.part_type

    @property
    def is_part(self) -> bool:
        """Is the buffer a STATE that is partitioned among ranks?"""
        return bool(self.parts or self.split)

    @property
    def part_type(self) -> TensorType:
        """The type of one rank's part, not transposed even if it is stored so."""
        return transpose_type(self.type) if self.transposed and self.space is Space.STATE else self.type


@dataclass(frozen=True)
class Index:
    """offset + sum of coefficient * axis (+ a computed value, clamped into the dimension), divided by `over`.

    Only stores combine axes with a value: the position relative to a computed start; stores out of range are dropped.
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
        """The axis that this index consists of, or None if it is anything else."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and self.offset == 0 and self.value is None:
            return self.terms[0][0] if self.over == 1 else None
        return None


@dataclass(frozen=True)
class Guard:
    """The condition lo <= index < hi."""

    index: Index
    lo: Extent
    hi: Extent


@dataclass(frozen=True)
class Load:
    """The address of an element of a buffer.  `shape` is the buffer's own, or a reshape of it (ROWS layout only)."""

    buffer: int
    shape: Shape
    index: tuple[Index, ...]


@dataclass(frozen=True)
class Instr:
    """One instruction, which defines the value `id`.  `op` is a pointwise op of the IR or one of:

    load      an element; the value `fill` instead if a guard fails
    const     a literal
    scalar    slot `slot` of the scalar prologue
    index     the value of `index`, an integer
    random    the uniform random number of element `index` under `key`
    acc       the dot product of a contraction kernel, the pixel of a window kernel
    position  the position of a pool's maximum in its window
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
    load: Load  # the address that is written
    value: int


@dataclass(frozen=True)
class Reduce:
    """The sum, max or argmax of `value` along the level's reduced axis; it defines the value `id`."""

    id: int
    op: str
    value: int
    dtype: DType


@dataclass(frozen=True)
class Level:
    """One pass over a row: instructions once per row, then a loop over the vector axis, then its reductions."""

    row: tuple[Instr, ...] = ()
    row_stores: tuple[Store, ...] = ()
    body: tuple[Instr, ...] = ()
    stores: tuple[Store, ...] = ()
    reduces: tuple[Reduce, ...] = ()
    sums: tuple[Store, ...] = ()  # partial sums over rows: the first axis of the target is the part of the rows


@dataclass(frozen=True)
class Operand:
    """An operand or result of a routine: `load` is its first element, `axes` are the loops inside the routine."""

    name: str
    load: Load
    axes: tuple[int, ...]


class Kind(enum.Enum):
    NEST = "nest"  # rows, then levels of loops over the vector axis
    COLUMNS = "columns"  # sums along an outer axis, then one loop over the vector axis
    DOT = (
        "dot"  # a contraction and a pointwise epilogue; optionally column sums of its right operand and their epilogue
    )
    SCATTER = "scatter"
    CALL = "call"  # an op that a native routine computes
    WINDOW = "window"  # a convolution, a pool or an adjoint, and a pointwise epilogue
    EXCHANGE = "exchange"  # a collective among ranks
    LOOP = "loop"  # while planning only: replaced by the kernels of its body


@dataclass(frozen=True)
class Schedule:
    """The schedule of a kernel: each backend derives its own record.  Kernels of a draft have this empty one."""

    tag: ClassVar[str] = "in order"  # identifies the family of targets in plan files
    heading: ClassVar[str] = ""  # the column heading in reports

    @property
    def text(self) -> str:
        """The cell below the heading in reports."""
        return ""


@dataclass(frozen=True)
class Kernel:
    """A loop nest over `axes`: `body` is what it computes, `schedule` how the backend runs it."""

    id: int
    axes: Shape  # extents of the iteration space
    body: Body
    schedule: Schedule = Schedule()
    loop: int | None = None  # the id of the loop that contains it
    flops: int = 0
    bytes: int = 0  # each distinct buffer read plus written once, at capacity
    origin: tuple[str, ...] = ()  # labels of the nodes it was lowered from, for reports

    @property
    def kind(self) -> Kind:
        return self.body.kind

    @property
    def rows(self) -> tuple[int, ...]:
        """The axes of the outer loops."""
        return self.body.rows

    @property
    def vector(self) -> int | None:
        """The axis of the innermost loop."""
        return self.body.vector

    @property
    def levels(self) -> tuple[Level, ...]:
        return self.body.levels


@dataclass(frozen=True)
class Loop:
    """Consecutive kernels that run once per iteration; their indices may contain `symbol`, the iteration number."""

    id: int
    symbol: str
    length: Extent
    reverse: bool = False  # does the loop run from the last iteration to the first?
    barrier: bool = True  # is there a barrier after each iteration?


@dataclass(frozen=True)
class HostValue:
    """One float64 instruction of the scalar prologue; `slot` is where kernels read it, None if none does."""

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
    """Values of an integer input are indices and must be below `size`; checked before a step writes anything."""

    input: str
    size: Extent
    excused: int | None = None  # an allowed value that is replaced before its use: the index that a loss ignores
    # The elements that are checked, if not all: (start, stop, step) per axis.  Negative: counted from the end of the
    # axis; a stop of 0: the end itself.
    part: tuple[tuple[int, int, int], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Are all elements checked, and is no value excused?"""
        return self.excused is None and not self.part


@dataclass(frozen=True)
class Least:
    """An extent that depends on a step's inputs must be at least `size`; checked before the step writes anything."""

    extent: Extent
    size: int
    why: str
    batch: str = ""  # accumulation window only: the symbol that is split into micro-batches
    part: int = 0  # accumulation window only: the rows of each micro-batch but the last

    def value(self, sizes: Mapping[str, int]) -> int:
        """The extent in a call of these sizes; in an accumulation window, in its last micro-batch."""
        if self.batch:
            sizes = {**sizes, self.batch: (sizes[self.batch] - 1) % self.part + 1}
        return evaluate(self.extent, sizes)


@dataclass(frozen=True)
class Draft:
    """The target-independent part of a plan: kernels in a valid execution order, loops, buffers.

    Buffers are in dense rows and have no offsets; kernels have no schedules.  A backend turns it into a plan.
    """

    version: int
    target: str
    symbols: tuple[str, ...]
    capacity: tuple[int, ...]  # capacity of each symbol
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    scalars: tuple[Scalar, ...]
    host: tuple[HostValue, ...]
    slots: int  # number of results of the scalar prologue
    inputs: tuple[tuple[str, int], ...]  # name -> buffer id
    outputs: tuple[tuple[str, int], ...]
    states: tuple[tuple[str, int], ...]
    initial: tuple[Initializer, ...]  # initial value of each state
    updated: tuple[str, ...]  # names of the states that the step changes
    bounds: tuple[Bound, ...]
    constants: tuple[tuple[int, bytes], ...]  # buffer id -> its bytes
    param_grad_pairs: tuple[tuple[int, int | None], ...] = ()
    param_buffers: tuple[int, ...] = ()
    loops: tuple[Loop, ...] = ()
    least: tuple[Least, ...] = ()
    divided: str = ""  # the symbol whose rows are divided among ranks; its capacity counts the rows of one rank
    whole: int = 0  # the capacity of all ranks together
    notes: tuple[str, ...] = field(default=())  # remarks shown in the report

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.symbols, self.capacity, strict=True))


@dataclass(frozen=True)
class Plan(Draft):
    """A scheduled draft: every kernel has a schedule, every buffer a layout and an offset."""

    arena_bytes: int = 0
    copy_bytes: int = 0
    work_bytes: int = 0  # bytes of workspace per thread
    regions: int = 1  # groups of kernels, with a barrier between two

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
        """The buffers whose addresses are passed to a call, in order."""
        return tuple(b for b in self.buffers if b.space in POINTER_SPACES)


POINTER_SPACES = (Space.STATE, Space.INPUT, Space.OUTPUT, Space.CONSTANT, Space.COPY)
