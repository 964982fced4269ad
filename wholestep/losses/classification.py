"""Losses of classes.  They take raw scores (logits); cross entropy and KL sum over classes and divide by rows."""

from __future__ import annotations

from wholestep.compiler.frontend import functions as fn
from wholestep.compiler.frontend.activations import softplus
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, common_graph, pointwise, ratio
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError
from wholestep.losses.shared import Number, Target, is_off, matching, option, reduce, spread_weight

# -- cross entropy -----------------------------------------------------------------------------------------------


def cross_entropy(
    logits: Tensor,
    target: Target,
    ignore_index: int | None = None,
    reduction: str = "mean",
    *,
    label_smoothing: Number = 0.0,
    class_weight: Target | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """-Σ t·log softmax(logits) over classes (the last axis), averaged over rows.

    Args:
        logits: (..., classes).
        target: class indices of an integer dtype, shape (...), or probabilities of the logits' shape and dtype.
        ignore_index: rows with this index count neither above nor below the line.
        label_smoothing: s turns the target t into (1 - s)·t + s / classes (Szegedy et al., 2016).
        class_weight: (classes,); class c counts that much.  A mean over class indices divides by the weights of the
            rows' classes, a mean over probabilities by rows, as torch does.
        sample_weight: (...); a row counts that much above and below the line.

    Example: `ws.losses.cross_entropy(logits, labels)`.
    """
    labels = as_tensor(target)
    weights = _class_weights(logits, class_weight)
    smoothing = _smoothing(logits, label_smoothing)
    if labels.dtype.is_float:
        if ignore_index is not None:
            fail(OptionError, "cross_entropy: ignore_index needs class indices; the target holds probabilities.")
        _refuse_float_labels(logits, labels)
        rows = _probability_rows(logits, matching("cross_entropy", logits, target), smoothing, weights)
        return reduce("cross_entropy", rows, reduction, sample_weight)
    _refuse_whole_rows(logits, labels)
    if ignore_index is None and smoothing is None and weights is None:
        return reduce("cross_entropy", _row_losses(logits, labels), reduction, sample_weight)
    counted = None if ignore_index is None else labels != ignore_index
    known = labels if counted is None else fn.where(counted, labels, 0)  # an index that exists; its row counts 0
    rows = _index_rows(logits, known, smoothing, weights)
    return _reduce_counted(rows, _importance(known, counted, weights, sample_weight, rows), reduction)


def _row_losses(logits: Tensor, labels: Tensor) -> Tensor:
    return Tensor(record("cross_entropy", [logits.node, labels.node]), common_graph(logits, labels))


def _index_rows(logits: Tensor, labels: Tensor, smoothing: Tensor | None, weights: Tensor | None) -> Tensor:
    """(1 - s)·w[y]·(-log p[y]) + s/C·Σ w[c]·(-log p[c]), without the w[y] that the rows' importance brings."""
    sharp = _row_losses(logits, labels)
    if smoothing is None:
        return sharp
    logs = fn.log_softmax(logits)
    spread = -logs.sum(-1) if weights is None else -(logs * weights).sum(-1) / fn.gather(weights, labels)
    return (1.0 - smoothing) * sharp + smoothing * (1.0 / int(logits.shape[-1])) * spread


def _probability_rows(logits: Tensor, t: Tensor, smoothing: Tensor | None, weights: Tensor | None) -> Tensor:
    if smoothing is not None:
        t = (1.0 - smoothing) * t + smoothing * (1.0 / int(logits.shape[-1]))
    weighted = t if weights is None else t * weights
    return -(weighted * fn.log_softmax(logits)).sum(-1)


def _importance(
    labels: Tensor, counted: Tensor | None, weights: Tensor | None, sample_weight: Tensor | None, rows: Tensor
) -> Tensor | None:
    """How much each row counts above and below the line; None: 1 each."""
    each = None if weights is None else fn.gather(weights, labels)
    if sample_weight is not None:
        given = spread_weight("cross_entropy", rows, sample_weight).expand(rows.shape)
        each = given if each is None else each * given
    if counted is None:
        return each
    return fn.where(counted, 1.0 if each is None else each, 0.0).astype(rows.dtype)


def _reduce_counted(rows: Tensor, importance: Tensor | None, reduction: str) -> Tensor:
    if importance is None or reduction not in ("mean", "sum", "none"):
        return reduce("cross_entropy", rows, reduction)
    weighted = fn.where(importance != 0.0, rows, 0.0) * importance
    return ratio(weighted.sum(), importance.sum()) if reduction == "mean" else reduce("", weighted, reduction)


def _class_weights(logits: Tensor, given: Target | None) -> Tensor | None:
    if given is None:
        return None
    weights = as_tensor(given)
    if not isinstance(given, Tensor):
        weights = weights.astype(logits.dtype)
    if weights.shape != logits.shape[-1:]:
        fail(
            ShapeError,
            f"cross_entropy: class_weight has one number for each class, shape {shape_text(logits.shape[-1:])}; "
            f"received {shape_text(weights.shape)}. For one number for each row use sample_weight=.",
        )
    return weights


def _smoothing(logits: Tensor, value: Number) -> Tensor | None:
    if is_off(value):
        return None
    below_zero = -1e-300  # 0 itself may be given as ws.runtime(0.0)
    text = "at least 0 and below 1"
    return option(logits, "cross_entropy", "label_smoothing", value, below_zero, 1.0, text)


def _refuse_float_labels(logits: Tensor, labels: Tensor) -> None:
    if labels.shape == logits.shape[:-1]:
        fail(
            DTypeError,
            f"cross_entropy: labels of shape {shape_text(labels.shape)} are class indices of an integer dtype; "
            f"received {labels.dtype}. Cast them: labels.astype('int32'). Probabilities have the shape of the logits, "
            f"{shape_text(logits.shape)}.",
        )


def _refuse_whole_rows(logits: Tensor, labels: Tensor) -> None:
    if labels.shape == logits.shape and logits.ndim > 0:
        fail(
            DTypeError,
            f"cross_entropy: a target of shape {shape_text(labels.shape)}, that of the logits, holds probabilities and "
            f"needs dtype {logits.dtype}; received {labels.dtype}. Cast it, target.astype('{logits.dtype}'), or pass "
            "class indices: target.argmax(-1).",
        )


def cross_entropy_with_logits_loss(
    logits: Tensor, target: Target, reduction: str = "mean", *, sample_weight: Tensor | None = None
) -> Tensor:
    """`cross_entropy` under its longer name.

    Example: `ws.losses.cross_entropy_with_logits_loss(logits, probabilities)`.
    """
    return cross_entropy(logits, target, reduction=reduction, sample_weight=sample_weight)


def kl_div_with_logits_loss(
    logits: Tensor, target: Target, reduction: str = "mean", *, sample_weight: Tensor | None = None
) -> Tensor:
    """Σ t·(log t - log softmax(logits)) over classes, averaged over rows; a target of 0 contributes 0.

    Example: `ws.losses.kl_div_with_logits_loss(logits, probabilities)`.
    """
    t = matching("kl_div_with_logits_loss", logits, target)
    log_t = fn.log(fn.where(t > 0.0, t, 1.0))
    rows = (t * (log_t - fn.log_softmax(logits))).sum(-1)
    return reduce("kl_div_with_logits_loss", rows, reduction, sample_weight)


# -- yes or no ---------------------------------------------------------------------------------------------------


def binary_cross_entropy_with_logits_loss(
    logits: Tensor,
    target: Target,
    reduction: str = "mean",
    *,
    pos_weight: Target | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """max(x, 0) - x·t + log1p(exp(-|x|)), averaged over elements; it never overflows.

    Args:
        pos_weight: how much a target of 1 counts against one of 0, for all or for each element of a row.

    Example: `ws.losses.binary_cross_entropy_with_logits_loss(logits, targets)`.
    """
    t = matching("binary_cross_entropy_with_logits_loss", logits, target)
    values = _binary(logits, t)
    if pos_weight is not None:
        # t counts w times: (w - 1)·t·softplus(-x) more.
        values = values + (as_tensor(pos_weight) - 1.0) * t * softplus(-logits)
    return reduce("binary_cross_entropy_with_logits_loss", values, reduction, sample_weight)


def _binary(logits: Tensor, t: Tensor) -> Tensor:
    return pointwise("bce_with_logits", logits, t)


def focal_loss(
    logits: Tensor,
    target: Target,
    gamma: Number = 2.0,
    alpha: Number | None = None,
    reduction: str = "mean",
    *,
    class_weight: Target | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Cross entropy times (1 - p)^gamma, p the probability of the truth: easy rows count less (Lin et al., 2017).

    Args:
        logits: (..., classes) with class indices (...): softmax, averaged over rows; or, with float targets 0 and 1 of
            the same shape: sigmoid, averaged over elements.
        gamma: how much less; 0 is cross entropy.
        alpha: for targets 0 and 1: the weight of the 1s, that of the 0s being 1 - alpha.
        class_weight: for class indices: (classes,).  The mean still divides by rows.

    Example: `ws.losses.focal_loss(logits, labels, gamma=2.0)`.
    """
    labels = as_tensor(target)
    power = None if is_off(gamma) else option(logits, "focal_loss", "gamma", gamma, -1e-300, text="at least 0")
    if not labels.dtype.is_float and isinstance(target, Tensor):
        if alpha is not None:
            fail(OptionError, "focal_loss: alpha is for targets 0 and 1; for class indices use class_weight=.")
        _refuse_whole_rows(logits, labels)
        values = _row_losses(logits, labels)
        wrong = -fn.expm1(-values)  # 1 - p
        weights = _class_weights(logits, class_weight)
        scale = None if weights is None else fn.gather(weights, labels)
    else:
        if class_weight is not None:
            fail(OptionError, "focal_loss: class_weight is for class indices; for targets 0 and 1 use alpha=.")
        t = matching("focal_loss", logits, target)
        values = _binary(logits, t)
        wrong = fn.sigmoid(logits) * (1.0 - t) + fn.sigmoid(-logits) * t
        scale = None
        if alpha is not None:
            share = option(logits, "focal_loss", "alpha", alpha, 0.0, 1.0)
            scale = share * t + (1.0 - share) * (1.0 - t)
    if power is not None:
        values = _power(wrong, power) * values
    return reduce("focal_loss", values if scale is None else scale * values, reduction, sample_weight)


def _power(x: Tensor, exponent: Tensor) -> Tensor:
    """x^exponent for x ≥ 0; at 0 it is 0 with slope 0, where an exponent below 1 has an infinite one."""
    some = x > 0.0
    return fn.where(some, fn.where(some, x, 1.0) ** exponent, 0.0)


def hinge_loss(
    scores: Tensor,
    target: Target,
    margin: Number = 1.0,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """max(0, margin - t·s) for targets -1 and 1, averaged over elements; for class indices over rows,
    Σ max(0, margin - s[y] + s[j]) / classes over the classes j ≠ y (Weston and Watkins, 1999).

    Example: `ws.losses.hinge_loss(logits, labels)`.
    """
    labels = as_tensor(target)
    room = option(scores, "hinge_loss", "margin", margin)
    if labels.dtype.is_float or not isinstance(target, Tensor):
        values = fn.relu(room - matching("hinge_loss", scores, target) * scores)
        return reduce("hinge_loss", values, reduction, sample_weight)
    _refuse_whole_rows(scores, labels)
    if labels.shape != scores.shape[:-1]:
        fail(
            ShapeError,
            f"hinge_loss: scores {shape_text(scores.shape)} need labels of shape {shape_text(scores.shape[:-1])}; "
            f"received {shape_text(labels.shape)}.",
        )
    own = fn.one_hot(labels, int(scores.shape[-1]), scores.dtype)
    true = (own * scores).sum(-1, keepdims=True)
    values = ((1.0 - own) * fn.relu(room - true + scores)).sum(-1) * (1.0 / int(scores.shape[-1]))
    return reduce("hinge_loss", values, reduction, sample_weight)
