"""Alternative spellings of composites, besides their definition: the same arithmetic as users write it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Shape, product
from wholestep.compiler.passes.lower.layer_decompositions import attention_scores

Spellings = Callable[[Node], Iterator[tuple[Node, ...]]]


# (N, C, ...) as (N, groups, C / groups, ...), normalized over all axes after the groups
def _group_norm(y: Node) -> Iterator[tuple[Node, ...]]:
    (x, *affine), a = y.inputs, attrs_of(y, at.GroupNormAttrs)
    batch, channels, *rest = x.type.shape
    assert isinstance(channels, int), f"{y!r} passed the type rule of group_norm"
    if not rest and channels == a.groups:
        return
    split = b.reshape(x, (batch, a.groups, channels // a.groups, *rest))
    axes = tuple(range(2, split.type.rank))
    centred = b.sub(split, b.restore_axes(_mean(split, axes), axes, split.type.shape))
    factor = b.unary("recip", b.unary("sqrt", b.shift(_mean(b.mul(centred, centred), axes), a.eps)))
    normal = b.reshape(b.mul(centred, b.restore_axes(factor, axes, split.type.shape)), x.type.shape)
    for op, p in zip(("mul", "add"), affine):
        normal = b.make(op, (normal, b.expand_to(p, normal.type.shape, (1,))))
    yield (normal,)


# (x - mean)·f·weight + bias, with means over all axes but the channels, as ratios, with or without keepdims
def _batch_norm(y: Node) -> Iterator[tuple[Node, ...]]:
    (x, *affine), a = y.inputs, attrs_of(y, at.NormAttrs)
    axes, channels = (0, *range(2, x.type.rank)), x.type.shape[1:2]

    def broadcast(value: Node) -> Node:
        return b.expand_to(b.reshape(value, channels), x.type.shape, (1,))

    for shape in (channels, tuple(1 if d in axes else e for d, e in enumerate(x.type.shape))):
        centred = b.sub(x, broadcast(_ratio(x, axes, shape)))
        deviation = b.unary("sqrt", b.shift(_ratio(b.mul(centred, centred), axes, shape), a.eps))
        normal = b.mul(centred, broadcast(b.unary("recip", b.reshape(deviation, channels))))
        for op, p in zip(("mul", "add"), affine):
            normal = b.make(op, (normal, b.expand_to(p, normal.type.shape, (1,))))
        yield (normal,)


def _ratio(x: Node, axes: tuple[int, ...], shape: Shape) -> Node:
    total, count = _mean(x, axes).inputs
    return b.make("ratio", (b.reshape(total, shape), b.expand_to(count.inputs[0], shape, ())))


def _mean(x: Node, axes: tuple[int, ...]) -> Node:
    total = b.sum_axes(x, axes)
    count = b.count(product(x.type.shape[d] for d in axes), x.type.dtype)
    return b.div(total, b.expand_to(count, total.type.shape, ()))


# softmax(scale·q·kᵀ + mask)·v, the usual form: NaN for a query whose positions are all masked; the composite gives 0
def _attention(y: Node) -> Iterator[tuple[Node, ...]]:
    q, k, v, *mask = y.inputs
    yield (b.matmul(b.softmax(attention_scores(q, k, mask, attrs_of(y, at.AttentionAttrs)), q.type.rank - 1), v),)


# p = softmax(scale·q·kᵀ + mask), dp = g·vᵀ, ds = p·(dp - Σ p·dp):
# dq = scale·ds·k, dk = scale·dsᵀ·q, dv = pᵀ·g, dmask = ds,
# with the probabilities of the forward pass; the definition recomputes them from the log-sum-exp of each query
def _attention_grad(y: Node) -> Iterator[tuple[Node, ...]]:
    a = attrs_of(y, at.AttentionAttrs)
    q, k, v, *mask = (n for n in y.inputs[:-1] if n.op == "input")
    g = y.inputs[-1]
    scores = attention_scores(q, k, mask, a)
    last = scores.type.rank - 1
    p, dp = b.softmax(scores, last), b.matmul(g, v, transpose_b=True)
    inner = b.restore_axes(b.sum_axes(b.mul(p, dp), (last,)), (last,), p.type.shape)
    ds = b.mul(p, b.sub(dp, inner))
    dq, dk = b.scale(b.matmul(ds, k), a.scale), b.scale(b.matmul(ds, q, transpose_a=True), a.scale)
    yield dq, dk, b.matmul(p, g, transpose_a=True), *[ds] * len(mask)


SPELLINGS: dict[str, Spellings] = {
    "attention": _attention,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "attention_grad": _attention_grad,
}
NEVER_AS_DEFINED = frozenset({"attention", "attention_grad"})  # users never write the definition itself
