"""How a node may depend on the rows of the batch, and what several nodes are together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Dim, Extent, Shape, divide


@dataclass(frozen=True)
class Replicated:
    """The same whatever the batch holds."""


@dataclass(frozen=True)
class BatchSharded:
    """Row-wise along `axis`, whose extent is `before` times the batch times anything, in this order from outside.

    `before` is 1 but where axes in front of the batch were merged with it: a sequence with its time first.  None: the
    same for every row, so that any order is right.
    """

    axis: int
    before: Extent | None = 1

    def at(self, axis: int) -> BatchSharded:
        """The same rows along another axis."""
        return replace(self, axis=axis)


@dataclass(frozen=True)
class Partial:
    """A sum over the rows of something row-wise."""


@dataclass(frozen=True)
class SumOfRatios:
    """A weighted sum of quotients of additive things, of additive and of free things."""


@dataclass(frozen=True)
class Mixed:
    """Depends on the rows in another way, since `blame` did what `reason` says."""

    blame: Node
    reason: str


@dataclass(frozen=True)
class Several:
    """Of a node with several results: the kind of each."""

    kinds: tuple[Kind, ...]


Kind = Replicated | BatchSharded | Partial | SumOfRatios | Mixed | Several
Flow = Callable[[Node, Sequence[Kind], str], Kind]


def mentions(extent: Extent, batch: str) -> bool:
    return isinstance(extent, Dim) and batch in extent.symbols


def is_multiple(extent: Extent, batch: str) -> bool:
    rest = divide(extent, Dim.symbol(batch)) if mentions(extent, batch) else None
    return rest is not None and not mentions(rest, batch)


def by_shape(node: Node, shape: Shape, batch: str) -> Kind:
    """Fresh rows: of inputs, random numbers, and what is repeated for every row."""
    axes = [d for d, e in enumerate(shape) if mentions(e, batch)]
    if not axes:
        return Replicated()
    if len(axes) == 1 and is_multiple(shape[axes[0]], batch):
        return BatchSharded(axes[0])
    return Mixed(node, f"has a shape, {node.type}, that is not one row per element of {batch!r}")


def same_rows(kinds: Sequence[Kind]) -> BatchSharded | None:
    """What several are together, if all of them are the same rows of the batch along the same axis."""
    rows = [k for k in kinds if isinstance(k, BatchSharded)]
    orders = {r.before for r in rows} - {None}
    if len(rows) < len(kinds) or len({r.axis for r in rows}) != 1 or len(orders) > 1:
        return None
    return BatchSharded(rows[0].axis, next(iter(orders), None))


def agree(one: Kind, other: Kind) -> bool:
    return one == other or same_rows([one, other]) is not None
