"""Reference semantics of norms, attention and their gradients: entries of `VALUES`, as in the original papers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.type_rules.layers import lse_position

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]

# -- norms -------------------------------------------------------------------------------------------------------


def _mean(x: Array, axes: Axes) -> Array:
    out: Array = x.sum(axis=axes, keepdims=True) / math.prod(x.shape[d] for d in axes)
    return out


def _normalize(x: Array, axes: Axes, eps: float, centred: bool) -> tuple[Array, Array]:
    """x with mean 0 (if centred) and variance 1, and the factor 1 / sqrt(variance + eps)."""
    if centred:
        x = x - _mean(x, axes)
    factor = 1.0 / np.sqrt(_mean(x * x, axes) + eps)
    return x * factor, factor


def _input_gradient(normal: Array, factor: Array, upstream: Array, axes: Axes, centred: bool) -> Array:
    """factor · (g - mean(g) - x̂ · mean(g · x̂)): the gradient, projected onto the directions that x̂ can move in.

    Without centring (RMS norm) the term mean(g) is absent.
    """
    along = normal * _mean(upstream * normal, axes)
    out: Array = factor * (upstream - along - (_mean(upstream, axes) if centred else 0.0))
    return out


def _last_axis(centred: bool) -> Any:
    def norm(run: Any, a: at.NormAttrs, x: Array, *affine: Array) -> Array:
        return _affine(_normalize(x, (-1,), a.eps, centred)[0], *affine)

    return norm


def _affine(normal: Array, weight: Any = 1.0, bias: Any = 0.0) -> Array:
    out: Array = normal * weight + bias
    return out


def _last_axis_grad(centred: bool) -> Any:
    def grad(run: Any, a: at.NormAttrs, x: Array, *rest: Array) -> tuple[Array, ...]:
        weight, upstream = rest[:-1], rest[-1]
        normal, factor = _normalize(x, (-1,), a.eps, centred)
        scaled = upstream * weight[0] if weight else upstream
        dx = _input_gradient(normal, factor, scaled, (-1,), centred)
        rows = tuple(range(x.ndim - 1))
        sums = (upstream * normal).sum(rows), upstream.sum(rows)
        return dx, *(sums[: 2 if centred else 1] if weight else ())

    return grad


layer_norm, layer_norm_grad = _last_axis(centred=True), _last_axis_grad(centred=True)
rms_norm, rms_norm_grad = _last_axis(centred=False), _last_axis_grad(centred=False)


def _split_groups(x: Array, groups: int) -> tuple[Array, Axes]:
    """Reshape (N, C, ...) to (N, groups, C / groups, ...); also returns the axes of one group."""
    split = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return split, tuple(range(2, split.ndim))


def _per_channel(value: Array, x: Array) -> Array:
    return value.reshape(-1, *[1] * (x.ndim - 2))


def group_norm(run: Any, a: at.GroupNormAttrs, x: Array, *affine: Array) -> Array:
    split, axes = _split_groups(x, a.groups)
    normal = _normalize(split, axes, a.eps, centred=True)[0].reshape(x.shape)
    return _affine(normal, *(_per_channel(p, x) for p in affine))


def group_norm_grad(run: Any, a: at.GroupNormAttrs, x: Array, *rest: Array) -> tuple[Array, ...]:
    weight, upstream = rest[:-1], rest[-1]
    split, axes = _split_groups(x, a.groups)
    normal, factor = _normalize(split, axes, a.eps, centred=True)
    scaled = upstream * _per_channel(weight[0], x) if weight else upstream
    dx = _input_gradient(normal, factor, scaled.reshape(split.shape), axes, centred=True).reshape(x.shape)
    others = (0, *range(2, x.ndim))
    return dx, *(((upstream * normal.reshape(x.shape)).sum(others), upstream.sum(others)) if weight else ())


def _all_but_channel_axis(x: Array) -> Axes:
    return (0, *range(2, x.ndim))


def batch_norm(run: Any, a: at.NormAttrs, x: Array, *affine: Array) -> Array:
    normal = _normalize(x, _all_but_channel_axis(x), a.eps, centred=True)[0]
    return _affine(normal, *(_per_channel(p, x) for p in affine))


def batch_norm_grad(run: Any, a: at.NormAttrs, x: Array, *rest: Array) -> tuple[Array, ...]:
    weight, upstream, axes = rest[:-1], rest[-1], _all_but_channel_axis(x)
    normal, factor = _normalize(x, axes, a.eps, centred=True)
    scaled = upstream * _per_channel(weight[0], x) if weight else upstream
    dx = _input_gradient(normal, factor, scaled, axes, centred=True)
    return dx, *(((upstream * normal).sum(axes), upstream.sum(axes)) if weight else ())


# -- attention ---------------------------------------------------------------------------------------------------


def _transpose(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def _per_query_head(x: Array, q: Array) -> Array:
    """Keys or values repeated so that every query head has its own (grouped-query attention)."""
    return x if x.shape[:-2] == q.shape[:-2] else np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3)


def _sum_query_heads(x: Array, like: Array) -> Array:
    """The adjoint of `_per_query_head`: the sum over the query heads that share one head of `like`."""
    if x.shape[:-2] == like.shape[:-2]:
        return x
    out: Array = x.reshape(*like.shape[:-2], -1, *like.shape[-2:]).sum(axis=-3)
    return out


def _scores(a: at.AttentionAttrs, q: Array, k: Array, mask: tuple[Array, ...]) -> Array:
    scores: Array = a.scale * (q @ _transpose(_per_query_head(k, q))) + (mask[0] if mask else 0.0)
    return np.where(np.tri(*scores.shape[-2:]) > 0, scores, -math.inf) if a.causal else scores


def attention(run: Any, a: at.AttentionAttrs, q: Array, k: Array, v: Array, *mask: Array) -> Array:
    return _half_attention(_no_rounding, a, q, k, v, *mask)


Round = Callable[[Array], Array]  # rounds a GEMM operand to the dtype of the inputs


def _no_rounding(x: Array) -> Array:
    return x


def _half_attention(round_operand: Round, a: at.AttentionAttrs, q: Array, k: Array, v: Array, *mask: Array) -> Array:
    scores = _scores(a, q, k, mask)
    weights = np.exp(scores - _row_max(scores))
    total = weights.sum(axis=-1, keepdims=True)
    out: Array = round_operand(weights / np.where(total == 0, 1.0, total)) @ _per_query_head(v, q)
    return out


def _row_max(scores: Array) -> Array:
    """The row maxima; 0 for a fully masked query, so that all its weights are 0."""
    largest = scores.max(axis=-1, keepdims=True, initial=-math.inf)
    return np.where(largest == -math.inf, 0.0, largest)


def attention_lse(run: Any, a: at.AttentionAttrs, q: Array, k: Array, v: Array, *mask: Array) -> Array:
    """The log-sum-exp of the scores; +inf for a fully masked query, so that every weight e^(s - lse) is 0."""
    scores = _scores(a, q, k, mask)
    largest = _row_max(scores)
    total = np.exp(scores - largest).sum(axis=-1)
    out: Array = np.where(total == 0, math.inf, largest[..., 0] + np.log(np.where(total == 0, 1.0, total)))
    return out


def attention_grad(run: Any, a: at.AttentionAttrs, q: Array, k: Array, v: Array, *rest: Array) -> tuple[Array, ...]:
    return _half_attention_grad(_no_rounding, a, q, k, v, *rest)


def _half_attention_grad(
    round_operand: Round, a: at.AttentionAttrs, q: Array, k: Array, v: Array, *rest: Array
) -> tuple[Array, ...]:
    lse_index = lse_position([x.ndim for x in (q, k, v, *rest)]) - 3
    mask, lse, upstream = rest[:lse_index], rest[lse_index], rest[lse_index + 1]
    p = np.exp(_scores(a, q, k, mask) - lse[..., None])
    dp = upstream @ _transpose(_per_query_head(v, q))
    dscores = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    ds = round_operand(a.scale * dscores)
    dq = ds @ _per_query_head(k, q)
    dk, dv = _sum_query_heads(_transpose(ds) @ q, k), _sum_query_heads(_transpose(round_operand(p)) @ upstream, v)
    return dq, dk, dv, *[dscores] * len(mask)


# Ops with GEMM operands that are intermediate values: with half-precision inputs these are rounded as well.
ROUNDED: dict[str, Callable[..., Any]] = {"attention": _half_attention, "attention_grad": _half_attention_grad}
