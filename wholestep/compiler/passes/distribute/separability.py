"""Separability: may a loss be cut into micro-batches, shards and ranks?

A loss is decomposed into  Σ weightᵢ·numeratorᵢ/denominatorᵢ + terms without data,  or into one function of one such
quotient (rmse).  It is separable if weights and denominators do not depend on parameters, and numerators and
denominators are sums over the batch of row-wise terms: then the denominators are summed over all parts first, and the
gradients of the parts add up to the gradient of the full batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.passes.distribute.placement.placements import MeshAxis, Mixed, Partial, Placement, Replicated
from wholestep.compiler.passes.distribute.placement.rules import is_linear, placements_of


@dataclass(frozen=True)
class LossTerm:
    """weight·numerator/denominator; None means 1.  A denominator is a sum over the parts of the batch."""

    weight: Node | None
    numerator: Node
    denominator: Node | None


@dataclass(frozen=True)
class Separation:
    """The terms of a loss; if it is not separable, the node to blame and the reason.

    `rest` holds the terms without data, which count once, not once per part.  `outer`, if present, is the loss as a
    function of the one quotient in `terms` (`rest` is empty then).
    """

    separable: bool
    terms: tuple[LossTerm, ...] = ()
    rest: tuple[Node, ...] = ()
    outer: Node | None = None
    blame: Node | None = None
    reason: str = ""


class _NotSeparableError(Exception):
    def __init__(self, blame: Node, reason: str) -> None:
        super().__init__(reason)
        self.blame, self.reason = blame, reason


def separate_loss(graph: IRGraph, loss: Node, batch: str = "batch") -> Separation:
    """Decompose a loss into terms.  Calls must be inlined and gradients of gradients expanded."""
    assert loss in set(graph.nodes), f"the loss {loss!r} is no node of the graph"
    assert loss.type.rank == 0, f"the loss {loss!r} is not a scalar"
    placements = placements_of([loss], MeshAxis.of_batch(batch))
    try:
        terms_and_rest = list(_split(loss, None, placements))
    except _NotSeparableError as error:
        quotient = _only_quotient(loss, batch)
        # Chain rule: each part has the gradient of the quotient, scaled later by the derivative of `outer`.
        nonlinear = next((n for n in placements if n.op == "custom_gradient" and not is_linear(n)), None)
        if quotient is not None and nonlinear is not None:
            why = "has a custom gradient that is not linear in the upstream gradient, under a function of a mean"
            return Separation(False, blame=nonlinear, reason=why)
        if quotient is not None:
            return Separation(True, (quotient,), outer=loss)
        return Separation(False, blame=error.blame, reason=error.reason)
    terms = tuple(t for t in terms_and_rest if isinstance(t, LossTerm))
    return Separation(True, terms, tuple(t for t in terms_and_rest if isinstance(t, Node)))


def _split(node: Node, weight: Node | None, placements: Mapping[Node, Placement]) -> Iterator[LossTerm | Node]:
    """weight·node as terms; a summand that does not depend on the batch is yielded as a node."""
    placement = placements[node]
    if isinstance(placement, Replicated):
        yield _times_weight(weight, node)
    elif isinstance(placement, Partial):
        yield _term(weight, node, None)
    elif node.op in _QUOTIENTS and not isinstance(placements[node.inputs[1]], Replicated):
        yield _quotient(node, weight, placements)
    elif node.op in _OUTER_RULES:
        for part, part_weight in _OUTER_RULES[node.op](node, weight, placements):
            yield from _split(part, part_weight, placements)
    else:
        raise _not_linear(node, placement)


def _quotient(node: Node, weight: Node | None, placements: Mapping[Node, Placement]) -> LossTerm:
    numerator, denominator = node.inputs
    for part in node.inputs:
        placement = placements[part]
        if isinstance(placement, Mixed):
            raise _NotSeparableError(placement.blame, placement.reason)
    if not (isinstance(placements[numerator], Partial) and isinstance(placements[denominator], Partial)):
        raise _NotSeparableError(node, "does not divide a sum over the batch by another")
    if _depends_on_parameters(denominator):
        raise _NotSeparableError(node, "has a denominator that depends on parameters")
    return _term(weight, numerator, denominator)


def _term(weight: Node | None, numerator: Node, denominator: Node | None) -> LossTerm:
    if weight is not None and _depends_on_parameters(weight):
        # The numerator stays a sum over the batch, so the weight may move into it, where its gradient is correct.
        return LossTerm(None, b.mul(weight, numerator), denominator)
    return LossTerm(weight, numerator, denominator)


def _times_weight(weight: Node | None, node: Node) -> Node:
    return node if weight is None else b.mul(weight, node)


# -- linear ops between the loss and its quotients ---------------------------------------------------------------

Parts = Iterator[tuple[Node, Node | None]]


def _add(node: Node, weight: Node | None, placements: Mapping[Node, Placement]) -> Parts:
    for part in node.inputs:
        yield part, weight


def _sub(node: Node, weight: Node | None, placements: Mapping[Node, Placement]) -> Parts:
    x, y = node.inputs
    yield x, weight
    yield y, b.constant(-1, y.type.dtype) if weight is None else b.neg(weight)


def _neg(node: Node, weight: Node | None, placements: Mapping[Node, Placement]) -> Parts:
    (x,) = node.inputs
    yield x, b.constant(-1, x.type.dtype) if weight is None else b.neg(weight)


def _mul(node: Node, weight: Node | None, placements: Mapping[Node, Placement]) -> Parts:
    for x, factor in (node.inputs, node.inputs[::-1]):
        if isinstance(placements[factor], Replicated):
            yield x, _times_weight(weight, factor)
            return
    raise _not_linear(node, placements[node])


def _div(node: Node, weight: Node | None, placements: Mapping[Node, Placement]) -> Parts:
    x, divisor = node.inputs  # the divisor does not depend on the batch; else _split would have taken the quotient rule
    yield x, b.div(b.constant(1, x.type.dtype) if weight is None else weight, divisor)


def _cast_or_reshape(node: Node, weight: Node | None, placements: Mapping[Node, Placement]) -> Parts:
    (x,) = node.inputs
    if x.type.rank or not x.type.dtype.is_float:
        raise _not_linear(node, placements[node])
    yield x, None if weight is None else b.cast(weight, x.type.dtype)


def _not_linear(node: Node, placement: Placement) -> _NotSeparableError:
    if isinstance(placement, Mixed):
        return _NotSeparableError(placement.blame, placement.reason)
    return _NotSeparableError(node, "is not a weighted sum of means over the batch")


_QUOTIENTS = ops_with(Trait.QUOTIENT)
_OUTER_RULES = {
    "add": _add,
    "sub": _sub,
    "neg": _neg,
    "mul": _mul,
    "div": _div,
    "ratio": _div,
    "cast": _cast_or_reshape,
    "reshape": _cast_or_reshape,
}


# -- one function of one quotient --------------------------------------------------------------------------------


def _only_quotient(loss: Node, batch: str) -> LossTerm | None:
    """The only quotient through which the loss depends on the batch, as a term; None if there is none."""
    axis = MeshAxis.of_batch(batch)
    placements = placements_of([loss], axis)
    for quotient in (n for n in placements if n.op in _QUOTIENTS and n.type.rank == 0):
        if not isinstance(placements_of([loss], axis, {quotient: Replicated()})[loss], Replicated):
            continue
        try:
            return _quotient(quotient, None, placements)
        except _NotSeparableError:
            continue
    return None


def _depends_on_parameters(node: Node) -> bool:
    """Is there a differentiable path from a parameter to this node?"""
    seen, stack = {node}, [node]
    while stack:
        node = stack.pop()
        if node.op == "parameter":
            return True
        if node.op != "stop_gradient":
            new = [i for i in _differentiable_inputs(node) if i not in seen]
            seen.update(new)
            stack.extend(new)
    return False


def _differentiable_inputs(node: Node) -> Sequence[Node]:
    """The inputs of a node that receive a gradient."""
    if node.op != "custom_gradient":
        return node.inputs
    return [node.inputs[i] for i in b.attrs_of(node, at.CustomGradientAttrs).arguments]
