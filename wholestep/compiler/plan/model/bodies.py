"""What a kernel computes: one class for each kind, which knows what it reads, what it stores and how much work it is.

A body says nothing of the machine: how it is partitioned, blocked or laid out is the kernel's `schedule`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import ClassVar

from wholestep.compiler.ir.attrs import DATA
from wholestep.compiler.ir.types import DType, Extent
from wholestep.compiler.plan.model.kernel import POOL_AXES, Guard, Instr, Kind, Level, Load, Operand
from wholestep.records import dataclass

Read = tuple[Load, tuple[Guard, ...]]  # a place, and the conditions under which it is read

FREE = frozenset({"load", "const", "scalar", "index", "acc", "position", "cast"})  # not counted as arithmetic


class Levels:
    """What bodies made of levels have in common; those without any have no rows, no vector axis and no levels."""

    rows: tuple[int, ...]  # axes looped outside
    vector: int | None  # the axis looped inside
    levels: tuple[Level, ...]

    kind: ClassVar[Kind]

    @property
    def tag(self) -> str:
        """What a file calls it."""
        return self.kind.value

    def level_axes(self) -> list[tuple[int, ...]]:
        """The axes that the body of each level runs over."""
        inner = () if self.vector is None else (self.vector,)
        return [(*self.rows, *inner) for _ in self.levels]

    def reads(self) -> Iterator[Read]:
        """Every place that is read, and under which conditions."""
        for level in self.levels:
            for instr in (*level.row, *level.body):
                if instr.load is not None:
                    yield instr.load, instr.guards

    def stores(self) -> Iterator[Load]:
        """Every place that is written."""
        for level in self.levels:
            for store in (*level.row_stores, *level.stores, *level.sums):
                yield store.load

    def flops(self, extents: Sequence[int]) -> int:
        """Floating-point operations over axes of these extents: one per arithmetic instruction and element."""
        rows, total = prod(extents[a] for a in self.rows), 0
        for level, axes in zip(self.levels, self.level_axes(), strict=True):
            elements = prod(extents[a] for a in axes)
            total += rows * _arithmetic(level.row) + elements * (
                _arithmetic(level.body) + len(level.reduces) + len(level.sums)
            )
        return total


def _arithmetic(instrs: Sequence[Instr]) -> int:
    return sum(i.op not in FREE for i in instrs)


@dataclass(frozen=True)
class Nest(Levels):
    """Loops over `rows`; for each row the levels: passes of a loop over the vector axis, with reductions between."""

    kind: ClassVar[Kind] = Kind.NEST
    rows: tuple[int, ...]
    vector: int | None
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class Columns(Levels):
    """Sums along an outer axis: level 0 adds along `reduced`, level 1 is what follows, element by element."""

    kind: ClassVar[Kind] = Kind.COLUMNS
    rows: tuple[int, ...]
    vector: int
    reduced: int  # the axis summed over
    levels: tuple[Level, ...]

    def level_axes(self) -> list[tuple[int, ...]]:
        sums, *behind = super().level_axes()
        return [(*sums, self.reduced), *behind]


@dataclass(frozen=True)
class Dot(Levels):
    """acc[batch.., m, n] = sum over k of a * b.

    Level 0 is the epilogue of every element.  Two more levels are column sums of the right operand, over (n, k), and
    what follows them, over n.
    """

    kind: ClassVar[Kind] = Kind.DOT
    a: Load
    b: Load
    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    levels: tuple[Level, ...]

    @property
    def rows(self) -> tuple[int, ...]:  # type: ignore[override]
        return (*self.batch, self.m)

    @property
    def vector(self) -> int:  # type: ignore[override]
        return self.n

    def level_axes(self) -> list[tuple[int, ...]]:
        return [(*self.rows, self.n), (self.n, self.k), (self.n,)][: len(self.levels)]

    def reads(self) -> Iterator[Read]:
        yield from super().reads()
        yield from ((self.a, ()), (self.b, ()))

    def flops(self, extents: Sequence[int]) -> int:
        return super().flops(extents) + 2 * prod(extents)

    @property
    def is_direct(self) -> bool:
        """Is the product stored as it is, in one place?"""
        level = self.levels[0]
        return len(level.body) == 1 and len(level.stores) == 1 and not level.row


@dataclass(frozen=True)
class Scatter(Levels):
    """Rows of `updates` added into `target` at `index`, in order; the target is zero before, or stays as it is."""

    kind: ClassVar[Kind] = Kind.SCATTER
    rows: ClassVar = ()  # type: ignore[misc]
    vector: ClassVar = None  # type: ignore[misc]
    levels: ClassVar = ()  # type: ignore[misc]
    target: Load
    updates: Load
    index: Load
    over: tuple[int, ...]  # the kernel's axes that run over the indices
    at: int  # the dimension of the target that is indexed
    onto: bool = False  # is the target not zero before, but what another kernel has left there?

    def reads(self) -> Iterator[Read]:
        yield from ((self.updates, ()), (self.index, ()))
        if self.onto:
            yield self.target, ()

    def stores(self) -> Iterator[Load]:
        yield self.target

    def flops(self, extents: Sequence[int]) -> int:
        return prod(extents)


@dataclass(frozen=True)
class Call(Levels):
    """A routine of the backend, called once for each point of `rows`; it runs over the other axes itself."""

    kind: ClassVar[Kind] = Kind.CALL
    vector: ClassVar = None  # type: ignore[misc]
    levels: ClassVar = ()  # type: ignore[misc]
    routine: str
    dtype: DType
    rows: tuple[int, ...]
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    extents: tuple[tuple[str, Extent], ...] = ()  # under the names that the routine gives them
    numbers: tuple[tuple[str, float], ...] = ()
    work: int = 0  # floating-point operations at capacity

    def reads(self) -> Iterator[Read]:
        yield from ((o.load, ()) for o in self.operands)

    def stores(self) -> Iterator[Load]:
        yield from (o.load for o in self.results)

    def flops(self, extents: Sequence[int]) -> int:
        return self.work


@dataclass(frozen=True)
class Exchange(Levels):
    """Tensors that ranks exchange at once, each from end to end: operand i along axis i, results along the axes behind.

    One thread runs it; the others wait where they need what it brings.
    """

    kind: ClassVar[Kind] = Kind.EXCHANGE
    rows: ClassVar = ()  # type: ignore[misc]
    vector: ClassVar = None  # type: ignore[misc]
    levels: ClassVar = ()  # type: ignore[misc]
    collective: str  # all_reduce, ...
    dtype: DType
    operands: tuple[Load, ...]
    results: tuple[Load, ...]
    axis: str = DATA  # of the grid in which ranks stand

    def reads(self) -> Iterator[Read]:
        yield from ((load, ()) for load in self.operands)

    def stores(self) -> Iterator[Load]:
        yield from self.results

    def flops(self, extents: Sequence[int]) -> int:
        """What is added, with one other rank: the number of them is no part of a plan."""
        adds = self.collective in ("all_reduce", "reduce_scatter")
        return sum(extents[len(self.operands) :]) if adds else 0


@dataclass(frozen=True)
class Window(Levels):
    """A convolution, a pool or an adjoint of one: an op of the IR with channels as the last axis.

    Operands run over axes of their own; those of images have the batch first.  Level 0 is the epilogue of an op that
    makes images, pixel by pixel, with `acc` what the op computes.  Where a pool follows in the same kernel, level 0
    stands before it, over axes of the unpooled pixel, and level 1 behind it.
    """

    kind: ClassVar[Kind] = Kind.WINDOW
    op: str
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...] = ()  # of an op without an epilogue
    levels: tuple[Level, ...] = ()
    stride: tuple[int, ...] = (1, 1)
    low: tuple[int, ...] = (0, 0)  # rows above and columns before an image that count as zero,
    high: tuple[int, ...] = (0, 0)  # and below and behind it
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    pool: tuple[int, ...] = ()  # the window of a pool: behind a convolution, or before its adjoint
    middle: tuple[int, ...] = ()  # rows and columns between a convolution and that pool
    pooled: int | None = None  # the value of level 0 that a pool in this kernel takes the maximum of
    work: int = 0  # floating-point operations of the op at capacity

    @property
    def rows(self) -> tuple[int, ...]:  # type: ignore[override]
        return (0,) if self.results else (0, 1, 2)

    @property
    def vector(self) -> int | None:  # type: ignore[override]
        return None if self.results else 3

    def level_axes(self) -> list[tuple[int, ...]]:
        axes = super().level_axes()
        return axes if self.pooled is None else [(*axes[0], *POOL_AXES), *axes[1:]]

    def reads(self) -> Iterator[Read]:
        yield from super().reads()
        yield from ((o.load, ()) for o in self.operands)

    def stores(self) -> Iterator[Load]:
        yield from super().stores()
        yield from (o.load for o in self.results)

    def flops(self, extents: Sequence[int]) -> int:
        return super().flops(extents) + self.work


Body = Nest | Columns | Dot | Scatter | Call | Exchange | Window
BODIES: dict[Kind, type[Body]] = {c.kind: c for c in (Nest, Columns, Dot, Scatter, Call, Exchange, Window)}
