"""Attention that is written as products and a softmax becomes the op `attention`; its mask is simplified.

    softmax(c·q·kᵀ + m₁ + m₂ ...)·v                = attention(q, k, v, m₁ + m₂ + ..., scale=c)
    softmax(where(seen, s, -inf))·v                = softmax(s + where(seen, 0, -inf))·v
    attention(q, k, v, mask)                       = attention(q, k, v), causal if that is what the mask's values say
    attention(q, repeat(k), repeat(v))             = attention(q, k, v), of which several queries share a head of k

Factors of q and of the scores become the scale.  Scores may be reshaped along their leading axes on the way, as those
of shifted windows are: the op has the finest of these shapes.  The scores must have no other reader.  A query that
sees nothing gives 0 instead of NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import IRGraph, Node, toposort
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import Shape
from wholestep.compiler.passes.simplify.attention_masks import (
    HIDDEN,
    MaskTerm,
    StaticMasks,
    refine,
    simple_terms,
    sum_terms,
    where_term,
)

VIEWS = ops_with(Trait.VIEW)


def recognize_attention(graph: IRGraph) -> IRGraph:
    """Name attention that is written as primitives, and simplify masks and repeated heads of all attention."""
    single, masks = graph.single_use_nodes(), StaticMasks()
    new: dict[Node, Node] = {}
    for old in graph.nodes:
        with b.origin(old):
            parts = _parts(old, single)
            replacement = old if parts is None else parts.simplify(masks).node(old)
            for node in toposort([replacement]) if replacement is not old else ():
                if node not in new:
                    new[node] = node.with_inputs([new[i] for i in node.inputs])
        new[old] = old.with_inputs([new[i] for i in old.inputs]) if replacement is old else new[replacement]
    return graph.with_nodes(new)


@dataclass(frozen=True)
class _Parts:
    """attention(q, k, v) with a mask that is a sum of terms, at the shape of the scores."""

    q: Node
    k: Node
    v: Node
    terms: tuple[MaskTerm, ...]
    scores: Shape
    scale: float
    causal: bool = False
    changed: bool = True  # False for the op `attention` as it was found

    def simplify(self, masks: StaticMasks) -> _Parts:
        """Without terms whose values are known to hide nothing, or what `causal` hides."""
        terms, causal, simple = [], self.causal, list(simple_terms(self.terms))
        for term in simple:
            visible = masks.visible(term.base)
            if visible is not None and visible.causal and term.covers_pairs(len(self.scores)):
                causal = True
            elif visible is None or not visible.everything:
                terms.append(term)
        k, v = (_single_head(x) for x in (self.k, self.v))
        k, v = (self.k, self.v) if k is None or v is None or k.type.shape[:-2] != v.type.shape[:-2] else (k, v)
        changed = self.changed or len(terms) < len(simple) or (k, v) != (self.k, self.v)
        return replace(self, k=k, v=v, terms=tuple(terms), causal=causal, changed=changed)

    def node(self, old: Node) -> Node:
        """The op in the place of `old`; `old` itself if it is that op."""
        if not self.changed:
            return old
        attrs = at.AttentionAttrs(self.causal, self.scale)
        mask = sum_terms(self.terms, self.scores, self.q.type.dtype.accumulate)
        fused = b.make("attention", (self.q, self.k, self.v, *mask), attrs)
        return b.reshape(b.cast(fused, old.type.dtype), old.type.shape)


def _parts(node: Node, single: set[Node]) -> _Parts | None:
    if node.op == "attention":
        return _parts_of_op(node)
    return _parts_of_product(node, single) if node.op == "matmul" else None


def _parts_of_op(node: Node) -> _Parts | None:
    """The parts of the op, in which only masks and repeated heads can be simplified."""
    attrs, (q, k, v, *mask) = attrs_of(node, at.AttentionAttrs), node.inputs
    if attrs.rounded:
        return None
    scores = (*q.type.shape[:-1], k.type.shape[-2])
    terms = tuple(MaskTerm(m, tuple(range(len(scores)))) for m in mask)
    return _Parts(q, k, v, terms, scores, attrs.scale, attrs.causal, changed=False)


def _parts_of_product(node: Node, single: set[Node]) -> _Parts | None:
    """The parts of softmax(...)·v."""
    attrs, (weights, v) = attrs_of(node, at.MatmulAttrs), node.inputs
    while weights in single and (weights.op == "cast" or _reshapes_lead(weights)):
        (weights,) = weights.inputs
    if weights.op != "softmax" or weights not in single or attrs.transpose_a:
        return None
    if attrs_of(weights, at.SoftmaxAttrs).axis != weights.type.rank - 1 or weights.type.dtype != attrs.accumulate:
        return None
    scores = _Scores.of(weights.inputs[0], single)
    return None if scores is None else scores.parts(b.transpose(v) if attrs.transpose_b else v, node)


@dataclass(frozen=True)
class _Scores:
    """factor·(product of q and k) + terms: what a softmax normalizes."""

    product: Node
    factor: float
    terms: tuple[tuple[Node, Shape, float], ...]  # terms, the shapes at which they are added, and their factors
    shapes: tuple[Shape, ...]  # shapes of the scores, from the softmax to the product

    @staticmethod
    def of(node: Node, single: set[Node]) -> _Scores | None:
        shape = node.type.shape
        if node not in single:
            return None
        if node.op == "matmul":
            return None if attrs_of(node, at.MatmulAttrs).transpose_a else _Scores(node, 1.0, (), (shape,))
        for inner, factor, term in _steps(node):
            below = _Scores.of(inner, single)
            if below is not None:
                terms = (*((t, s, f * factor) for t, s, f in below.terms), *([(term, shape, 1.0)] if term else []))
                return _Scores(below.product, below.factor * factor, terms, (shape, *below.shapes))
        return None

    def parts(self, v: Node, old: Node) -> _Parts | None:
        """The parts at the finest shape of the scores."""
        finest = max((*self.shapes, (*old.type.shape[:-1], self.shapes[0][-1])), key=len)
        q, k = self.product.inputs
        k = k if attrs_of(self.product, at.MatmulAttrs).transpose_b else b.transpose(k)
        rows = (*finest[:-2], finest[-2]), (*finest[:-2], finest[-1])
        if not all(x.type.shape[:-2] == y.type.shape[:-2] for x, y in ((q, self.product), (k, self.product), (v, old))):
            return None
        if not q.type.dtype == k.type.dtype == v.type.dtype or q.type.dtype.accumulate != old.type.dtype:
            return None
        if any(refine(shape, finest) is None for shape in (*self.shapes, (*old.type.shape[:-1], finest[-1]))):
            return None
        q, factor = _without_factor(q)
        q, k, v = (b.reshape(x, (*row, x.type.shape[-1])) for x, row in zip((q, k, v), (rows[0], rows[1], rows[1])))
        terms = tuple(MaskTerm.of(term, shape, finest).times(scale) for term, shape, scale in self.terms)
        return _Parts(q, k, v, terms, finest, self.factor * factor)


def _steps(node: Node) -> Iterator[tuple[Node, float, Node | None]]:
    """The ways in which scores may follow from other scores: these scores, their factor, and the added term."""
    if node.op == "add":
        x, y = node.inputs
        yield x, 1.0, y
        yield y, 1.0, x
    elif node.op in ("mul", "div"):
        x, y = node.inputs
        if (value := constant_value(y)) is not None:
            yield x, value if node.op == "mul" else 1.0 / value, None
        elif node.op == "mul" and (value := constant_value(x)) is not None:
            yield y, value, None
    elif _reshapes_lead(node):
        yield node.inputs[0], 1.0, None
    elif node.op == "where":
        condition, x, y = node.inputs
        for scores, hidden, visible in ((x, y, condition), (y, x, b.unary("logical_not", condition))):
            value = constant_value(hidden)
            if value is not None and value <= HIDDEN:
                yield scores, 1.0, where_term(visible, value, node.type.dtype)


def _reshapes_lead(node: Node) -> bool:
    """Does a node reshape the leading axes of scores only?"""
    return node.op == "reshape" and node.inputs[0].type.shape[-2:] == node.type.shape[-2:] and node.type.rank >= 2


def _without_factor(q: Node) -> tuple[Node, float]:
    """Queries without a constant factor, below views and a rounding, and the factor."""
    if q.op in ("mul", "div"):
        x, y = q.inputs
        value = constant_value(y)
        if value:
            return x, value if q.op == "mul" else 1.0 / value
    elif q.op == "cast" or q.op in VIEWS:
        inner, factor = _without_factor(q.inputs[0])
        if factor != 1.0:
            return _cast_below_views(q, inner) if q.op == "cast" else q.with_inputs([inner]), factor
    return q, 1.0


def _cast_below_views(cast: Node, x: Node) -> Node:
    """The cast of x, moved below its views: queries, keys and values are often views of one rounded product."""
    if x.op in VIEWS:
        return x.with_inputs([_cast_below_views(cast, x.inputs[0])])
    return b.cast(x, cast.type.dtype)


def _single_head(x: Node) -> Node | None:
    """The keys or values of grouped-query attention, before their heads were repeated; None without a repetition."""
    merged = x
    while merged.op == "reshape" and merged.inputs[0].op == "reshape":
        merged = merged.inputs[0]
    if merged.op != "reshape" or merged.inputs[0].op != "expand" or x.type.rank < 3:
        return None
    repeated = merged.inputs[0]
    *lead, heads, rows, columns = x.type.shape
    shape = repeated.type.shape
    if len(shape) != len(lead) + 4 or (*shape[: len(lead)], *shape[-2:]) != (*lead, rows, columns):
        return None
    group_axis = len(lead) + 1
    old_axes = attrs_of(repeated, at.ExpandAttrs).axes
    if old_axes != tuple(d for d in range(len(shape)) if d != group_axis) or shape[group_axis] == 1:
        return None
    assert heads == shape[group_axis - 1] * shape[group_axis], "a reshape keeps the number of elements"
    return repeated.inputs[0]
