"""Layers that are one op: norms, dropout, attention.  Each keeps its name through the compiler, there and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, runtime_checkable

from wholestep.compat.arguments import take_their_words
from wholestep.compiler.frontend.functions.primitives import iota, matmul, softmax, sqrt
from wholestep.compiler.frontend.precision import operand
from wholestep.compiler.frontend.tensor import Axes, Operand, Tensor, as_tensor, common_graph, ratio, where
from wholestep.compiler.frontend.trace import fail, record
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
        weight, bias: of the shape of the axes; left out, they are 1 and 0.
        axis: one or several, the last one unless told otherwise.

    Example: `ws.layer_norm(x, gain, shift)`.
    """
    if weight is None and bias is not None:  # the op has a bias only beside a weight
        return layer_norm(x, axis=axis, eps=eps) + _broadcast_bias("layer_norm", x, bias, axis)
    return _over_axes("layer_norm", x, (weight, bias), axis, at.NormAttrs(float(eps)))


def rms_norm(x: Tensor, weight: Operand | None = None, axis: Axes = -1, eps: float | None = None) -> Tensor:
    """x / √(mean x² + eps) · weight, the mean over the axes (arXiv:1910.07467).

    Args:
        weight: of the shape of the axes; left out, it is 1.
        eps: the smallest step above 1 of x's dtype unless given.

    Example: `ws.rms_norm(x, gain)`.
    """
    least = x.dtype.eps if eps is None else eps
    return _over_axes("rms_norm", x, (weight,), axis, at.NormAttrs(float(least)))


def group_norm(
    x: Tensor, groups: int, weight: Operand | None = None, bias: Operand | None = None, eps: float = 1e-5
) -> Tensor:
    """(x - mean) / √(variance + eps) · weight + bias, mean and variance over each group of channels
    (arXiv:1803.08494).

    Args:
        x: (N, C, ...); C is cut into `groups` equal parts, each normalised together with the axes behind it.
        weight, bias: (C,); left out, they are 1 and 0.

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
    behind the channels (arXiv:1502.03167).

    In training these are the batch's, and running = (1 - momentum)·running + momentum·batch at the end of the step (the
    variance of n values divided by n - 1, as in PyTorch); evaluation and prediction use the running ones.

    Args:
        x: (N, C) or (N, C, ...), with more than one value for each channel.
        weight, bias: (C,); left out, they are 1 and 0.
        running_mean, running_var: states (C,), both or none: without them the batch's own are used everywhere.
        per_worker: of several workers, normalise the rows of each by themselves; the running ones are of all rows.

    Example: `ws.batch_norm(x, gain, shift)`.
    """
    if weight is None and bias is not None:
        shift = _channels("batch_norm", x, "bias", bias)
        return batch_norm(x, None, None, running_mean, running_var, momentum, eps, per_worker) + _beside(shift, x)
    named = (("weight", weight), ("bias", bias))
    affine = [_channels("batch_norm", x, name, p) for name, p in named if p is not None]
    out = _record("batch_norm", [x, *affine], at.NormAttrs(float(eps), per_worker))
    if running_mean is None and running_var is None:
        return out
    if running_mean is None or running_var is None:
        missing = "running_mean" if running_mean is None else "running_var"
        fail(UsageError, f"batch_norm needs both running statistics or none; {missing} is missing.")
    mean, var = (
        _channels("batch_norm", x, name, p)
        for name, p in (("running_mean", running_mean), ("running_var", running_var))
    )
    if not _EVALUATING.get():
        _follow_batch(x, running_mean, running_var, momentum)
    slope = 1.0 / sqrt(var + eps)
    slope = slope * affine[0] if affine else slope
    fixed = (x - _beside(mean, x)) * _beside(slope, x)
    return by_mode(out, fixed + _beside(affine[1], x) if len(affine) > 1 else fixed)


