"""Losses of distances: pairs and triplets of vectors, and scores with a target order."""

from __future__ import annotations

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, ratio, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError
from wholestep.losses.forms import answers
from wholestep.losses.shared import Number, Target, match_target, on_arrays, option, reduce

FAR = 1e30  # larger than any distance between two vectors
_EPS = 1e-6  # added to every difference, as in torch


@on_arrays
def triplet_margin_loss(
    anchor: Tensor,
    positive: Target,
    negative: Target,
    margin: Number = 1.0,
    p: int = 2,
    swap: bool = False,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin), averaged over rows.

    Args:
        anchor, positive, negative: vectors (..., features) of one shape.
        p: the norm, 1 or 2.
        swap: use the positive in place of the anchor if it is nearer to the negative (Balntas et al., 2016).

    Example: `ws.losses.triplet_margin_loss(x, x * 1.1, -x)`.
    """
    loss = "triplet_margin_loss"
    if p not in (1, 2):
        fail(OptionError, f"{loss}: p is 1 or 2; received {p!r}.")
    near, far = match_target(loss, anchor, positive), match_target(loss, anchor, negative)
    apart = _distance(loss, anchor, far, p)
    if swap:
        apart = fn.minimum(apart, _distance(loss, near, far, p))
    room = option(anchor, loss, "margin", margin, -1e-300, text="at least 0")
    return reduce(loss, fn.relu(_distance(loss, anchor, near, p) - apart + room), reduction, sample_weight)


def _distance(loss: str, a: Tensor, b: Tensor, p: int) -> Tensor:
    if not a.ndim:
        fail(ShapeError, f"{loss} compares vectors along the last axis; received a single number.")
    gap = a - b + _EPS
    return abs(gap).sum(-1) if p == 1 else fn.sqrt((gap * gap).sum(-1))


@on_arrays
def triplet_loss(embeddings: Tensor, labels: Target, margin: Number = 1.0, reduction: str = "mean") -> Tensor:
    """Triplets found in the batch: for each row the farthest row of the same class (p) and the nearest row of another
    class (n), max(0, d(p) - d(n) + margin), averaged over rows that have both (arXiv:1703.07737).

    Rows are compared with each other: the loss is not separable, and a batch cannot be split.

    Args:
        embeddings: (rows, features).
        labels: (rows,), the class of each.

    Example: `ws.losses.triplet_loss(x, labels)`.
    """
    classes = as_tensor(labels)
    if classes.dtype.is_float or embeddings.ndim != 2 or classes.shape != embeddings.shape[:1]:
        error = DTypeError if classes.dtype.is_float else ShapeError
        fail(
            error,
            f"triplet_loss takes embeddings (rows, features) and integers (rows,), the labels; received "
            f"{shape_text(embeddings.shape)} and {classes.dtype}{shape_text(classes.shape)}. For triplets of your own "
            "use ws.losses.triplet_margin_loss(anchor, positive, negative).",
        )
    rows = embeddings.shape[0]
    room = option(embeddings, "triplet_loss", "margin", margin, -1e-300, text="at least 0")
    squares = (embeddings * embeddings).sum(-1)
    products = embeddings @ embeddings.T
    # rounding can make the sum negative
    apart = fn.relu(squares.reshape((rows, 1)) + squares.reshape((1, rows)) - 2.0 * products)
    some = apart > 0.0
    distance = where(some, fn.sqrt(where(some, apart, 1.0)), 0.0)  # (rows, rows)
    alike = classes.reshape((rows, 1)) == classes.reshape((1, rows))
    number = fn.arange(rows)
    itself = number.reshape((rows, 1)) == number.reshape((1, rows))
    farthest = where(alike & ~itself, distance, -FAR).max(1)
    nearest = where(alike, FAR, distance).min(1)
    counts = (farthest > -FAR) & (nearest < FAR)
    values = where(counts, fn.relu(farthest - nearest + room), 0.0)
    if reduction != "mean":
        return reduce("triplet_loss", values, reduction)
    return ratio(values.sum(), fn.maximum(counts.astype(values.dtype).sum(), 1.0))


@on_arrays
def margin_ranking_loss(
    first: Tensor,
    second: Target,
    target: Target,
    margin: Number = 0.0,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """max(0, -t·(first - second) + margin), averaged over elements: t is 1 if `first` should be the larger score, -1 if
    `second` should.

    Example: `ws.losses.margin_ranking_loss(x, x * 0.5, 1.0)`.
    """
    loss = "margin_ranking_loss"
    other, t = match_target(loss, first, second), match_target(loss, first, answers(first, target))
    room = option(first, loss, "margin", margin, -1e-300, text="at least 0")
    return reduce(loss, fn.relu(room - t * (first - other)), reduction, sample_weight)


@on_arrays
def contrastive_loss(
    distances: Tensor,
    target: Target,
    margin: Number = 1.0,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """t·d² + (1 - t)·max(0, margin - d)², averaged over pairs (Hadsell et al., 2006).

    Args:
        distances: the distance of each pair, (rows,) or (rows, 1).
        target: 1 for similar pairs, 0 for dissimilar ones, of any dtype.
        margin: the distance that dissimilar pairs should have at least.

    Example: `ws.losses.contrastive_loss(ws.sqrt((x * x).sum(-1) + 1e-12), labels == 0)`.
    """
    loss = "contrastive_loss"
    t = match_target(loss, distances, answers(distances, target))
    room = fn.relu(option(distances, loss, "margin", margin) - distances)
    return reduce(loss, t * distances * distances + (1.0 - t) * room * room, reduction, sample_weight)
