"""Losses of classes.  They take raw scores (logits); cross entropy and KL sum over classes and divide by rows."""

from __future__ import annotations

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, common_graph, pointwise, ratio
from wholestep.compiler.frontend.trace import fail, record
from wholestep.errors import OptionError
from wholestep.losses.forms import (
    Meaning,
    answers,
    by_score,
    class_axis,
    class_numbers,
    class_weights,
    classes_last,
    lint,
    need_classes,
    resolve_class_axis,
    takes_as,
)
from wholestep.losses.shared import (
    REDUCTIONS,
    Number,
    Target,
    is_off,
    match_target,
    on_arrays,
    option,
    reduce,
    spread_weight,
)

# -- cross entropy -----------------------------------------------------------------------------------------------


@on_arrays
def cross_entropy(
    logits: Tensor,
    target: Target,
    ignore_index: int | None = None,
    reduction: str = "mean",
    *,
    label_smoothing: Number = 0.0,
    class_weight: Target | None = None,
    sample_weight: Tensor | None = None,
    axis: int | None = None,
) -> Tensor:
    """-Σ t·log softmax(logits) over classes, averaged over rows.

    Args:
        logits: (..., classes), or (rows, classes, ...) as in torch, depending on the shape of the target.
        target: class indices of an integer dtype in the shape of the logits without the class axis ((rows, 1) is
            accepted for (rows,)), or probabilities of the logits' shape and dtype.
        ignore_index: rows with this index are left out of the numerator and the denominator.
        label_smoothing: s turns the target t into (1 - s)·t + s / classes (Szegedy et al., 2016).
        class_weight: (classes,), the weight of each class.  With class indices a mean divides by the sum of the
            weights, with probabilities by the number of rows, as in torch.  If no row counts, the loss is not finite.
        sample_weight: (...), the weight of each row in the numerator and the denominator.
        axis: the class axis, if shapes are ambiguous: logits (4, 3, 3) with labels (4, 3), and probabilities of more
            than two axes.

    Example: `ws.losses.cross_entropy(logits, labels)`.
    """
    labels = as_tensor(target)
    at = resolve_class_axis("cross_entropy", logits, labels, axis)
    takes_as(logits, Meaning(each=False, axis=at, ignore_index=ignore_index))
    scores = classes_last(logits, at)
    weights, smoothing = class_weights("cross_entropy", scores, class_weight), _smoothing(scores, label_smoothing)
    if labels.dtype.is_float:
        if ignore_index is not None:
            fail(OptionError, "cross_entropy: ignore_index needs class indices; the target holds probabilities.")
        t = classes_last(match_target("cross_entropy", logits, target), at)
        return reduce("cross_entropy", _probability_rows(scores, t, smoothing, weights), reduction, sample_weight)
    labels = class_numbers("cross_entropy", scores, labels)
    if ignore_index is None and smoothing is None and weights is None:
        return reduce("cross_entropy", class_rows(scores, labels), reduction, sample_weight)
    counted = None if ignore_index is None else labels != ignore_index
    # a valid index where the target is ignored; such a row has weight 0
    safe_labels = labels if counted is None else fn.where(counted, labels, 0)
    label_weights = None if weights is None else fn.gather(weights, safe_labels)
    rows = class_rows(scores, safe_labels)
    outer = _importance(rows, counted, sample_weight)
    if smoothing is None:
        return _reduce_counted(rows, _times(label_weights, outer), None, reduction)
    return _reduce_counted(
        _smooth_labels(rows, scores, label_weights, smoothing, weights), outer, label_weights, reduction
    )


def class_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """-log softmax(logits) at the labels, one number for each row; the class axis is the last."""
    return Tensor(record("cross_entropy", [logits.node, labels.node]), common_graph(logits, labels))


def _smooth_labels(
    rows: Tensor, logits: Tensor, label_weights: Tensor | None, smoothing: Tensor, weights: Tensor | None
) -> Tensor:
    """The label-smoothed loss (1 - s)·w[y]·(-log p[y]) + s/C·Σ w[c]·(-log p[c]).

    If the class of a row has weight 0, the row still has the second term.
    """
    logs = fn.log_softmax(logits)
    spread = -(logs if weights is None else logs * weights).sum(-1)
    sharp = rows if label_weights is None else label_weights * rows
    return (1.0 - smoothing) * sharp + smoothing * (1.0 / int(logits.shape[-1])) * spread


def _probability_rows(logits: Tensor, t: Tensor, smoothing: Tensor | None, weights: Tensor | None) -> Tensor:
    if smoothing is not None:
        t = (1.0 - smoothing) * t + smoothing * (1.0 / int(logits.shape[-1]))
    weighted = t if weights is None else t * weights
    return -(weighted * fn.log_softmax(logits)).sum(-1)