def _follow_batch(x: Tensor, mean: Tensor, var: Tensor, momentum: float | Tensor) -> None:
    """Record the updates of the running statistics; the same sums as the norm's own, which become one."""
    if x.graph is None:
        fail(UsageError, "batch_norm changes its running statistics, states of a graph; record x in one first.")
    average, unbiased = batch_statistics(x)
    if not isinstance(momentum, Tensor) and not 0 <= momentum <= 1:
        fail(OptionError, f"batch_norm: momentum is between 0 (nothing changes) and 1; received {momentum!r}.")
    share = as_tensor(momentum).astype(x.dtype)
    for state, batch in ((mean, average), (var, unbiased)):
        # A norm that is called twice in a step follows both batches, in order, as PyTorch's does.
        x.graph.advance(state, _towards(batch, share))


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of each channel, written as `batch_norm` computes them: the sums become one."""
    behind, count = tuple(range(2, x.ndim)), values_per_channel(x.shape)
    average = ratio(x.sum(behind).sum(0), count)
    centred = x - _beside(average, x)
    variance = ratio((centred * centred).sum(behind).sum(0), count)
    elements = as_tensor(count).astype("float64")
    return average, variance * (elements / (elements - 1.0)).astype(x.dtype)


def _towards(batch: Tensor, share: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda now: now * (1.0 - share) + batch * share


def _channels(op: str, x: Tensor, name: str, value: Operand) -> Tensor:
    p = as_tensor(value)
    if x.ndim < 2:
        fail(ShapeError, f"{op} needs an input of shape (N, C, ...); received {shape_text(x.shape)}.")
    if p.shape != (x.shape[1],):
        fail(
            ShapeError,
            f"{op}: the {name} has one number for each of the {x.shape[1]} channels of {shape_text(x.shape)}; received "
            f"{shape_text(p.shape)}.",
        )
    return p


def _beside(p: Tensor, x: Tensor) -> Tensor:
    """One number per channel, so that it broadcasts against x."""
    return p.reshape((x.shape[1], *[1] * (x.ndim - 2)))


def _record(op: str, operands: Sequence[Operand], attrs: at.Attrs) -> Tensor:
    nodes = promote(op, [as_tensor(o).node for o in operands])
    return Tensor(record(op, nodes, attrs), common_graph(*operands))


def _over_axes(op: str, x: Tensor, affine: Sequence[Operand | None], axis: Axes, attrs: at.Attrs) -> Tensor:
    """A norm over the last axis, applied to the given axes: they are moved behind the others and merged."""
    axes = x._axes(axis)
    named = zip(("weight", "bias"), affine)
    params = [_check_operand(op, x, name, p, axes).reshape(-1) for name, p in named if p is not None]
    if axes == (x.ndim - 1,):
        return _record(op, [x, *params], attrs)
    if not axes:
        fail(
            ShapeError, f"{op} needs an axis to normalise over; received x of shape {shape_text(x.shape)}, axis={axis}."
        )
    order = [*(d for d in range(x.ndim) if d not in axes), *axes]
    moved = x.permute(*order)
    kept = x.ndim - len(axes)
    rows = moved.reshape((*moved.shape[:kept], -1))
    out = _record(op, [rows, *params], attrs).reshape(moved.shape)
    return out.permute(*(order.index(d) for d in range(x.ndim)))


def _check_operand(op: str, x: Tensor, name: str, value: Operand, axes: Sequence[int]) -> Tensor:
    p, expected = as_tensor(value), tuple(x.shape[d] for d in axes)
    if p.shape != expected:
        fail(
            ShapeError,
            f"{op}: the {name} has the shape of what is normalised, {shape_text(expected)} of {shape_text(x.shape)}; "
            f"received {shape_text(p.shape)}.",
        )
    return p


def _broadcast_bias(op: str, x: Tensor, bias: Operand, axis: Axes) -> Tensor:
    """A bias over some axes, with an extent of 1 for each other, so that it broadcasts against x."""
    axes = x._axes(axis)
    p = _check_operand(op, x, "bias", bias, axes)
    return p.reshape(tuple(e if d in axes else 1 for d, e in enumerate(x.shape)))


# -- dropout -----------------------------------------------------------------------------------------------------


@runtime_checkable
class Switchable(Protocol):
    """A number that stays in the program even while it means *off*: what `ws.runtime` gives."""

    @property
    def value(self) -> float: ...


def dropout(x: Tensor, p: float | Switchable | Tensor = 0.5) -> Tensor:
    """x / (1 - p) with probability 1 - p, else 0, in training; x itself in evaluation and prediction
    (Srivastava et al., 2014).

    Which of the two belongs to the entry point that runs, not to a flag.  The rate is a runtime scalar called
    `<key>.rate`, the key being the graph's scope and the ordinal of the draw in it; 0 leaves no trace in the program
    unless it is `ws.runtime(0.0)`.  A scalar of your own, `g.scalar("rate", 0.1)`, may serve several calls.

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
        fail(OptionError, f"dropout: p is a probability, between 0 and 1; received {value}.")
    return value


_EVALUATING: ContextVar[bool] = ContextVar("evaluating", default=False)


