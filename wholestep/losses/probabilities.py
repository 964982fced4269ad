"""Losses of models that output probabilities or log-probabilities.  Losses of raw scores are more accurate."""

from __future__ import annotations

import warnings

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, ratio, where
from wholestep.compiler.frontend.trace import fail, user_line
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, ShapeError, TrainingWarning
from wholestep.losses.forms import (
    Meaning,
    answers,
    class_axis,
    class_numbers,
    class_weights,
    classes_last,
    source_of,
    takes_as,
)
from wholestep.losses.shared import Target, match_target, on_arrays, reduce, spread_weight

LEAST = -100.0  # lower bound of logarithms, as in torch: the loss of a probability of 0 is finite


@on_arrays
def nll_loss(
    log_probabilities: Tensor,
    target: Target,
    ignore_index: int | None = None,
    reduction: str = "mean",
    *,
    class_weight: Target | None = None,
    sample_weight: Tensor | None = None,
    axis: int | None = None,
) -> Tensor:
    """-log p of the target class, averaged over rows: for models that end in `log_softmax`.

    Args:
        log_probabilities: (..., classes), or (rows, classes, ...), depending on the shape of the target.
        target: class indices of an integer dtype.
        ignore_index: rows with this index are left out of the numerator and the denominator.
        class_weight: (classes,), the weight of each class in the numerator and the denominator.
        sample_weight: (...), the weight of each row.

    Example: `ws.losses.nll_loss(ws.log_softmax(logits), labels)` is `ws.losses.cross_entropy(logits, labels)`.
    """
    labels = as_tensor(target)
    if labels.dtype.is_float:
        fail(DTypeError, f"nll_loss needs class indices; received {labels!r}. Cast them: labels.astype('int32').")
    at = class_axis("nll_loss", log_probabilities.shape, labels.shape, axis)
    if log_probabilities.ndim == 0 or log_probabilities.shape[at] == 1:
        fail(
            ShapeError,
            f"nll_loss takes a log-probability for each class; received {shape_text(log_probabilities.shape)}. For "
            "binary targets use loss='bce'.",
        )
    _lint("nll_loss", log_probabilities)
    takes_as(log_probabilities, Meaning(each=False, axis=at, ignore_index=ignore_index))
    logs = classes_last(log_probabilities, at)
    labels, classes = class_numbers("nll_loss", logs, labels), int(logs.shape[-1])
    safe_labels = labels if ignore_index is None else where(labels != ignore_index, labels, 0)
    weights = class_weights("nll_loss", logs, class_weight)
    if weights is None:
        weights = as_tensor(1.0).astype(logs.dtype).expand(classes)
    counts = fn.gather(weights, safe_labels)  # the gather also checks the range of the labels
    counts = counts if ignore_index is None else where(labels != ignore_index, counts, 0.0)
    if sample_weight is not None:
        counts = counts * spread_weight("nll_loss", counts, sample_weight)
    chosen = fn.iota(logs.shape, logs.ndim - 1, safe_labels.dtype) == safe_labels.reshape((*safe_labels.shape, 1))
    rows = where(counts != 0.0, -where(chosen, logs, 0.0).sum(-1), 0.0) * counts
    return ratio(rows.sum(), counts.sum()) if reduction == "mean" else reduce("nll_loss", rows, reduction)


def _lint(loss: str, x: Tensor) -> None:
    """Warn about probabilities where log-probabilities are expected."""
    node = source_of(x)
    if node.op in ("softmax", "sigmoid"):
        line = user_line()
        text = f"{loss} takes log-probabilities: write ws.log_softmax in place of {node.op}, or leave it out and use "
        text += f"loss='cross_entropy'. ({node.op} at {node.line})"
        warnings.warn_explicit(text, TrainingWarning, line.file, line.line)


@on_arrays
def bce_of_probabilities_loss(
    probabilities: Tensor, target: Target, reduction: str = "mean", *, sample_weight: Tensor | None = None
) -> Tensor:
    """-t·log p - (1 - t)·log(1 - p), averaged over elements; logarithms are at least -100, as in torch.

    For models that end in a sigmoid.  Without it, `binary_cross_entropy` of the raw scores is more exact.

    Example: `ws.losses.bce_of_probabilities_loss(ws.sigmoid(x), targets)`.
    """
    name = "bce_of_probabilities_loss"
    t = match_target(name, probabilities, answers(probabilities, target))
    takes_as(probabilities, Meaning(each=True, logits=False, probabilities=True))
    values = -(t * _log(probabilities) + (1.0 - t) * _log(1.0 - probabilities))
    return reduce(name, values, reduction, sample_weight)


def _log(p: Tensor) -> Tensor:
    some = p > 0.0
    return where(some, fn.maximum(fn.log(where(some, p, 1.0)), LEAST), LEAST)