def _importance(rows: Tensor, counted: Tensor | None, sample_weight: Tensor | None) -> Tensor | None:
    """The weight of each row, without class weights; None if all are 1."""
    each = None
    if sample_weight is not None:
        each = spread_weight("cross_entropy", rows, sample_weight).expand(rows.shape)
    if counted is None:
        return each
    return fn.where(counted, 1.0 if each is None else each, 0.0).astype(rows.dtype)


def _times(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a * b


def _reduce_counted(rows: Tensor, importance: Tensor | None, label_weights: Tensor | None, reduction: str) -> Tensor:
    """Reduce weighted rows; the denominator of a mean includes `label_weights`, the weights of their classes."""
    if reduction not in REDUCTIONS or importance is label_weights is None:
        return reduce("cross_entropy", rows, reduction)
    weighted = rows if importance is None else fn.where(importance != 0.0, rows, 0.0) * importance
    if reduction != "mean":
        return reduce("cross_entropy", weighted, reduction)
    weights = _times(label_weights, importance)
    assert weights is not None, "one of the two is given"
    return ratio(weighted.sum(), weights.sum())


def _smoothing(logits: Tensor, value: Number) -> Tensor | None:
    if is_off(value):
        return None
    below_zero = -1e-300  # the open bound is slightly below 0 so that ws.runtime(0.0) is allowed
    text = "at least 0 and below 1"
    return option(logits, "cross_entropy", "label_smoothing", value, below_zero, 1.0, text)


@on_arrays
def cross_entropy_with_logits_loss(
    logits: Tensor, target: Target, reduction: str = "mean", *, sample_weight: Tensor | None = None
) -> Tensor:
    """`cross_entropy` under its longer name.

    Example: `ws.losses.cross_entropy_with_logits_loss(logits, probabilities)`.
    """
    return cross_entropy(logits, target, reduction=reduction, sample_weight=sample_weight)


@on_arrays
def kl_div_with_logits_loss(
    logits: Tensor,
    target: Target,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
    axis: int = -1,
) -> Tensor:
    """Σ t·(log t - log softmax(logits)) over classes (`axis`), averaged over rows; a target of 0 contributes 0.

    Example: `ws.losses.kl_div_with_logits_loss(logits, probabilities)`.
    """
    name = "kl_div_with_logits_loss"
    probabilities, at = match_target(name, logits, target), class_axis(name, logits.shape, logits.shape, axis)
    need_classes(name, logits.shape, at)
    lint(name, logits, each=False)
    takes_as(logits, Meaning(each=False, axis=at))
    logits, t = classes_last(logits, at), classes_last(probabilities, at)
    log_t = fn.log(fn.where(t > 0.0, t, 1.0))
    rows = (t * (log_t - fn.log_softmax(logits))).sum(-1)
    return reduce(name, rows, reduction, sample_weight)


# -- binary ---------------------------------------------------------------------------------------------------


@on_arrays
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
        target: 0 or 1 for each score, or a probability between them, of any dtype.  A column (rows, 1) and (rows,) fit
            together; nothing else is broadcast.
        pos_weight: the weight of targets 1 relative to targets 0, for all or for each element of a row.

    Example: `ws.losses.binary_cross_entropy_with_logits_loss(logits, targets)`.
    """
    name = "binary_cross_entropy_with_logits_loss"
    t = match_target(name, logits, answers(logits, target))
    lint(name, logits, each=True)
    takes_as(logits, Meaning(each=True))
    values = yes_or_no_values(logits, t)
    if pos_weight is not None:
        # imported here because few losses need it
        from wholestep.compiler.frontend.functions.activations import softplus

        # The term t·softplus(-x) of a positive target has the factor w: (w - 1)·t·softplus(-x) is added.
        values = values + (as_tensor(pos_weight) - 1.0) * t * softplus(-logits)
    return reduce(name, values, reduction, sample_weight)


def yes_or_no_values(logits: Tensor, t: Tensor) -> Tensor:
    """Binary cross entropy per element: -t·log p - (1 - t)·log(1 - p), where p is the sigmoid of the logits."""
    return pointwise("bce_with_logits", logits, t)


@on_arrays
def focal_loss(
    logits: Tensor,
    target: Target,
    gamma: Number = 2.0,
    alpha: Number | None = None,
    reduction: str = "mean",
    *,
    class_weight: Target | None = None,
    sample_weight: Tensor | None = None,
    axis: int | None = None,
) -> Tensor:
    """Cross entropy times (1 - p)^gamma, where p is the probability of the target: easy rows count less (Lin et al.,
    2017).

    Args:
        logits: with class indices in their shape without the classes (see `cross_entropy`): softmax, averaged over
            rows; with targets 0 and 1 of the same shape: sigmoid, averaged over elements.
        gamma: the focusing exponent; 0 is cross entropy.
        alpha: for targets 0 and 1: the weight of the 1s, that of the 0s being 1 - alpha.
        class_weight: for class indices: (classes,).  The mean still divides by rows.

    Example: `ws.losses.focal_loss(logits, labels, gamma=2.0)`.
    """
    labels = as_tensor(target)
    power = None if is_off(gamma) else option(logits, "focal_loss", "gamma", gamma, -1e-300, text="at least 0")
    if by_score(logits, target):
        if class_weight is not None:
            fail(OptionError, "focal_loss: class_weight is for class indices; for targets 0 and 1 use alpha=.")
        lint("focal_loss", logits, each=True)
        takes_as(logits, Meaning(each=True))
        t = match_target("focal_loss", logits, answers(logits, target))
        values = yes_or_no_values(logits, t)
        wrong = fn.sigmoid(logits) * (1.0 - t) + fn.sigmoid(-logits) * t
        scale = None
        if alpha is not None:
            share = option(logits, "focal_loss", "alpha", alpha, 0.0, 1.0)
            scale = share * t + (1.0 - share) * (1.0 - t)
    else:
        if alpha is not None:
            fail(OptionError, "focal_loss: alpha is for targets 0 and 1; for class indices use class_weight=.")
        at = resolve_class_axis("focal_loss", logits, labels, axis)
        takes_as(logits, Meaning(each=False, axis=at))
        scores = classes_last(logits, at)
        labels = class_numbers("focal_loss", scores, labels)
        values = class_rows(scores, labels)
        wrong = -fn.expm1(-values)  # 1 - p
        weights = class_weights("focal_loss", scores, class_weight)
        scale = None if weights is None else fn.gather(weights, labels)
    if power is not None:
        values = _power(wrong, power) * values
    return reduce("focal_loss", values if scale is None else scale * values, reduction, sample_weight)


@on_arrays
def poly1_loss(
    logits: Tensor,
    target: Target,
    epsilon: Number = 1.0,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
    axis: int | None = None,
) -> Tensor:
    """Cross entropy + ε·(1 - p), where p is the probability of the target, averaged over rows (arXiv:2204.12511).

    Args:
        logits, target, axis: as for `cross_entropy`; targets are class indices.
        epsilon: the change of the first coefficient of the loss's series in 1 - p; at least -1.

    Example: `ws.losses.poly1_loss(logits, labels)`.
    """
    labels = as_tensor(target)
    at = resolve_class_axis("poly1_loss", logits, labels, axis)
    takes_as(logits, Meaning(each=False, axis=at))
    scores = classes_last(logits, at)
    rows = class_rows(scores, class_numbers("poly1_loss", scores, labels))
    more = option(logits, "poly1_loss", "epsilon", epsilon, -1.0 - 1e-12, text="at least -1")
    return reduce("poly1_loss", rows - more * fn.expm1(-rows), reduction, sample_weight)


def _power(x: Tensor, exponent: Tensor) -> Tensor:
    """x^exponent for x ≥ 0, with gradient 0 at 0, where the gradient is infinite for exponents below 1."""
    some = x > 0.0
    return fn.where(some, fn.where(some, x, 1.0) ** exponent, 0.0)


@on_arrays
def hinge_loss(
    scores: Tensor,
    target: Target,
    margin: Number = 1.0,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
    axis: int | None = None,
) -> Tensor:
    """max(0, margin - t·s) for targets -1 and 1, averaged over elements; for class indices over rows,
    Σ max(0, margin - s[y] + s[j]) / classes over the classes j ≠ y (Weston and Watkins, 1999).

    Example: `ws.losses.hinge_loss(logits, labels)`.
    """
    labels = as_tensor(target)
    room = option(scores, "hinge_loss", "margin", margin)
    if by_score(scores, target):
        takes_as(scores, Meaning(each=True, logits=False, signs=True))
        values = fn.relu(room - match_target("hinge_loss", scores, answers(scores, target)) * scores)
        return reduce("hinge_loss", values, reduction, sample_weight)
    at = resolve_class_axis("hinge_loss", scores, labels, axis)
    takes_as(scores, Meaning(each=False, axis=at, logits=False))
    scores = classes_last(scores, at)
    one_hot = fn.one_hot(class_numbers("hinge_loss", scores, labels), int(scores.shape[-1]), scores.dtype)
    true = (one_hot * scores).sum(-1, keepdims=True)
    values = ((1.0 - one_hot) * fn.relu(room - true + scores)).sum(-1) * (1.0 / int(scores.shape[-1]))
    return reduce("hinge_loss", values, reduction, sample_weight)
