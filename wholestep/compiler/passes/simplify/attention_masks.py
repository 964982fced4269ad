"""Masks of attention as sums of terms, each at the shape that it has before it is broadcast to the scores.

Terms are added at the union of their axes, so that a table of relative positions is never repeated for the batch.  A
term is evaluated if only constants and index patterns define it: a causal mask, or a mask that hides nothing, need not
be read.  Its values must not depend on symbolic axes, which are evaluated with one element each: elements may be picked
along such an axis only if all are equal, as the numbers of packed sequences are if there is one per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import ELEMENTWISE, IRGraph, Node, Output, toposort
from wholestep.compiler.ir.ops import OPS, Family, Trait, ops_with
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import DType, Extent, Shape, evaluate, product, symbols_of

MOST_ELEMENTS = 1 << 24  # largest mask term that is evaluated: 4096 queries and keys
HIDDEN = -1e30  # a value of at most this, added to a score, hides a key like -inf: e^(score - 1e30) = 0

Array = np.ndarray[Any, Any]


def refine(coarse: Shape, fine: Shape) -> tuple[tuple[int, ...], ...] | None:
    """For each axis of a shape the axes of a finer shape that it merges; None if no such grouping exists."""
    groups, start = [], 0
    for position, extent in enumerate(coarse):
        end = start + 1
        while end < len(fine) and product(fine[start:end]) != extent:
            end += 1
        if position == len(coarse) - 1:
            end = len(fine)
        if product(fine[start:end]) != extent:
            return None
        groups.append(tuple(range(start, end)))
        start = end
    return tuple(groups)


@dataclass(frozen=True)
class MaskTerm:
    """A tensor that is broadcast to the scores; its axes are these axes of them."""

    base: Node
    axes: tuple[int, ...]

    @staticmethod
    def of(node: Node, shape: Shape, finest: Shape) -> MaskTerm:
        """A term that is added to scores of `shape`, which have the shape `finest` elsewhere."""
        term, groups = unbroadcast(MaskTerm(node, tuple(range(len(shape))))), refine(shape, finest)
        assert groups is not None, "the caller compared the shapes"
        axes = tuple(f for a in term.axes for f in groups[a])
        return MaskTerm(b.reshape(term.base, tuple(finest[a] for a in axes)), axes)

    def times(self, factor: float) -> MaskTerm:
        return self if factor == 1.0 else replace(self, base=b.scale(self.base, factor))

    def covers_pairs(self, rank: int) -> bool:
        """Are the last two axes queries and keys?"""
        return self.axes[-2:] == (rank - 2, rank - 1)

    def of_operand(self, node: Node) -> MaskTerm:
        """An operand of the pointwise op that is the base, as a term of the same scores."""
        return MaskTerm(node, self.axes)


def unbroadcast(term: MaskTerm) -> MaskTerm:
    """The term below broadcasts, and without axes of one element."""
    base, axes = term.base, term.axes
    while True:
        if base.op == "expand":
            axes, base = tuple(axes[a] for a in attrs_of(base, at.ExpandAttrs).axes), base.inputs[0]
        elif 1 in base.type.shape:
            axes = tuple(a for a, e in zip(axes, base.type.shape, strict=True) if e != 1)
            base = b.reshape(base, tuple(e for e in base.type.shape if e != 1))
        elif base.op == "reshape" and (below := _without_units(base)) is not None:
            base = below
        else:
            return MaskTerm(base, axes)


def _without_units(reshape: Node) -> Node | None:
    """The value of a reshape that removes axes of one element, with the reshape moved below the op that it reads."""
    (x,) = reshape.inputs
    shape = reshape.type.shape
    if tuple(e for e in x.type.shape if e != 1) != shape:
        return None
    if x.op == "reshape":
        return b.reshape(x.inputs[0], shape)
    if x.op in ELEMENTWISE:
        return x.with_inputs([b.reshape(i, shape) if i.type.rank else i for i in x.inputs])
    if x.op != "expand":
        return None
    old_axes = attrs_of(x, at.ExpandAttrs).axes
    position = {a: n for n, a in enumerate(a for a, e in enumerate(x.type.shape) if e != 1)}
    inner = b.reshape(x.inputs[0], tuple(x.type.shape[a] for a in old_axes if a in position))
    return b.expand_to(inner, shape, [position[a] for a in old_axes if a in position])


def simple_terms(terms: Iterable[MaskTerm]) -> Iterator[MaskTerm]:
    """Terms that are not sums themselves; a mask of several conditions is one term for each."""
    for term in map(unbroadcast, terms):
        if term.base.op == "add":
            yield from simple_terms(map(term.of_operand, term.base.inputs))
            continue
        condition, value = _condition(term.base)
        if condition is None:
            yield term
            continue
        for part in _conjuncts(term.of_operand(condition)):
            yield replace(part, base=where_term(part.base, value, term.base.type.dtype))


def where_term(visible: Node, value: float, dtype: DType) -> Node:
    """A term of the scores: 0 where `visible` is true, `value` elsewhere."""
    hidden, zero = (b.full(x, replace(visible.type, dtype=dtype)) for x in (value, 0.0))
    return b.where(visible, zero, hidden)


def _condition(base: Node) -> tuple[Node | None, float]:
    """The condition under which a term is 0, and its value elsewhere."""
    if base.op == "cast" and base.type.dtype.is_float and base.inputs[0].op == "where":
        return _condition(base.inputs[0])
    if base.op == "where":
        condition, x, y = base.inputs
        values = constant_value(x), constant_value(y)
        if values[0] == 0 and values[1] is not None and values[1] <= HIDDEN:
            return condition, values[1]
        if values[1] == 0 and values[0] is not None and values[0] <= HIDDEN:
            return b.unary("logical_not", condition), values[0]
    return None, 0.0


def _conjuncts(term: MaskTerm) -> Iterator[MaskTerm]:
    """The conditions of a conjunction: a and b, not (a or b)."""
    term = unbroadcast(term)
    (inner, *_) = term.base.inputs or (term.base,)
    if term.base.op in ("logical_and", "bitwise_and"):
        operands = term.base.inputs
    elif term.base.op == "logical_not" and inner.op in ("logical_or", "bitwise_or"):
        operands = tuple(b.unary("logical_not", i) for i in inner.inputs)
    elif term.base.op == inner.op == "logical_not":
        operands = inner.inputs
    else:
        yield term
        return
    for operand in operands:
        yield from _conjuncts(term.of_operand(operand))


def sum_terms(terms: Sequence[MaskTerm], scores: Shape, dtype: DType) -> list[Node]:
    """The sum of the terms, added at the union of their axes and broadcast to the scores; nothing if there is none."""
    if not terms:
        return []
    axes = sorted({a for term in terms for a in term.axes})
    shape = tuple(scores[a] for a in axes)
    cast = [b.expand_to(b.cast(t.base, dtype), shape, [axes.index(a) for a in t.axes]) for t in terms]
    return [b.expand_to(reduce(b.add, cast), scores, axes)]


@dataclass(frozen=True)
class Visible:
    """The keys that a constant mask leaves visible to the queries."""

    everything: bool
    causal: bool  # exactly the keys up to the query's own index


class StaticMasks:
    """The masks of one graph; each is evaluated once."""

    def __init__(self) -> None:
        self._static: dict[Node, bool] = {}
        self._visible: dict[Node, Visible | None] = {}

    def visible(self, mask: Node) -> Visible | None:
        """The keys that a mask leaves visible; None if its values are unknown, or if it changes visible scores."""
        if mask not in self._visible:
            self._visible[mask] = self._classify(mask)
        return self._visible[mask]

    def _classify(self, mask: Node) -> Visible | None:
        order = toposort([mask])
        if not all(n.inputs or n.op in ops_with(Trait.STEADY) for n in order):
            return None
        for node in order:
            self._static[node] = self._is_static(node)
        values = self._values(mask)
        return None if values is None else _visible_keys(values)

    def _values(self, node: Node) -> Array | None:
        """The values of a static node, in which each symbolic axis has one element; None for other nodes."""
        sizes = {s: 1 for n in toposort([node]) for s in symbols_of(n.type.shape)}
        if not self._static[node] or prod(evaluate(e, sizes) for e in node.type.shape) > MOST_ELEMENTS:
            return None
        with np.errstate(all="ignore"):
            return interpret(IRGraph((Output("values", node),)), sizes=sizes).outputs["values"]

    def _is_static(self, node: Node) -> bool:
        """Do the values of a node, whose inputs are classified, not depend on symbolic axes?"""
        if node.op == "iota":
            attrs = attrs_of(node, at.IotaAttrs)
            return isinstance(attrs.type.shape[attrs.axis], int)
        if node.op == "gather" or (node.op == "reshape" and _symbolic_axes(node) != _symbolic_axes(node.inputs[0])):
            return self._is_uniform(node.inputs[0])  # else an element's position along a symbolic axis decides
        fixed = node.op in ("constant", "expand", "permute", "reshape", "slice")
        fixed |= OPS[node.op].family is Family.POINTWISE
        if node.op in ("sum", "max"):
            fixed = all(isinstance(node.inputs[0].type.shape[a], int) for a in attrs_of(node, at.ReduceAttrs).axes)
        if node.op == "concat":
            fixed = isinstance(node.type.shape[attrs_of(node, at.ConcatAttrs).axis], int)
        return fixed and all(self._static[i] for i in node.inputs)

    def _is_uniform(self, node: Node) -> bool:
        """Are all elements of a static node equal?"""
        values = self._values(node)
        return values is not None and values.size > 0 and bool((values == values.flat[0]).all())


def _symbolic_axes(node: Node) -> list[tuple[Extent, Extent]]:
    """The symbolic extents of a node, each with the number of elements per index along it."""
    shape = node.type.shape
    return [(e, product(shape[d + 1 :])) for d, e in enumerate(shape) if not isinstance(e, int)]


def _visible_keys(values: Array) -> Visible | None:
    seen = values == 0
    if not np.all(values[~seen] <= HIDDEN):
        return None
    causal = values.ndim >= 2 and bool((seen == np.tri(*seen.shape[-2:], dtype=np.bool_)).all())
    return Visible(bool(seen.all()), causal)
