"""Decompositions of norms, dropout, attention and their gradients into primitives, for the table in decompose.py.

The formula is the comment above each function.  Norms are two-pass (mean, then squared differences); attention's
gradient recomputes the probabilities from the stored log-sum-exp, as FlashAttention does.
"""

from __future__ import annotations

from math import inf

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.type_rules.layers import heads_in_group, lse_position, values_per_channel
from wholestep.compiler.ir.types import TensorType, TupleType, product

# -- norms -------------------------------------------------------------------------------------------------------


def _mean(x: Node) -> Node:
    """The mean over the last axis, which is removed."""
    total = b.sum_axes(x, (x.type.rank - 1,))
    return b.div(total, b.expand_to(b.count(x.type.shape[-1], x.type.dtype), total.type.shape, ()))


def _broadcast_rows(x: Node, like: Node) -> Node:
    """One value per row, broadcast along the last axis."""
    return b.restore_axes(x, (like.type.rank - 1,), like.type.shape)


# n = (x - mean x)·f with f = 1/√(mean (x - mean x)² + eps), over the last axis; without the mean of x for rms_norm
def _normalize(x: Node, eps: float, centred: bool) -> tuple[Node, Node]:
    if centred:
        x = b.sub(x, _broadcast_rows(_mean(x), x))
    factor = b.unary("recip", b.unary("sqrt", b.shift(_mean(b.mul(x, x)), eps)))
    return b.mul(x, _broadcast_rows(factor, x)), factor


# dx = f·(g - n·mean(g·n) - mean g), without mean g if n is not centred
def _input_gradient(normal: Node, factor: Node, g: Node, centred: bool) -> Node:
    inner = b.sub(g, b.mul(normal, _broadcast_rows(_mean(b.mul(g, normal)), g)))
    if centred:
        inner = b.sub(inner, _broadcast_rows(_mean(g), g))
    return b.mul(_broadcast_rows(factor, g), inner)


def _broadcast_axis(x: Node, like: Node, axis: int) -> Node:
    return b.expand_to(x, like.type.shape, (axis,))


def _affine(normal: Node, affine: tuple[Node, ...], axis: int) -> Node:
    for op, p in zip(("mul", "add"), affine):
        normal = b.make(op, (normal, _broadcast_axis(p, normal, axis)))
    return normal


# n·weight + bias
def _last_axis_norm(y: Node, centred: bool) -> Node:
    x, *affine = y.inputs
    normal, _ = _normalize(x, attrs_of(y, at.NormAttrs).eps, centred)
    return _affine(normal, tuple(affine), x.type.rank - 1)


def _last_axis_norm_grad(y: Node, centred: bool) -> tuple[Node, ...]:
    x, *weight, g = y.inputs
    axis = x.type.rank - 1
    normal, factor = _normalize(x, attrs_of(y, at.NormAttrs).eps, centred)
    dx = _input_gradient(normal, factor, _affine(g, tuple(weight), axis), centred)
    return dx, *(_weight_gradients(normal, g, axis, centred) if weight else ())


# dweight = Σ g·n, dbias = Σ g over all axes but the weight's
def _weight_gradients(normal: Node, g: Node, axis: int, with_bias: bool) -> tuple[Node, ...]:
    others = [d for d in range(g.type.rank) if d != axis]
    dweight = b.sum_axes(b.mul(g, normal), others)
    return (dweight, b.sum_axes(g, others)) if with_bias else (dweight,)


def layer_norm(y: Node) -> Node:
    return _last_axis_norm(y, centred=True)


def layer_norm_grad(y: Node) -> tuple[Node, ...]:
    return _last_axis_norm_grad(y, centred=True)


def rms_norm(y: Node) -> Node:
    return _last_axis_norm(y, centred=False)


def rms_norm_grad(y: Node) -> tuple[Node, ...]:
    return _last_axis_norm_grad(y, centred=False)


