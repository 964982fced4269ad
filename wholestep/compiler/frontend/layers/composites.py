"""Layers that are a single op, forward and backward: norms, dropout, attention.  A backend may use one kernel each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Protocol, runtime_checkable

from wholestep.compiler.frontend.functions.primitives import iota, matmul, softmax, sqrt
from wholestep.compiler.frontend.layers.segments import current_segments
from wholestep.compiler.frontend.precision import matmul_operand
from wholestep.compiler.frontend.tensor import Axes, Operand, Tensor, as_tensor, common_graph, ratio, where
from wholestep.compiler.frontend.trace import bind_value, fail, record
from wholestep.compiler.frontend.type_promotion import promote
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, rewrite
from wholestep.compiler.ir.type_rules.layers import values_per_channel
from wholestep.compiler.ir.types import DType, boolean, shape_text
from wholestep.errors import OptionError, ShapeError, UsageError

__all__ = ["attention", "batch_norm", "by_mode", "dropout", "group_norm", "layer_norm", "rms_norm"]

# -- norms -------------------------------------------------------------------------------------------------------


def layer_norm(
    x: Tensor, weight: Operand | None = None, bias: Operand | None = None, axis: Axes = -1, eps: float = 1e-5
) -> Tensor:
    """(x - mean) / √(variance + eps) · weight + bias, mean and variance over the axes (arXiv:1607.06450).

    Args:
        weight, bias: of the shape of the axes; 1 and 0 by default.
        axis: one or several; the last one by default.

    Example: `ws.layer_norm(x, gain, shift)`.
    """
    if weight is None and bias is not None:  # the op supports a bias only together with a weight
        return layer_norm(x, axis=axis, eps=eps) + _broadcast_bias("layer_norm", x, bias, axis)
    return _over_axes("layer_norm", x, (weight, bias), axis, at.NormAttrs(float(eps)))


def rms_norm(x: Tensor, weight: Operand | None = None, axis: Axes = -1, eps: float | None = None) -> Tensor:
    """x / √(mean x² + eps) · weight, the mean over the axes (arXiv:1910.07467).

    Args:
        weight: of the shape of the axes; 1 by default.
        eps: the machine epsilon of x's dtype by default.

    Example: `ws.rms_norm(x, gain)`.
    """
    epsilon = x.dtype.eps if eps is None else eps
    return _over_axes("rms_norm", x, (weight,), axis, at.NormAttrs(float(epsilon)))


def group_norm(
    x: Tensor, groups: int, weight: Operand | None = None, bias: Operand | None = None, eps: float = 1e-5
) -> Tensor:
    """(x - mean) / √(variance + eps) · weight + bias, mean and variance over each group of channels
    (arXiv:1803.08494).

    Args:
        x: (N, C, ...); C is split into `groups` equal parts, each normalised over its channels and all later axes.
        weight, bias: (C,); 1 and 0 by default.

    Example: `ws.group_norm(images, 8)`.
    """
    attrs = at.GroupNormAttrs(groups, float(eps))
    if weight is None and bias is not None:
        shift = as_tensor(bias)
        return group_norm(x, groups, eps=eps) + shift.reshape((*shift.shape, *[1] * (x.ndim - 2)))
    return _record("group_norm", [x, *(p for p in (weight, bias) if p is not None)], attrs)


def batch_norm(
    x: Tensor,
    weight: Operand | None = None,
    bias: Operand | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
    per_worker: bool = False,
) -> Tensor:
    """(x - mean) / √(variance + eps) · weight + bias, mean and variance of each channel over the batch and the axes
    after the channels (arXiv:1502.03167).

    Training uses the statistics of the batch, and updates running = (1 - momentum)·running + momentum·batch at the end
    of the step (with the unbiased variance, as in PyTorch); evaluation and prediction use the running statistics.

    Args:
        x: (N, C) or (N, C, ...), with more than one value per channel.
        weight, bias: (C,); 1 and 0 by default.
        running_mean, running_var: states (C,), both or none: without them, the batch's statistics are always used.
        per_worker: with several workers, normalise the rows of each separately; running statistics cover all rows.

    Example: `ws.batch_norm(x, gain, shift)`.
    """
    if weight is None and bias is not None:
        shift = _check_channels("batch_norm", x, "bias", bias)
        return batch_norm(x, None, None, running_mean, running_var, momentum, eps, per_worker) + _per_channel(shift, x)
    parameters = (("weight", weight), ("bias", bias))
    affine = [_check_channels("batch_norm", x, name, p) for name, p in parameters if p is not None]
    out = _record("batch_norm", [x, *affine], at.NormAttrs(float(eps), per_worker))
    if running_mean is None and running_var is None:
        return out
    if running_mean is None or running_var is None:
        missing = "running_mean" if running_mean is None else "running_var"
        fail(UsageError, f"batch_norm needs both running statistics or none; {missing} is missing.")
    mean, var = (
        _check_channels("batch_norm", x, name, p)
        for name, p in (("running_mean", running_mean), ("running_var", running_var))
    )
    if not _EVALUATING.get():
        _update_running_statistics(x, running_mean, running_var, momentum)
    return by_mode(out, normalize_by(x, mean, var, eps, *affine))


def normalize_by(
    x: Tensor, mean: Tensor, var: Tensor, eps: float, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """A batch norm with given statistics, as in evaluation: (x - mean) · (1 / √(var + eps) · weight) + bias."""
    scale = 1.0 / sqrt(var + eps)
    scale = scale if weight is None else scale * weight
    out = (x - _per_channel(mean, x)) * _per_channel(scale, x)
    return out if bias is None else out + _per_channel(bias, x)


def _update_running_statistics(x: Tensor, mean: Tensor, var: Tensor, momentum: float | Tensor) -> None:
    """Record the updates of the running statistics; CSE merges their sums with the norm's sums."""
    if x.graph is None:
        fail(UsageError, "batch_norm updates its running statistics, states of a graph; record x in one first.")
    average, unbiased = batch_statistics(x)
    if not isinstance(momentum, Tensor) and not 0 <= momentum <= 1:
        fail(OptionError, f"batch_norm: momentum must be between 0 (no update) and 1; received {momentum!r}.")
    weight = as_tensor(momentum).astype(x.dtype)
    for state, batch in ((mean, average), (var, unbiased)):
        # A norm that is called twice in a step applies both updates in order, as PyTorch does.
        x.graph.advance(state, lambda running, batch=batch: running * (1.0 - weight) + batch * weight)  # type: ignore[misc]


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of each channel, by the same expressions as `batch_norm`, so that CSE merges them."""
    spatial_axes, count = tuple(range(2, x.ndim)), values_per_channel(x.shape)
    average = ratio(x.sum(spatial_axes).sum(0), count)
    centred = x - _per_channel(average, x)
    variance = ratio((centred * centred).sum(spatial_axes).sum(0), count)
    elements = as_tensor(count).astype("float64")
    return average, variance * (elements / (elements - 1.0)).astype(x.dtype)


def _check_channels(op: str, x: Tensor, name: str, value: Operand) -> Tensor:
    p = as_tensor(value)
    if x.ndim < 2:
        fail(ShapeError, f"{op} needs an input of shape (N, C, ...); received {shape_text(x.shape)}.")
    if p.shape != (x.shape[1],):
        fail(
            ShapeError,
            f"{op}: the {name} needs one value for each of the {x.shape[1]} channels of {shape_text(x.shape)}; "
            f"received {shape_text(p.shape)}.",
        )
    return p


def _per_channel(p: Tensor, x: Tensor) -> Tensor:
    """A vector over channels, reshaped to broadcast against x (N, C, ...)."""
    return p.reshape((x.shape[1], *[1] * (x.ndim - 2)))


def _record(op: str, operands: Sequence[Operand], attrs: at.Attrs) -> Tensor:
    nodes = promote(op, [as_tensor(o).node for o in operands])
    return Tensor(record(op, nodes, attrs), common_graph(*operands))


def _over_axes(op: str, x: Tensor, affine: Sequence[Operand | None], axis: Axes, attrs: at.Attrs) -> Tensor:
    """A norm over the given axes by the op for the last axis: they are moved to the end and merged."""
    axes = x._axes(axis)
    parameters = zip(("weight", "bias"), affine)
    params = [_check_operand(op, x, name, p, axes).reshape(-1) for name, p in parameters if p is not None]
    if axes == (x.ndim - 1,):
        return _record(op, [x, *params], attrs)
    if not axes:
        fail(ShapeError, f"{op} needs an axis to normalise over; received x {shape_text(x.shape)}, axis={axis}.")
    order = [*(d for d in range(x.ndim) if d not in axes), *axes]
    permuted = x.permute(*order)
    leading = x.ndim - len(axes)
    rows = permuted.reshape((*permuted.shape[:leading], -1))
    out = _record(op, [rows, *params], attrs).reshape(permuted.shape)
    return out.permute(*(order.index(d) for d in range(x.ndim)))


def _check_operand(op: str, x: Tensor, name: str, value: Operand, axes: Sequence[int]) -> Tensor:
    p, expected = as_tensor(value), tuple(x.shape[d] for d in axes)
    if p.shape != expected:
        fail(
            ShapeError,
            f"{op}: the {name} must have the shape of the normalised axes, {shape_text(expected)} of "
            f"{shape_text(x.shape)}; received {shape_text(p.shape)}.",
        )
    return p


def _broadcast_bias(op: str, x: Tensor, bias: Operand, axis: Axes) -> Tensor:
    """A bias over some axes, with size 1 along all other axes, so that it broadcasts against x."""
    axes = x._axes(axis)
    p = _check_operand(op, x, "bias", bias, axes)
    return p.reshape(tuple(e if d in axes else 1 for d, e in enumerate(x.shape)))


# -- dropout -----------------------------------------------------------------------------------------------------


@runtime_checkable
class Switchable(Protocol):
    """A number that remains a runtime scalar even if it is 0 (*off*): what `ws.runtime` returns."""

    @property
    def value(self) -> float: ...


def dropout(x: Tensor, p: float | Switchable | Tensor = 0.5) -> Tensor:
    """x / (1 - p) with probability 1 - p, else 0, in training; x itself in evaluation and prediction
    (Srivastava et al., 2014).

    The entry point that runs decides which, not a flag.  The rate is a runtime scalar named `<key>.rate`, the key being
    the graph's scope and the ordinal of the draw in it; a rate of 0 records nothing unless it is `ws.runtime(0.0)`.  A
    scalar of your own, `g.scalar("rate", 0.1)`, may serve several calls.

    Example: `ws.dropout(x, 0.1)`.
    """
    if _EVALUATING.get() or (not isinstance(p, Tensor | Switchable) and p == 0):
        return x
    if x.graph is None:
        fail(UsageError, "dropout draws random numbers, which belong to a graph; record x in one first.")
    key = x.graph.next_random_key()
    rate = p if isinstance(p, Tensor) else x.graph.scalar(f"{key}.rate", _rate(p))
    return Tensor(record("dropout", [x.node, rate.astype("float64").node], at.DropoutAttrs(key)), common_graph(x, rate))


def _rate(p: float | Switchable) -> float:
    value = float(p.value if isinstance(p, Switchable) else p)
    if not 0 <= value <= 1:
        fail(OptionError, f"dropout: p must be a probability between 0 and 1; received {value}.")
    return value


_EVALUATING: ContextVar[bool] = ContextVar("evaluating", default=False)


def evaluation_mode() -> AbstractContextManager[None]:
    """Records layers inside as in prediction (no dropout, running statistics), within a step that updates states."""
    return bind_value(_EVALUATING, True)


def evaluation_graph(graph: IRGraph) -> IRGraph:
    """The form of a traced graph outside of training: without dropout, and with running statistics."""
    replacement = {"dropout": 0, "by_mode": 1}  # op -> the input that replaces it
    return rewrite(graph, lambda node: node.inputs[replacement[node.op]] if node.op in replacement else node)


def by_mode(training: Tensor, evaluating: Tensor) -> Tensor:
    """One value in training steps, another in evaluation and prediction; the entry point decides, not a flag.

    Example: `ws.by_mode(batch_mean, running_mean)`.
    """
    if _EVALUATING.get():
        return evaluating
    graph = common_graph(training, evaluating)
    return Tensor(record("by_mode", [training.node, evaluating.node]), graph)


# -- attention ---------------------------------------------------------------------------------------------------


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    mask: Operand | None = None,
    dropout: float | Switchable | Tensor = 0.0,
) -> Tensor:
    """softmax(scale · q · kᵀ + mask) · v (arXiv:1706.03762).

    Args:
        q: queries, (..., T, d).
        k, v: keys (..., S, d) and values (..., S, e), with the same leading axes (batch, heads).  They may have fewer
            heads (grouped-query attention, arXiv:2305.13245): with 8 query heads and 2 key and value heads, 4
            consecutive query heads share one.
        causal: query i attends to the keys 0 ... i only.
        scale: 1/√d by default.
        mask: bool, True where a query may attend, or values added to the scores; broadcast to (..., T, S).  A fully
            masked query gives 0, and its gradients are 0.  Over packed rows (`ws.data.Ragged`) a query never attends to
            another sequence of its row.
        dropout: the probability of dropping each attention weight in training.  Without it, the scores (..., T, S) are
            never materialized; with it they are, in training steps.

    Example: `ws.attention(q, k, v, causal=True)`.
    """
    if scale is None:
        width = q.shape[-1] if q.ndim else 0
        if not isinstance(width, int):
            fail(ShapeError, f"attention: the width {width} of the queries is symbolic; pass scale= as well.")
        scale = 1.0 / math.sqrt(max(width, 1))
    attrs = at.AttentionAttrs(bool(causal), float(scale))
    segments = current_segments()
    if segments is None:
        return _attention(q, k, v, mask, attrs, dropout)
    return segments.register_attention(_attention(q, k, v, segments.attention_mask(q, k, mask), attrs, dropout))


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Operand | None,
    attrs: at.AttentionAttrs,
    dropout: float | Switchable | Tensor,
) -> Tensor:
    nodes = promote("attention", [q.node, k.node, v.node])
    dtype = nodes[0].type.dtype
    mask_terms = [] if mask is None else [_mask_term(q, k, mask, dtype.accumulate)]
    if not dtype.is_half:
        fused = _record("attention", [Tensor(matmul_operand(q.node), q.graph), k, v, *mask_terms], attrs)
    else:
        out = record("attention", [*nodes, *(m.node for m in mask_terms)], attrs)
        fused = Tensor(out, common_graph(q, k, v, *mask_terms)).astype(dtype)
    if not isinstance(dropout, Tensor | Switchable) and dropout == 0:
        return fused
    return by_mode(_attention_from_primitives(q, k, v, mask_terms, attrs, dropout), fused)


def _attention_from_primitives(
    q: Tensor, k: Tensor, v: Tensor, mask_terms: list[Tensor], attrs: at.AttentionAttrs, p: float | Switchable | Tensor
) -> Tensor:
    """Attention with dropout of its weights, composed of primitives; materializes the scores."""
    k, v = _repeat_heads(k, q), _repeat_heads(v, q)
    scores = matmul(q, k.transpose(-1, -2), dtype=q.dtype.accumulate) * attrs.scale
    scores = scores + mask_terms[0] if mask_terms else scores
    if attrs.causal:
        size = scores.shape[-2:]
        scores = where(iota(size, 0) >= iota(size, 1), scores, -math.inf)
    if mask_terms:  # fully masked queries get weights of 0 instead of NaN
        is_unmasked = scores.max(-1, keepdims=True) > -math.inf
        weights = where(is_unmasked, softmax(where(is_unmasked, scores, 0.0)), 0.0)
    else:
        weights = softmax(scores)
    return matmul(dropout(weights, p).astype(v.dtype), v)


def _repeat_heads(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values repeated so that every query head has its own (grouped-query attention)."""
    if q.ndim < 3 or x.shape[-3] == q.shape[-3]:
        return x
    heads, key_heads = int(q.shape[-3]), int(x.shape[-3])
    with_unit_axis = x.reshape((*x.shape[:-2], 1, *x.shape[-2:]))
    repeated = with_unit_axis.expand(*x.shape[:-2], heads // key_heads, *x.shape[-2:])
    return repeated.reshape((*x.shape[:-3], heads, *x.shape[-2:]))


def _mask_term(q: Tensor, k: Tensor, mask: Operand, dtype: DType) -> Tensor:
    """A mask as a term of the scores, in their dtype: a bool mask becomes 0 and -inf."""
    m = as_tensor(mask)
    if m.dtype == boolean:
        number = dtype.numpy.type
        m = where(m, number(0), number(-math.inf))
    m = m.astype(dtype) if q.dtype.is_half and m.dtype.is_float else m
    return m.expand(*q.shape[:-1], k.shape[-2]) if k.ndim >= 2 else m
