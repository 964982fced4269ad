"""Type rules of the layers that are one op: norms, attention, and their gradients.

A norm takes x and, where it has them, its weight and bias: one op whose inputs may be left out, so that a plain
normalisation needs neither ones and zeros nor an op, a kernel and a set of rules of its own.
A gradient op gives all gradients of its layer at once; `item` picks one, and those nobody picks are never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.type_rules.require import need, need_float, need_same, need_same_dtype
from wholestep.compiler.ir.types import Extent, Shape, TensorType, TupleType, Type, float64, product, shape_text
from wholestep.errors import OptionError

Rule = Callable[..., Type]


# -- norms -------------------------------------------------------------------------------------------------------


def _check_norm(op: str, attrs: Any, x: TensorType, affine: tuple[TensorType, ...]) -> None:
    need_float(op, x)
    axis = _check_axes(op, attrs, x)
    need(attrs.eps >= 0, f"{op}: eps must not be negative; received {attrs.eps}.", OptionError)
    for name, t in zip(("weight", "bias"), affine):
        need_same_dtype(op, x, t)
        need(
            t.shape == (x.shape[axis],),
            f"{op}: the {name} of an input of shape {shape_text(x.shape)} has one element for each of axis {axis}, "
            f"{shape_text((x.shape[axis],))}; received {shape_text(t.shape)}.",
        )


def _check_axes(op: str, attrs: Any, x: TensorType) -> int:
    """The axis along which weight and bias lie."""
    if isinstance(attrs, at.GroupNormAttrs):
        return _check_groups(attrs, x)
    return _check_batch(op, x) if op.startswith("batch_norm") else _last_axis(op, x)


def values_per_channel(shape: Shape) -> Extent:
    """How many elements of (N, C, ...) a batch norm normalises together."""
    return product((shape[0], *shape[2:]))


def _check_batch(op: str, x: TensorType) -> int:
    need(x.rank >= 2, f"{op} needs an input of shape (N, C, ...); received {shape_text(x.shape)}.")
    need(
        values_per_channel(x.shape) != 1,
        f"{op}: an input of shape {shape_text(x.shape)} has one value per channel, which has no variance; give it more "
        "rows, or use layer_norm.",
    )
    return 1


def _last_axis(op: str, x: TensorType) -> int:
    need(x.rank >= 1, f"{op} needs an axis to normalise over; received a scalar.")
    return x.rank - 1


def _check_groups(a: at.GroupNormAttrs, x: TensorType) -> int:
    need(x.rank >= 2, f"group_norm needs an input of shape (N, C, ...); received {shape_text(x.shape)}.")
    channels = x.shape[1]
    need(
        isinstance(channels, int) and a.groups > 0 and channels % a.groups == 0,
        f"group_norm: {channels} channels of {shape_text(x.shape)} do not divide into {a.groups} equal groups; choose "
        "a divisor of the number of channels.",
    )
    return 1


def norm(op: str, most: int) -> Rule:
    """x, then at most `most` inputs among weight, bias -> x."""

    def rule(a: Any, x: TensorType, *affine: TensorType) -> Type:
        assert len(affine) <= most, f"{op} takes {1 + most} inputs at most, not {1 + len(affine)}"
        _check_norm(op, a, x, affine)
        return x

    return rule


def norm_grad(op: str, most: int) -> Rule:
    """x, the weight where there is one, the upstream gradient -> gradients of x, weight, bias."""

    def rule(a: Any, x: TensorType, *rest: TensorType) -> Type:
        assert 1 <= len(rest) <= 2, f"{op} takes x, maybe a weight, and the upstream gradient; received {1 + len(rest)}"
        weight, upstream = rest[:-1], rest[-1]
        _check_norm(op, a, x, weight)
        need_same(op, x, upstream)
        return TupleType((x, *weight * most))

    return rule


# -- dropout -----------------------------------------------------------------------------------------------------


def dropout(_: at.DropoutAttrs, x: TensorType, rate: TensorType) -> Type:
    need_float("dropout", x)
    need(x.rank >= 1, "dropout needs a tensor with an axis; received a scalar.")
    need(
        rate == TensorType((), float64),
        f"dropout: the rate is one number of float64, a runtime scalar; received {rate}.",
    )
    return x


# -- attention ---------------------------------------------------------------------------------------------------


def attention(a: at.AttentionAttrs, q: TensorType, k: TensorType, v: TensorType, *mask: TensorType) -> Type:
    """(..., T, d), (..., S, d), (..., S, e), maybe (..., T, S) to add to the scores -> (..., T, e).

    Scores, their mask and the result have the dtype that products of q accumulate in; a rounded result has q's.
    Of the last leading axis, the heads, there may be fewer keys and values: each serves a group of queries in a row.
    """
    need_float("attention", q, k, v)
    need_same_dtype("attention", q, k, v)
    shapes = f"queries {shape_text(q.shape)}, keys {shape_text(k.shape)}, values {shape_text(v.shape)}"
    need(
        q.rank == k.rank == v.rank >= 2 and q.shape[:-3] == k.shape[:-3] and k.shape[:-2] == v.shape[:-2],
        f"attention needs queries, keys and values of one rank, at least 2, with equal leading axes (batch, heads); "
        f"received {shapes}.",
    )
    need(
        q.shape[:-2] == k.shape[:-2] or bool(heads_in_group(q, k)),
        f"attention: {(1, *q.shape)[-3]} heads of queries do not divide into equal groups over {(1, *k.shape)[-3]} "
        f"heads of keys and values; choose a multiple of those, or as many. Received {shapes}.",
    )
    need(
        q.shape[-1] == k.shape[-1],
        f"attention: queries and keys are compared along their last axis, {q.shape[-1]} and {k.shape[-1]} here; "
        f"received {shapes}.",
    )
    need(
        k.shape[-2] == v.shape[-2],
        f"attention: every key has one value, but there are {k.shape[-2]} keys and {v.shape[-2]} values; "
        f"received {shapes}.",
    )
    scores = TensorType((*q.shape[:-1], k.shape[-2]), q.dtype.accumulate)
    assert len(mask) <= 1, f"attention takes 4 inputs at most, not {3 + len(mask)}"
    for m in mask:
        need_same_dtype("attention", scores, m)
        need(
            m.shape == scores.shape,
            f"attention: a mask has one element per query and key, {shape_text(scores.shape)}; received "
            f"{shape_text(m.shape)} for {shapes}.",
        )
    return TensorType((*q.shape[:-1], v.shape[-1]), q.dtype if a.rounded else scores.dtype)


def heads_in_group(q: TensorType, k: TensorType) -> int:
    """How many heads of queries share each head of keys; 0 where they do not divide evenly."""
    if q.shape[:-2] == k.shape[:-2]:
        return 1
    heads, shared = q.shape[-3], k.shape[-3]
    whole = isinstance(heads, int) and isinstance(shared, int) and shared > 0 and heads % shared == 0
    return heads // shared if whole else 0  # type: ignore[operator]


def attention_lse(a: at.AttentionAttrs, q: TensorType, *others: TensorType) -> Type:
    """The inputs of attention -> one number per query, of which its gradient makes the probabilities again."""
    attention(a, q, *others)
    return TensorType(q.shape[:-1], q.dtype.accumulate)


def attention_grad(a: at.AttentionAttrs, q: TensorType, *rest: TensorType) -> Type:
    """The inputs of attention, their attention_lse, then the upstream gradient -> gradients of the inputs.

    The upstream gradient is an operand of products, and has the dtype of q; what they give accumulates.  Last may come
    the result of attention, which spares a routine a product.
    """
    wide, at_lse = q.dtype.accumulate, lse_position([t.rank for t in (q, *rest)])
    others, (lse, upstream, *result) = rest[: at_lse - 1], rest[at_lse - 1 :]
    made = attention(a, q, *others)
    assert isinstance(made, TensorType)
    need_same("attention_grad", TensorType(made.shape, q.dtype), upstream)
    need_same("attention_grad", TensorType(q.shape[:-1], wide), lse)
    for given in result:
        need_same("attention_grad", made, given)
    rounded = 3 if a.rounded else 0
    return TupleType(tuple(TensorType(t.shape, q.dtype if i < rounded else wide) for i, t in enumerate((q, *others))))


def lse_position(ranks: Sequence[int]) -> int:
    """Which of the inputs of attention_grad is the attention_lse: it has no axis of columns, as all others have."""
    return 3 if ranks[3] < ranks[0] else 4
