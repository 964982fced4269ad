"""Makers of norms, attention and their gradients for random graphs: see random_graphs.py.

`eps` is large and scores are small, so that no row is near the pole of a norm and no softmax is near a jump.
"""

from __future__ import annotations

from hypothesis import strategies as st

from tests.compiler.ir.graph_pool import Pool
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Dim, Extent, TensorType

_EPS = 0.5


def _small(p: Pool, x: Node, bound: float = 2.0) -> Node:
    return x if p.bound[x] <= bound else p.add(p.node("tanh", x), 1.0)


def _fit(p: Pool, *shape: Extent) -> Node:
    return _small(p, p.fit(TensorType(shape, p.dtype)))


def _norm(p: Pool, op: str, x: Node, axis: int, attrs: at.Attrs, most: int) -> None:
    """x is at most √n after it, n the number of elements that are normalised together."""
    affine = [_fit(p, x.type.shape[axis]) for _ in range(p.draw(st.integers(0, most)))]
    node = p.node(op, x, *affine, attrs=attrs)
    p.add(node, 2.0 * p.length(*x.type.shape[axis:]) ** 0.5 + 2.0)


def _norm_grad(p: Pool, op: str, x: Node, axis: int, attrs: at.Attrs, most: int) -> None:
    weight = [_fit(p, x.type.shape[axis])] if p.chance() else []
    node = p.node(op, x, *weight, _fit(p, *x.type.shape), attrs=attrs)
    count = p.length(*x.type.shape)
    for i in range(1 + most * len(weight)):
        p.add(p.node("item", node, attrs=at.ItemAttrs(i)), 2.0 * count)


def make_norm(p: Pool) -> None:
    op, most = p.pick([("layer_norm", 2), ("rms_norm", 1)])
    x = p.any_float(rank=1)
    _norm(p, op, x, x.type.rank - 1, at.NormAttrs(_EPS), most)


def make_norm_grad(p: Pool) -> None:
    op, most = p.pick([("layer_norm_grad", 2), ("rms_norm_grad", 1)])
    x = p.any_float(rank=1)
    _norm_grad(p, op, x, x.type.rank - 1, at.NormAttrs(_EPS), most)


def _grouped(p: Pool) -> tuple[Node, at.GroupNormAttrs]:
    images = [n for n in p.floats(rank=2) if isinstance(n.type.shape[1], int) and n.type.shape[1]]
    x = p.pick(images) if images else p.new_state((3, 4, 2))
    channels = x.type.shape[1]
    return x, at.GroupNormAttrs(p.pick([g for g in range(1, channels + 1) if channels % g == 0]), _EPS)


def make_group_norm(p: Pool) -> None:
    x, attrs = _grouped(p)
    _norm(p, "group_norm", x, 1, attrs, 2)


def make_group_norm_grad(p: Pool) -> None:
    x, attrs = _grouped(p)
    _norm_grad(p, "group_norm_grad", x, 1, attrs, 2)


def _batched(p: Pool) -> Node:
    """Images or rows with more than one value per channel, whatever the sizes."""
    several = [
        n for n in p.floats(rank=2) if any(isinstance(e, int) and e > 1 for e in (n.type.shape[0], *n.type.shape[2:]))
    ]
    return p.pick(several) if several else p.new_state((3, 4, 2))


def make_batch_norm(p: Pool) -> None:
    x = _batched(p)
    affine = [_fit(p, x.type.shape[1]) for _ in range(p.draw(st.integers(0, 2)))]
    node = p.node("batch_norm", x, *affine, attrs=at.NormAttrs(_EPS))
    p.add(node, 2.0 * p.length(*x.type.shape) ** 0.5 + 2.0)


def make_batch_norm_grad(p: Pool) -> None:
    _norm_grad(p, "batch_norm_grad", _batched(p), 1, at.NormAttrs(_EPS), 2)


def make_dropout(p: Pool) -> None:
    x = p.any_float(rank=1)
    rate = p.node("scalar", attrs=at.ScalarAttrs("rate", 0.25))
    p.add(p.node("dropout", x, rate, attrs=at.DropoutAttrs(p.pick(["drop.0", "drop.1"]))), 2.0 * p.bound[x])


def _queries_keys_values(p: Pool) -> tuple[list[Node], at.AttentionAttrs]:
    ranked = p.floats(rank=2)
    q = _small(p, p.pick(ranked) if ranked else p.new_state((3, 4)))
    *leading, _, width = q.type.shape
    keys = p.pick([2, 3, *map(Dim.symbol, p.symbols)])
    shared = [*leading]
    if shared and isinstance(shared[-1], int) and shared[-1] > 1 and p.chance():
        shared[-1] = 1  # one head of keys for all of the queries'
    k, v = _fit(p, *shared, keys, width), _fit(p, *shared, keys, p.pick([1, 3]))
    mask = [_fit(p, *q.type.shape[:-1], keys)] if p.chance() else []
    return [q, k, v, *mask], at.AttentionAttrs(p.chance(), 0.25)


def make_attention(p: Pool) -> None:
    inputs, attrs = _queries_keys_values(p)
    p.add(p.node("attention", *inputs, attrs=attrs), p.bound[inputs[2]])


def make_attention_lse(p: Pool) -> None:
    inputs, attrs = _queries_keys_values(p)
    p.add(p.node("attention_lse", *inputs, attrs=attrs), 8.0 * p.length(*inputs[0].type.shape))


def make_attention_grad(p: Pool) -> None:
    inputs, attrs = _queries_keys_values(p)
    q, _, v, *_ = inputs
    upstream = _fit(p, *q.type.shape[:-1], v.type.shape[-1])
    lse = p.node("attention_lse", *inputs, attrs=attrs)
    node = p.node("attention_grad", *inputs, lse, upstream, attrs=attrs)
    bound = 8.0 * p.length(*q.type.shape)
    for i in range(len(inputs)):
        p.add(p.node("item", node, attrs=at.ItemAttrs(i)), bound)


LAYER_MAKERS = [f for name, f in list(globals().items()) if name.startswith("make_")]
