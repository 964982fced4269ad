"""Kernel bodies, what a kernel computes: one class per kind, with its reads, its stores and its flops.

A body is independent of the machine: partitioning, blocking and layout are the kernel's `schedule`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import ClassVar

from wholestep.compiler.ir.attrs import DATA
from wholestep.compiler.ir.types import DType, Extent
from wholestep.compiler.plan.model.kernel import POOL_AXES, Guard, Instr, Kind, Level, Load, Operand
from wholestep.records import dataclass

Read = tuple[Load, tuple[Guard, ...]]  # an address, and the conditions under which it is read

FREE = frozenset({"load", "const", "scalar", "index", "acc", "position", "cast"})  # no arithmetic


class Levels:
    """Base of all bodies; kinds that do not consist of levels have neither rows nor a vector axis."""

    rows: tuple[int, ...]  # axes of the outer loops
    vector: int | None  # axis of the innermost loop
    levels: tuple[Level, ...]

    kind: ClassVar[Kind]

    @property
    def tag(self) -> str:
        """The name of the kind in plan files."""
        return self.kind.value

    def level_axes(self) -> list[tuple[int, ...]]:
        """The axes that the body of each level iterates over."""
        inner = () if self.vector is None else (self.vector,)
        return [(*self.rows, *inner) for _ in self.levels]

    def reads(self) -> Iterator[Read]:
        """Every address that is read, and under which conditions."""
        for level in self.levels:
            for instr in (*level.row, *level.body):
                if instr.load is not None:
                    yield instr.load, instr.guards

    def stores(self) -> Iterator[Load]:
        """Every address that is written."""
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
    """Loops over `rows`; for each row the levels: passes over the vector axis, with reductions between them."""

    kind: ClassVar[Kind] = Kind.NEST
    rows: tuple[int, ...]
    vector: int | None
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class Columns(Levels):
    """Sums along an outer axis: level 0 accumulates along `reduced`, level 1 is the pointwise epilogue."""

    kind: ClassVar[Kind] = Kind.COLUMNS
    rows: tuple[int, ...]
    vector: int
    reduced: int  # the axis summed over
    levels: tuple[Level, ...]

    def level_axes(self) -> list[tuple[int, ...]]:
        sums, *epilogue = super().level_axes()
        return [(*sums, self.reduced), *epilogue]


@dataclass(frozen=True)
class Dot(Levels):
    """acc[batch.., m, n] = sum over k of a * b.

    Level 0 is the epilogue of every element.  Two optional levels are column sums of the right operand, over (n, k),
    and their epilogue, over n.
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
        """Is the product stored without an epilogue, to one target?"""
        level = self.levels[0]
        return len(level.body) == 1 and len(level.stores) == 1 and not level.row


@dataclass(frozen=True)
class Scatter(Levels):
    """Scatter-add: adds rows of `updates` to `target` at `index`, in order; the target starts at zero unless `onto`."""

    kind: ClassVar[Kind] = Kind.SCATTER
    rows: ClassVar = ()  # type: ignore[misc]
    vector: ClassVar = None  # type: ignore[misc]
    levels: ClassVar = ()  # type: ignore[misc]
    target: Load
    updates: Load
    index: Load
    over: tuple[int, ...]  # the kernel's axes that iterate over the indices
    at: int  # the indexed dimension of the target
    onto: bool = False  # accumulate onto what another kernel stored in the target, instead of zero

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
    """A routine of the backend, called once per point of `rows`; it loops over the other axes itself."""

    kind: ClassVar[Kind] = Kind.CALL
    vector: ClassVar = None  # type: ignore[misc]
    levels: ClassVar = ()  # type: ignore[misc]
    routine: str
    dtype: DType
    rows: tuple[int, ...]
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    extents: tuple[tuple[str, Extent], ...] = ()  # extents by the names of the routine's parameters
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
    """A collective over several contiguous tensors: operand i iterates over axis i, the results over the axes after.

    One thread runs it; the others wait before they read its results.
    """

    kind: ClassVar[Kind] = Kind.EXCHANGE
    rows: ClassVar = ()  # type: ignore[misc]
    vector: ClassVar = None  # type: ignore[misc]
    levels: ClassVar = ()  # type: ignore[misc]
    collective: str  # kind: all_reduce, ...
    dtype: DType
    operands: tuple[Load, ...]
    results: tuple[Load, ...]
    axis: str = DATA  # the axis of the device mesh along which ranks communicate

    def reads(self) -> Iterator[Read]:
        yield from ((load, ()) for load in self.operands)

    def stores(self) -> Iterator[Load]:
        yield from self.results

    def flops(self, extents: Sequence[int]) -> int:
        """The additions per other rank: the number of ranks is not part of a plan."""
        adds = self.collective in ("all_reduce", "reduce_scatter")
        return sum(extents[len(self.operands) :]) if adds else 0


@dataclass(frozen=True)
class Window(Levels):
    """A convolution, a pool or an adjoint of one: an op of the IR with channels as the last axis.

    Each operand has axes of its own; images have the batch first.  Level 0 is the epilogue of an op that computes
    images: it runs per pixel, with `acc` the result of the op.  If a pool is fused into the kernel, level 0 runs before
    it, over the unpooled pixels, and level 1 after it.
    """

    kind: ClassVar[Kind] = Kind.WINDOW
    op: str
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...] = ()  # results of an op without an epilogue
    levels: tuple[Level, ...] = ()
    stride: tuple[int, ...] = (1, 1)
    low: tuple[int, ...] = (0, 0)  # zero padding: rows above and columns left of an image
    high: tuple[int, ...] = (0, 0)  # zero padding: rows below and columns right of an image
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    pool: tuple[int, ...] = ()  # the window of a pool: after a convolution, or before its adjoint
    middle: tuple[int, ...] = ()  # rows and columns of the intermediate between a convolution and that pool
    pooled: int | None = None  # the value of level 0 that the fused pool takes the maximum of
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