@contextmanager
def outside_of_training() -> Iterator[None]:
    """What is recorded inside is meant as in a prediction, in a step that changes states of its own."""
    token = _EVALUATING.set(True)
    try:
        yield
    finally:
        _EVALUATING.reset(token)


_OUTSIDE_OF_TRAINING = {"dropout": 0, "by_mode": 1}  # op -> the input that it is


def evaluation_graph(graph: IRGraph) -> IRGraph:
    """A traced graph under its meaning outside of training: nothing is dropped, statistics are the running ones."""
    chosen = _OUTSIDE_OF_TRAINING
    return rewrite(graph, lambda node: node.inputs[chosen[node.op]] if node.op in chosen else node)


def by_mode(training: Tensor, evaluating: Tensor) -> Tensor:
    """One value in a step that trains, another in evaluation and prediction; the entry point decides, not a flag.

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
        k, v: keys (..., S, d) and values (..., S, e), with the same leading axes (batch, heads).  There may be fewer
            heads of them: 8 heads of queries over 2 of keys and values are 4 in a row over each (arXiv:2305.13245).
        causal: query i sees the keys 0 ... i only.
        scale: 1/√d unless given.
        mask: bool, True where a query may look, or numbers that are added to the scores; broadcast to (..., T, S).  A
            query that may look nowhere gives 0, and so do its gradients.
        dropout: how likely each weight of a softmax is dropped, in training.  Without it the scores, (..., T, S), are
            never in memory as a whole; with it they are, in steps that train.

    Example: `ws.attention(q, k, v, causal=True)`.
    """
    if scale is None:
        width = q.shape[-1] if q.ndim else 0
        if not isinstance(width, int):
            fail(ShapeError, f"attention: the width {width} of the queries is not a number yet; give scale= as well.")
        scale = 1.0 / math.sqrt(max(width, 1))
    attrs = at.AttentionAttrs(bool(causal), float(scale))
    nodes = promote("attention", [q.node, k.node, v.node])
    dtype = nodes[0].type.dtype
    added = [] if mask is None else [_scores(q, k, mask, dtype.accumulate)]
    if not dtype.is_half:
        whole = _record("attention", [Tensor(operand(q.node), q.graph), k, v, *added], attrs)
    else:
        out = record("attention", [*nodes, *(m.node for m in added)], attrs)
        whole = Tensor(out, common_graph(q, k, v, *added)).astype(dtype)
    if not isinstance(dropout, Tensor | Switchable) and dropout == 0:
        return whole
    return by_mode(_attention_from_primitives(q, k, v, added, attrs, dropout), whole)


def _attention_from_primitives(
    q: Tensor, k: Tensor, v: Tensor, added: list[Tensor], attrs: at.AttentionAttrs, p: float | Switchable | Tensor
) -> Tensor:
    """Attention written out, with some of the weights dropped."""
    k, v = _for_each_head(k, q), _for_each_head(v, q)
    scores = matmul(q, k.transpose(-1, -2), dtype=q.dtype.accumulate) * attrs.scale
    scores = scores + added[0] if added else scores
    if attrs.causal:
        size = scores.shape[-2:]
        scores = where(iota(size, 0) >= iota(size, 1), scores, -math.inf)
    if added:  # a query that may look nowhere
        sees = scores.max(-1, keepdims=True) > -math.inf
        weights = where(sees, softmax(where(sees, scores, 0.0)), 0.0)
    else:
        weights = softmax(scores)
    return matmul(dropout(weights, p).astype(v.dtype), v)


def _for_each_head(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values of heads that several heads of queries share, once for each of these."""
    if q.ndim < 3 or x.shape[-3] == q.shape[-3]:
        return x
    heads, shared = int(q.shape[-3]), int(x.shape[-3])
    apart = x.reshape((*x.shape[:-2], 1, *x.shape[-2:]))
    wide = apart.expand(*x.shape[:-2], heads // shared, *x.shape[-2:])
    return wide.reshape((*x.shape[:-3], heads, *x.shape[-2:]))


def _scores(q: Tensor, k: Tensor, mask: Operand, dtype: DType) -> Tensor:
    """What a mask adds to the scores, in their dtype."""
    m = as_tensor(mask)
    if m.dtype == boolean:
        number = dtype.numpy.type
        m = where(m, number(0), number(-math.inf))
    m = m.astype(dtype) if q.dtype.is_half and m.dtype.is_float else m
    return m.expand(*q.shape[:-1], k.shape[-2]) if k.ndim >= 2 else m


take_their_words(globals(), __all__)
