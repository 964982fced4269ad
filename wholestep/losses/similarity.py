"""Losses of vectors and regions: cosine embedding, ArcFace; Dice, Tversky, InfoNCE and supervised contrastive, which
are not separable by rows.
"""

from __future__ import annotations

import math

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, ratio
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, ShapeError
from wholestep.losses.classification import class_rows, cross_entropy
from wholestep.losses.forms import (
    Meaning,
    answers,
    by_score,
    class_numbers,
    classes_last,
    lint,
    resolve_class_axis,
    takes_as,
)
from wholestep.losses.shared import Number, Target, match_target, on_arrays, option, reduce

_FAR = 1e9  # subtracted to mask a score: more than any similarity divided by a temperature
_EPS = 1e-12  # added to the squared length, as in torch: a zero vector has the cosine 0


@on_arrays
def cosine_embedding_loss(
    prediction: Tensor,
    target: Target,
    similar: Target | None = None,
    margin: Number = 0.0,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """1 - cos for similar pairs, max(0, cos - margin) for dissimilar pairs, averaged over rows.

    Args:
        prediction: vectors (..., features).
        target: the vectors to compare them with, of the same shape.
        similar: (...), 1 for similar and -1 for dissimilar pairs; None: all are similar.
        margin: between -1 and 1: the largest cosine of a dissimilar pair without a penalty.

    Example: `ws.losses.cosine_embedding_loss(x, x * 2.0)`.
    """
    loss = "cosine_embedding_loss"
    other = match_target(loss, prediction, target)
    cosine = _dot(prediction, other) / fn.sqrt((_dot(prediction, prediction) + _EPS) * (_dot(other, other) + _EPS))
    if similar is None:
        return reduce(loss, 1.0 - cosine, reduction, sample_weight)
    together = match_target(loss, cosine, similar)
    room = option(prediction, loss, "margin", margin, -1.0 - 1e-12, 1.0)
    values = fn.where(together > 0.0, 1.0 - cosine, fn.relu(cosine - room))
    return reduce(loss, values, reduction, sample_weight)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    if not a.ndim:
        fail(ShapeError, "cosine_embedding_loss compares vectors along the last axis; received a single number.")
    return (a * b).sum(-1)


@on_arrays
def dice_loss(
    logits: Tensor, target: Target, smooth: Number = 1.0, reduction: str = "mean", *, axis: int | None = None
) -> Tensor:
    """1 - (2·Σ p·t + smooth) / (Σ p + Σ t + smooth): the overlap of regions (Milletari et al., 2016).

    The sums run over the whole batch and the denominator depends on the prediction: the loss is not separable, and
    a batch cannot be split.

    Args:
        logits: with targets 0 and 1 of the same shape: p is the sigmoid, one region; with class indices in the shape of
            the logits without the classes (see `cross_entropy`): p is the softmax, one region for each class, averaged
            over classes.
        smooth: keeps empty regions from dividing by zero.

    Example: `ws.losses.dice_loss(logits, labels)`.
    """
    extra = option(logits, "dice_loss", "smooth", smooth)
    p, t, axes = _regions("dice_loss", logits, target, axis)
    overlap = 2.0 * (p * t).sum(axes) + extra
    values = 1.0 - ratio(overlap, p.sum(axes) + t.sum(axes) + extra)
    return reduce("dice_loss", values, reduction)


@on_arrays
def tversky_loss(
    logits: Tensor,
    target: Target,
    alpha: Number = 0.5,
    beta: Number = 0.5,
    smooth: Number = 1.0,
    reduction: str = "mean",
    *,
    axis: int | None = None,
) -> Tensor:
    """1 - (Σ p·t + smooth) / (Σ p·t + alpha·Σ p·(1 - t) + beta·Σ (1 - p)·t + smooth): Dice with different weights for
    false positives and false negatives (arXiv:1706.05721).

    Like `dice_loss`, it needs the whole batch.

    Args:
        logits, target: as for `dice_loss`.
        alpha, beta: weights of false positives and false negatives; 0.5 and 0.5 is Dice.

    Example: `ws.losses.tversky_loss(logits, labels, alpha=0.3, beta=0.7)`.
    """
    loss = "tversky_loss"
    wrong, missed = (
        option(logits, loss, name, value, -1e-300, text="at least 0")
        for name, value in (("alpha", alpha), ("beta", beta))
    )
    extra = option(logits, loss, "smooth", smooth)
    p, t, axes = _regions(loss, logits, target, axis)
    overlap = (p * t).sum(axes)
    values = 1.0 - ratio(
        overlap + extra, overlap + wrong * (p * (1.0 - t)).sum(axes) + missed * ((1.0 - p) * t).sum(axes) + extra
    )
    return reduce(loss, values, reduction)


def _regions(loss: str, logits: Tensor, target: Target, axis: int | None) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """The probabilities, the targets, and the axes to sum over: all axes, or all except the class axis."""
    if by_score(logits, target):
        lint(loss, logits, each=True)
        takes_as(logits, Meaning(each=True))
        return fn.sigmoid(logits), match_target(loss, logits, answers(logits, target)), tuple(range(logits.ndim))
    labels = as_tensor(target)
    at = resolve_class_axis(loss, logits, labels, axis)
    takes_as(logits, Meaning(each=False, axis=at))
    scores = classes_last(logits, at)
    t = fn.one_hot(class_numbers(loss, scores, labels), int(scores.shape[-1]), logits.dtype)
    return fn.softmax(scores), t, tuple(range(logits.ndim - 1))


@on_arrays
def info_nce_loss(
    queries: Tensor,
    keys: Target,
    temperature: Number = 0.07,
    symmetric: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of cosines / temperature, by which each query selects its key among all keys of the batch (van den
    Oord et al., 2018; symmetric: Radford et al., 2021).

    Rows are compared with each other: the loss is not separable, and a batch cannot be split.

    Args:
        queries: (rows, features).
        keys: keys of the same shape; row i belongs to query i.
        symmetric: average it with the loss of keys that find their queries.

    Example: `ws.losses.info_nce_loss(x, x * 2.0)`.
    """
    others = match_target("info_nce_loss", queries, keys)
    if queries.ndim != 2:
        fail(
            ShapeError,
            f"info_nce_loss: queries and keys have shape (rows, features); received {shape_text(queries.shape)}.",
        )
    scale = 1.0 / option(queries, "info_nce_loss", "temperature", temperature)
    similarity = (_unit(queries) @ _unit(others).T) * scale  # (rows, rows)
    labels = fn.arange(queries.shape[0])
    loss = cross_entropy(similarity, labels, reduction=reduction)
    return 0.5 * (loss + cross_entropy(similarity.T, labels, reduction=reduction)) if symmetric else loss


@on_arrays
def supervised_contrastive_loss(
    embeddings: Tensor, labels: Target, temperature: Number = 0.1, reduction: str = "mean"
) -> Tensor:
    """The mean over rows i, and over the other rows p of the same class, of -log(exp(zᵢ·zₚ/T) / Σₐ exp(zᵢ·zₐ/T)), where
    a are all rows but i (arXiv:2004.11362).  The z are unit vectors; rows alone in their class are left out.

    Rows are compared with each other: the loss is not separable, and a batch cannot be split.

    Args:
        embeddings: (rows, features).
        labels: (rows,), the class of each.

    Example: `ws.losses.supervised_contrastive_loss(x, labels)`.
    """
    loss, classes = "supervised_contrastive_loss", as_tensor(labels)
    if classes.dtype.is_float or embeddings.ndim != 2 or classes.shape != embeddings.shape[:1]:
        fail(
            DTypeError if classes.dtype.is_float else ShapeError,
            f"{loss} takes embeddings (rows, features) and integers (rows,), the labels; received "
            f"{shape_text(embeddings.shape)} and {classes.dtype}{shape_text(classes.shape)}.",
        )
    rows, unit = embeddings.shape[0], _unit(embeddings)
    number = fn.arange(rows)
    others = number.reshape((rows, 1)) != number.reshape((1, rows))
    alike = ((classes.reshape((rows, 1)) == classes.reshape((1, rows))) & others).astype(unit.dtype)
    similarity = (unit @ unit.T) * (1.0 / option(embeddings, loss, "temperature", temperature))
    logs = fn.log_softmax(fn.where(others, similarity, -_FAR))
    counts = alike.sum(1)
    values = -(alike * fn.where(others, logs, 0.0)).sum(1) / fn.maximum(counts, 1.0)
    if reduction != "mean":
        return reduce(loss, values, reduction)
    return ratio(values.sum(), fn.maximum((counts > 0.0).astype(values.dtype).sum(), 1.0))


@on_arrays
def arcface_loss(
    cosines: Tensor,
    labels: Target,
    margin: Number = 0.5,
    scale: Number = 64.0,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Cross entropy of scale·cos θ, in which the angle θ of a row to its own class is enlarged by the margin, averaged
    over rows (arXiv:1801.07698).

    Where θ + margin exceeds π, the score continues as cos θ - margin·sin(margin), as in the authors' code.

    Args:
        cosines: (rows, classes), as `ws.nn.CosineLinear` gives them.
        labels: (rows,), class indices.
        margin: in radians, below π.

    Example: `ws.losses.arcface_loss(ws.tanh(logits), labels)`.
    """
    loss, classes = "arcface_loss", as_tensor(labels)
    at = resolve_class_axis(loss, cosines, classes, None)
    takes_as(cosines, Meaning(each=False, axis=at, logits=False))
    scores = classes_last(cosines, at)
    own = fn.one_hot(class_numbers(loss, scores, classes), int(scores.shape[-1]), "bool")
    room = option(cosines, loss, "margin", margin, -1e-300, math.pi, "between 0 and pi")
    inside = fn.minimum(fn.maximum(scores, -1.0), 1.0)
    across = fn.sqrt(fn.maximum(1.0 - inside * inside, _EPS))  # sin θ
    turned = inside * fn.cos(room) - across * fn.sin(room)  # cos(θ + margin)
    turned = fn.where(inside > -fn.cos(room), turned, inside - room * fn.sin(room))
    logits = option(cosines, loss, "scale", scale) * fn.where(own, turned, inside)
    return reduce(loss, class_rows(logits, class_numbers(loss, scores, classes)), reduction, sample_weight)


def _unit(x: Tensor) -> Tensor:
    return x / fn.sqrt((x * x).sum(-1, keepdims=True) + _EPS)
