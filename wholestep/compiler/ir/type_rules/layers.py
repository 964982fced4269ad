"""Type rules of the layers that are a single op: norms, dropout, attention, and their gradients.

A norm takes x and optionally weight and bias.  Optional inputs keep one op per norm: a norm without affine parameters
needs neither constant ones and zeros nor an op, a kernel and rewrite rules of its own.
A gradient op returns all gradients of its layer; `item` selects one, and unused gradients are never computed.
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
    axis = _affine_axis(op, attrs, x)
    need(attrs.eps >= 0, f"{op}: eps must not be negative; received {attrs.eps}.", OptionError)
    for name, t in zip(("weight", "bias"), affine):
        need_same_dtype(op, x, t)
        need(
            t.shape == (x.shape[axis],),
            f"{op}: the {name} of an input of shape {shape_text(x.shape)} needs one element per index of axis {axis}, "
            f"{shape_text((x.shape[axis],))}; received {shape_text(t.shape)}.",
        )


def _affine_axis(op: str, attrs: Any, x: TensorType) -> int:
    """The axis that weight and bias are indexed by."""
    if isinstance(attrs, at.GroupNormAttrs):
        return _group_norm_axis(attrs, x)
    return _batch_norm_axis(op, x) if op.startswith("batch_norm") else _last_axis(op, x)


def values_per_channel(shape: Shape) -> Extent:
    """The number of elements of (N, C, ...) over which a batch norm computes one mean and variance."""
    return product((shape[0], *shape[2:]))


def _batch_norm_axis(op: str, x: TensorType) -> int:
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


def _group_norm_axis(a: at.GroupNormAttrs, x: TensorType) -> int:
    need(x.rank >= 2, f"group_norm needs an input of shape (N, C, ...); received {shape_text(x.shape)}.")
    channels = x.shape[1]
    need(
        isinstance(channels, int) and a.groups > 0 and channels % a.groups == 0,
        f"group_norm: {channels} channels of {shape_text(x.shape)} do not divide into {a.groups} equal groups; choose "
        "a divisor of the number of channels.",
    )
    return 1


def norm(op: str, max_affine: int) -> Rule:
    """(x, [weight, [bias]]) -> type of x, with at most `max_affine` affine inputs."""

    def rule(a: Any, x: TensorType, *affine: TensorType) -> Type:
        assert len(affine) <= max_affine, f"{op} takes at most {1 + max_affine} inputs, not {1 + len(affine)}"
        _check_norm(op, a, x, affine)
        return x

    return rule


def norm_grad(op: str, affine_count: int) -> Rule:
    """(x, [weight], upstream gradient) -> gradients of x and, if there is a weight, of weight and bias."""

    def rule(a: Any, x: TensorType, *rest: TensorType) -> Type:
        assert 1 <= len(rest) <= 2, (
            f"{op} takes x, an optional weight and the upstream gradient; received {1 + len(rest)} inputs"
        )
        weight, upstream = rest[:-1], rest[-1]
        _check_norm(op, a, x, weight)
        need_same(op, x, upstream)
        return TupleType((x, *weight * affine_count))

    return rule


# -- dropout -----------------------------------------------------------------------------------------------------


def dropout(_: at.DropoutAttrs, x: TensorType, rate: TensorType) -> Type:
    need_float("dropout", x)
    need(x.rank >= 1, "dropout needs a tensor with an axis; received a scalar.")
    need(
        rate == TensorType((), float64),
        f"dropout: the rate must be a float64 runtime scalar; received {rate}.",
    )
    return x


# -- attention ---------------------------------------------------------------------------------------------------


def attention(a: at.AttentionAttrs, q: TensorType, k: TensorType, v: TensorType, *mask: TensorType) -> Type:
    """(..., T, d), (..., S, d), (..., S, e), maybe (..., T, S) to add to the scores -> (..., T, e).

    Scores, their mask and the result have the dtype that products of q accumulate in; a rounded result has q's.
    Keys and values may have fewer heads (the last leading axis) than queries: each serves a group of consecutive ones.
    """
    need_float("attention", q, k, v)
    need_same_dtype("attention", q, k, v)
    shapes = f"queries {shape_text(q.shape)}, keys {shape_text(k.shape)}, values {shape_text(v.shape)}"
    need(
        q.rank == k.rank == v.rank >= 2 and q.shape[:-3] == k.shape[:-3] and k.shape[:-2] == v.shape[:-2],
        f"attention needs queries, keys and values of equal rank (at least 2) with equal leading axes (batch, heads); "
        f"received {shapes}.",
    )
    need(
        q.shape[:-2] == k.shape[:-2] or bool(heads_in_group(q, k)),
        f"attention: the number of query heads ({(1, *q.shape)[-3]}) must be a multiple of the number of key and value "
        f"heads ({(1, *k.shape)[-3]}); received {shapes}.",
    )
    need(
        q.shape[-1] == k.shape[-1],
        f"attention: queries and keys need last axes of equal length, not {q.shape[-1]} and {k.shape[-1]}; "
        f"received {shapes}.",
    )
    need(
        k.shape[-2] == v.shape[-2],
        f"attention: every key has one value, but there are {k.shape[-2]} keys and {v.shape[-2]} values; "
        f"received {shapes}.",
    )
    scores = TensorType((*q.shape[:-1], k.shape[-2]), q.dtype.accumulate)
    assert len(mask) <= 1, f"attention takes at most 4 inputs, not {3 + len(mask)}"
    for m in mask:
        need_same_dtype("attention", scores, m)
        need(
            m.shape == scores.shape,
            f"attention: a mask needs one element per query and key, {shape_text(scores.shape)}; received "
            f"{shape_text(m.shape)} for {shapes}.",
        )
    return TensorType((*q.shape[:-1], v.shape[-1]), q.dtype if a.rounded else scores.dtype)


def heads_in_group(q: TensorType, k: TensorType) -> int:
    """Grouped-query attention: the number of query heads per key head; 0 if it is not an integer."""
    if q.shape[:-2] == k.shape[:-2]:
        return 1
    heads, key_heads = q.shape[-3], k.shape[-3]
    divisible = isinstance(heads, int) and isinstance(key_heads, int) and key_heads > 0 and heads % key_heads == 0
    return heads // key_heads if divisible else 0  # type: ignore[operator]


def attention_lse(a: at.AttentionAttrs, q: TensorType, *others: TensorType) -> Type:
    """The inputs of attention -> the log-sum-exp of each query's scores.

    The gradient recomputes the probabilities from it, as in FlashAttention, so that they are never stored.
    """
    attention(a, q, *others)
    return TensorType(q.shape[:-1], q.dtype.accumulate)


def attention_grad(a: at.AttentionAttrs, q: TensorType, *rest: TensorType) -> Type:
    """(inputs of attention, attention_lse, upstream gradient, [result of attention]) -> gradients of the inputs.

    The upstream gradient is a GEMM operand and therefore has the dtype of q; GEMM results have the accumulation dtype.
    The optional result of attention saves a routine one GEMM.
    """
    accumulate, lse_index = q.dtype.accumulate, lse_position([t.rank for t in (q, *rest)])
    others, (lse, upstream, *result) = rest[: lse_index - 1], rest[lse_index - 1 :]
    forward = attention(a, q, *others)
    assert isinstance(forward, TensorType)
    need_same("attention_grad", TensorType(forward.shape, q.dtype), upstream)
    need_same("attention_grad", TensorType(q.shape[:-1], accumulate), lse)
    for forward_result in result:
        need_same("attention_grad", forward, forward_result)
    rounded = 3 if a.rounded else 0
    return TupleType(
        tuple(TensorType(t.shape, q.dtype if i < rounded else accumulate) for i, t in enumerate((q, *others)))
    )


def lse_position(ranks: Sequence[int]) -> int:
    """The position of attention_lse among the inputs of attention_grad: 3, or 4 with a mask.

    It is the input whose rank is lower by one, since it has no feature axis.
    """
    return 3 if ranks[3] < ranks[0] else 4