def _in_groups(x: Node, groups: int) -> Node:
    """Reshape (N, C, ...) to (N, groups, elements of a group)."""
    n, channels, *rest = x.type.shape
    assert isinstance(channels, int), f"{x!r} passed the type rule of group_norm"
    return b.reshape(x, (n, groups, product((channels // groups, *rest))))


# each group is normalized as a row; the result is scaled and shifted per channel
def group_norm(y: Node) -> Node:
    (x, *affine), a = y.inputs, attrs_of(y, at.GroupNormAttrs)
    normal, _ = _normalize(_in_groups(x, a.groups), a.eps, centred=True)
    return _affine(b.reshape(normal, x.type.shape), tuple(affine), 1)


def group_norm_grad(y: Node) -> tuple[Node, ...]:
    (x, *weight, g), a = y.inputs, attrs_of(y, at.GroupNormAttrs)
    normal, factor = _normalize(_in_groups(x, a.groups), a.eps, centred=True)
    upstream = _in_groups(_affine(g, tuple(weight), 1), a.groups)
    dx = b.reshape(_input_gradient(normal, factor, upstream, centred=True), x.type.shape)
    flat = b.reshape(normal, x.type.shape)
    return dx, *(_weight_gradients(flat, g, 1, with_bias=True) if weight else ())


# sums first over each example, then over the batch: threads can divide the examples; the channels may be too few
def _sum_per_channel(x: Node) -> Node:
    return b.sum_axes(b.sum_axes(x, tuple(range(2, x.type.rank))), (0,))


def _mean_per_channel(x: Node) -> Node:
    total = _sum_per_channel(x)
    return b.div(total, b.expand_to(b.count(values_per_channel(x.type.shape), x.type.dtype), total.type.shape, ()))


def _center(x: Node) -> Node:
    return b.sub(x, _broadcast_axis(_mean_per_channel(x), x, 1))


def _factor(centred: Node, eps: float) -> Node:
    """1/√(variance + eps) of each channel."""
    return b.unary("recip", b.unary("sqrt", b.shift(_mean_per_channel(b.mul(centred, centred)), eps)))


# (x - mean x)·(f·weight) + bias with f = 1/√(mean (x - mean x)² + eps), over all axes but the channels: f·weight is
# computed once per channel
def batch_norm(y: Node) -> Node:
    x, *affine = y.inputs
    centred = _center(x)
    slope = _factor(centred, attrs_of(y, at.NormAttrs).eps)
    slope = b.mul(slope, affine[0]) if affine else slope
    return _affine(centred, (slope, *affine[1:]), 1)


# With c = x - mean x, M elements in a channel and s = f·weight:
# dbias = Σ g, dweight = f·Σ g·c, dx = s·(g - (c·f·dweight/M + dbias/M)).  g is scaled last, so that no scaled copy of g
# is stored while the sums are computed.
def batch_norm_grad(y: Node) -> tuple[Node, ...]:
    x, *weight, g = y.inputs
    centred = _center(x)
    factor = _factor(centred, attrs_of(y, at.NormAttrs).eps)
    dweight, dbias = b.mul(_sum_per_channel(b.mul(g, centred)), factor), _sum_per_channel(g)
    count = b.expand_to(b.count(values_per_channel(x.type.shape), x.type.dtype), dbias.type.shape, ())
    correction = _affine(centred, (b.div(b.mul(factor, dweight), count), b.div(dbias, count)), 1)
    slope = b.mul(factor, weight[0]) if weight else factor
    dx = b.mul(b.sub(g, correction), _broadcast_axis(slope, g, 1))
    return dx, *((dweight, dbias) if weight else ())


# -- dropout -----------------------------------------------------------------------------------------------------


# x/(1 - rate) if u ≥ rate, else 0, with u uniform in [0, 1).  u is a multiple of 2⁻²⁴, so the rate is rounded up to a
# multiple of 2⁻²⁴: float32 represents it exactly, and the comparison is the same in every dtype.
def dropout(y: Node) -> Node:
    (x, rate), a = y.inputs, attrs_of(y, at.DropoutAttrs)
    draw = at.RandomAttrs(a.key, y.type, a.first)
    threshold = b.scale(b.neg(b.unary("floor", b.scale(rate, -(2.0**24)))), 2.0**-24)
    factor = b.unary("recip", b.sub(b.full_like(rate, 1), rate))
    keep_mask = b.make("less_equal", (_broadcast_scalar(threshold, x), b.make("random", (), draw)))
    return b.where(keep_mask, b.mul(x, _broadcast_scalar(factor, x)), b.zeros_like(x))


def _broadcast_scalar(scalar: Node, like: Node) -> Node:
    return b.expand_to(b.cast(scalar, like.type.dtype), like.type.shape, ())


# -- attention ---------------------------------------------------------------------------------------------------


# scale·q·kᵀ + mask, with -∞ at masked positions: their exponential is exactly 0
def attention_scores(q: Node, k: Node, mask: list[Node], a: at.AttentionAttrs) -> Node:
    scores = b.scale(b.matmul(q, _per_query_head(k, q), transpose_b=True), a.scale)
    for m in mask:
        scores = b.add(scores, m)
    last = scores.type.rank - 1
    if a.causal:
        shape = scores.type.shape
        visible = b.make("less_equal", (b.iota(shape, last), b.iota(shape, last - 1)))
        scores = b.where(visible, scores, b.full_like(scores, -inf))
    return scores


def _per_query_head(x: Node, q: Node) -> Node:
    """Keys or values repeated for each query head of their group (grouped-query attention)."""
    *lead, heads, rows, columns = (1, *x.type.shape)
    group = heads_in_group(q.type, x.type)
    if group == 1:
        return x
    shape = (*lead[1:], heads, group, rows, columns)
    axes = [d for d in range(len(shape)) if d != len(shape) - 3]
    return b.reshape(b.expand_to(x, shape, axes), (*q.type.shape[:-2], rows, columns))


def _per_group(x: Node, like: Node) -> Node:
    """The sum over the query heads that share one head of `like`."""
    group, (*lead, rows, columns) = heads_in_group(x.type, like.type), like.type.shape
    if group == 1:
        return x
    return b.sum_axes(b.reshape(x, (*lead, group, rows, columns)), (len(lead),))


# softmax(scale·q·kᵀ + mask)·v; 0 for a query whose positions are all masked
def attention(y: Node) -> Node:
    q, k, v, *mask = y.inputs
    scores = attention_scores(q, k, mask, attrs_of(y, at.AttentionAttrs))
    p = b.softmax(scores, scores.type.rank - 1)
    if mask:
        p = b.where(_broadcast_rows(_all_masked(scores), p), b.zeros_like(p), p)
    return b.cast(b.matmul(b.cast(p, v.type.dtype), _per_query_head(v, q)), y.type.dtype)


def _all_masked(scores: Node) -> Node:
    most = b.max_axes(scores, (scores.type.rank - 1,))
    return b.make("equal", (most, b.full_like(most, -inf)))


# log Σ e^(scale·q·kᵀ + mask), over the keys; +∞ for a query whose positions are all masked, so that every e^(s - lse)
# is 0
def attention_lse(y: Node) -> Node:
    q, k, _, *mask = y.inputs
    scores = attention_scores(q, k, mask, attrs_of(y, at.AttentionAttrs))
    lse = b.logsumexp(scores, scores.type.rank - 1)
    return b.where(_all_masked(scores), b.full_like(lse, inf), lse) if mask else lse


# p = e^(s - log Σ e^s), s = scale·q·kᵀ + mask, y = p·v:
# dp = g·vᵀ, ds = p·(dp - Σ p·dp), dq = scale·ds·k, dk = scale·dsᵀ·q, dv = pᵀ·g, dmask = ds.
# At masked positions, p and ds are 0.  Σ p·dp = Σ y·g, which is used if y is an operand.
def attention_grad(y: Node) -> tuple[Node, ...]:
    at_lse, a = lse_position([i.type.rank for i in y.inputs]), attrs_of(y, at.AttentionAttrs)
    (q, k, v, *mask), (lse, g, *out) = y.inputs[:at_lse], y.inputs[at_lse:]
    p = _probabilities(q, k, mask, lse, a)
    dp = b.matmul(g, _per_query_head(v, q), transpose_b=True)
    products = [b.mul(b.cast(x, p.type.dtype), b.cast(g, p.type.dtype)) for x in out] or [b.mul(p, dp)]
    inner = _broadcast_rows(b.sum_axes(products[0], (p.type.rank - 1,)), p)
    ds = b.mul(p, b.sub(dp, inner))
    dq, dk = _query_key_gradients(ds, q, k, a)
    dv = b.matmul(b.cast(p, g.type.dtype), g, transpose_a=True)
    assert isinstance(y.result, TupleType)
    gradients = (dq, dk, _per_group(dv, v), *[ds] * len(mask))
    return tuple(b.cast(x, t.dtype) for x, t in zip(gradients, y.result.items, strict=True))


def _probabilities(q: Node, k: Node, mask: list[Node], lse: Node, a: at.AttentionAttrs) -> Node:
    scores = attention_scores(q, k, mask, a)
    return b.unary("exp", b.sub(scores, _broadcast_rows(lse, scores)))


def _query_key_gradients(ds: Node, q: Node, k: Node, a: at.AttentionAttrs) -> tuple[Node, Node]:
    """The gradients of queries and keys, given the gradient of the scores."""
    scaled = b.cast(b.scale(ds, a.scale), q.type.dtype)  # operands of products have the inputs' dtype
    return b.matmul(scaled, _per_query_head(k, q)), _per_group(b.matmul(scaled, q, transpose_a=True), k)


# y = log Σ e^s:  ds = g·e^(s - y)
def attention_lse_gradients(y: Node, g: Node) -> tuple[Node, ...]:
    (q, k, v, *mask), a = y.inputs, attrs_of(y, at.AttentionAttrs)
    p = _probabilities(q, k, mask, y, a)
    ds = b.mul(p, _broadcast_rows(g, p))
    return *_query_key_gradients(ds, q, k, a), b.full(0.0, TensorType(v.type.shape, ds.type.dtype)), *[ds] * len(mask)
