"""The losses as cases: one expression of ours, one of torch's (or a formula in torch), and data for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import wholestep as ws
from wholestep import losses as L

F = torch.nn.functional
Array = np.ndarray[Any, Any]
Data = dict[str, Array]
CLASSES = 4
CLASS_WEIGHT = np.array([0.5, 2.0, 1.0, 0.25])
POS_WEIGHT = np.array([0.5, 2.0, 1.0, 3.0])


@dataclass(frozen=True)
class Case:
    """`ours` and `theirs` take the data in order: the prediction `p`, then what else `data` makes."""

    loss: str  # its name in the table
    ours: Callable[..., ws.Tensor]
    theirs: Callable[..., torch.Tensor]
    data: Callable[[np.random.Generator, int], Data]
    extra: tuple[str, ...] = field(default=())  # names of float inputs whose gradient is compared, too


def numbers(rng: np.random.Generator, n: int) -> Data:
    return {"p": rng.normal(size=(n, CLASSES)) * 2, "t": rng.normal(size=(n, CLASSES))}


def weighted_numbers(rng: np.random.Generator, n: int) -> Data:
    return {**numbers(rng, n), "w": rng.uniform(0.1, 2, n)}


def counts(rng: np.random.Generator, n: int) -> Data:
    return {"p": rng.normal(size=(n, CLASSES)), "t": rng.poisson(2.0, (n, CLASSES)).astype(float)}


def rates(rng: np.random.Generator, n: int) -> Data:
    return {"p": rng.uniform(0.1, 5, (n, CLASSES)), "t": rng.poisson(2.0, (n, CLASSES)).astype(float)}


def normals(rng: np.random.Generator, n: int) -> Data:
    return {**numbers(rng, n), "v": rng.uniform(0.1, 2, (n, CLASSES))}


def mean_and_spread(rng: np.random.Generator, n: int) -> Data:
    return {"p": rng.normal(size=(n, 2)), "t": rng.normal(size=n)}


def labels(rng: np.random.Generator, n: int) -> Data:
    return {"p": rng.normal(size=(n, CLASSES)) * 2, "t": rng.integers(0, CLASSES, n).astype(np.int32)}


def weighted_labels(rng: np.random.Generator, n: int) -> Data:
    return {**labels(rng, n), "w": rng.uniform(0.1, 2, n)}


def some_labels(rng: np.random.Generator, n: int) -> Data:
    out = labels(rng, n)
    out["t"][::3] = -100
    return out


def some_weighted_labels(rng: np.random.Generator, n: int) -> Data:
    return {**some_labels(rng, n), "w": rng.uniform(0.1, 2, n)}


def probabilities(rng: np.random.Generator, n: int) -> Data:
    return {"p": rng.normal(size=(n, CLASSES)) * 2, "t": rng.dirichlet(np.ones(CLASSES), n)}


def yes_or_no(rng: np.random.Generator, n: int) -> Data:
    return {"p": rng.normal(size=(n, CLASSES)) * 2, "t": rng.integers(0, 2, (n, CLASSES)).astype(float)}


def signs(rng: np.random.Generator, n: int) -> Data:
    return {"p": rng.normal(size=(n, CLASSES)), "t": rng.choice([-1.0, 1.0], (n, CLASSES))}


def pairs(rng: np.random.Generator, n: int) -> Data:
    return {**numbers(rng, n), "s": rng.choice([-1.0, 1.0], n)}


def log_probabilities(rng: np.random.Generator, n: int) -> Data:
    out = some_weighted_labels(rng, n)
    return {**out, "p": np.log(rng.dirichlet(np.ones(CLASSES), n))}


def chances(rng: np.random.Generator, n: int) -> Data:
    return {"p": rng.uniform(0.01, 0.99, (n, CLASSES)), "t": rng.integers(0, 2, (n, CLASSES)).astype(np.int32)}


def distances(rng: np.random.Generator, n: int) -> Data:
    return {"p": rng.uniform(0.1, 2, n), "t": rng.integers(0, 2, n).astype(float)}


def speech(rng: np.random.Generator, n: int) -> Data:
    """Rows of up to 3 labels of the classes 1 to 4 in 8 steps, some of them equal ones side by side."""
    labels = rng.integers(1, 3, (n, 3)).astype(np.int32)
    labels[::3, 2], labels[1::4, 1:] = 0, -1
    return {"p": rng.normal(size=(n, 8, CLASSES)), "t": labels}


def timed_speech(rng: np.random.Generator, n: int) -> Data:
    lengths = rng.integers(6, 9, n).astype(np.int32)
    labels = rng.integers(1, 3, (n, 3)).astype(np.int32)
    return {**speech(rng, n), "t": labels, "i": lengths, "l": rng.integers(1, 4, n).astype(np.int32)}


# -- formulas where torch has none -------------------------------------------------------------------------------


def long(t: torch.Tensor) -> torch.Tensor:
    return t.long()


def like(values: Array, p: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=p.dtype)


def weighted(values: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    inside = values[0].numel()
    return (values.reshape(len(w), -1) * w[:, None]).sum() / (w.sum() * inside)


def log_cosh(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.log(torch.cosh(p - t)).mean()


def pinball(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.maximum(0.3 * (t - p), -0.7 * (t - p)).mean()


def normal_from_scores(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.gaussian_nll_loss(p[:, 0], t, p[:, 1].exp())


def ignoring_with_everything(p: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Label smoothing, class weights, ignored rows and sample weights, from the definition."""
    kept = t != -100
    y, each, logs, rows = t[kept].long(), like(CLASS_WEIGHT, p), F.log_softmax(p, -1)[kept], w[kept]
    sharp = -each[y] * logs.gather(1, y[:, None])[:, 0]
    spread = -(each * logs).sum(1) / CLASSES
    return ((0.9 * sharp + 0.1 * spread) * rows).sum() / (each[y] * rows).sum()


def focal(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    true = F.softmax(p, -1).gather(1, t[:, None].long())[:, 0]
    return (-((1 - true) ** 1.5) * true.log() * like(CLASS_WEIGHT, p)[t.long()]).mean()


def binary_focal(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    true = torch.where(t == 1, torch.sigmoid(p), 1 - torch.sigmoid(p))
    return (-torch.where(t == 1, 0.25, 0.75) * (1 - true) ** 2 * true.log()).mean()


def dice(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    q = torch.sigmoid(p)
    return 1 - (2 * (q * t).sum() + 1) / (q.sum() + t.sum() + 1)


def dice_of_classes(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    q, own = F.softmax(p, -1), F.one_hot(t.long(), CLASSES)
    return (1 - (2 * (q * own).sum(0) + 0.5) / (q.sum(0) + own.sum(0) + 0.5)).mean()


def info_nce(p: torch.Tensor, t: torch.Tensor, symmetric: bool = False) -> torch.Tensor:
    similar = F.normalize(p) @ F.normalize(t).T / 0.2
    own = torch.arange(len(p))
    return (
        F.cross_entropy(similar, own)
        if not symmetric
        else (0.5 * (F.cross_entropy(similar, own) + F.cross_entropy(similar.T, own)))
    )


def tversky(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    q = torch.sigmoid(p)
    found = (q * t).sum() + 1
    return 1 - found / (found + 0.3 * (q * (1 - t)).sum() + 0.7 * ((1 - q) * t).sum())


def batch_hard(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """From the definition, pair by pair."""
    found = []
    for i in range(len(p)):
        own = [(p[i] - p[j]).norm() for j in range(len(p)) if j != i and t[i] == t[j]]
        other = [(p[i] - p[j]).norm() for j in range(len(p)) if t[i] != t[j]]
        if own and other:
            found.append(F.relu(torch.stack(own).max() - torch.stack(other).min() + 0.5))
    return torch.stack(found).mean()


def contrastive(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return (t * p**2 + (1 - t) * F.relu(1.2 - p) ** 2).mean()


def ctc(p: torch.Tensor, t: torch.Tensor, i: Any = None, n: Any = None, reduction: str = "mean") -> torch.Tensor:
    lengths = (t > 0).sum(1) if n is None else n
    steps = torch.full((len(p),), p.shape[1]) if i is None else i
    logs = F.log_softmax(p, -1).transpose(0, 1)
    return F.ctc_loss(logs, t.clamp(min=0).long(), steps.long(), lengths.long(), reduction=reduction)


def times(rng: np.random.Generator, n: int) -> Data:
    """Some times are equal, a third of the rows is censored."""
    time, event = np.round(rng.exponential(size=n), 1), rng.integers(0, 3, n) > 0
    return {"p": rng.normal(size=n), "t": np.stack([time, event], 1).astype(float)}


def cosines(rng: np.random.Generator, n: int) -> Data:
    """Some angles are so large that the margin passes π."""
    p = rng.uniform(-0.9, 0.9, (n, CLASSES))
    p[::2] = -0.98
    return {"p": p, "t": rng.integers(0, CLASSES, n).astype(np.int32)}


def distilled(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return 9 * F.kl_div(F.log_softmax(p / 3, -1), F.softmax(t / 3, -1), reduction="batchmean")


def expectile(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return (torch.abs(0.8 - (t < p).to(p.dtype)) * (t - p) ** 2).mean()


def poly1(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    true = F.softmax(p, -1).gather(1, t[:, None].long())[:, 0]
    return (-true.log() + 2.0 * (1 - true)).mean()


def supervised_contrastive(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """From the definition, row by row."""
    z, found = F.normalize(p), []
    for i in range(len(p)):
        others = [a for a in range(len(p)) if a != i]
        own = [a for a in others if t[a] == t[i]]
        total = torch.logsumexp(torch.stack([z[i] @ z[a] / 0.3 for a in others]), 0)
        if own:
            found.append(-torch.stack([z[i] @ z[a] / 0.3 - total for a in own]).mean())
    return torch.stack(found).mean()


def arcface(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    rows, own = torch.arange(len(p)), t.long()
    angle = torch.acos(p[rows, own])
    turned = torch.where(angle + 0.5 < np.pi, torch.cos(angle + 0.5), p[rows, own] - 0.5 * np.sin(0.5))
    scores = p.clone()
    scores[rows, own] = turned
    return F.cross_entropy(16.0 * scores, own)


def cox(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """From the definition, event by event."""
    events = [i for i in range(len(p)) if t[i, 1] > 0]
    return torch.stack([torch.logsumexp(p[t[:, 0] >= t[i, 0]], 0) - p[i] for i in events]).mean()


CASES: dict[str, Case] = {
    "mse": Case("mse", L.mse_loss, F.mse_loss, numbers, ("t",)),
    "mse weighted": Case(
        "mse",
        lambda p, t, w: L.mse_loss(p, t, sample_weight=w),
        lambda p, t, w: weighted((p - t) ** 2, w),
        weighted_numbers,
    ),
    "rmse": Case("rmse", L.rmse_loss, lambda p, t: F.mse_loss(p, t).sqrt(), numbers),
    "rmse weighted": Case(
        "rmse",
        lambda p, t, w: L.rmse_loss(p, t, sample_weight=w),
        lambda p, t, w: weighted((p - t) ** 2, w).sqrt(),
        weighted_numbers,
    ),
    "mae": Case("mae", L.mae_loss, F.l1_loss, numbers),
    "huber": Case("huber", lambda p, t: L.huber_loss(p, t, 1.5), lambda p, t: F.huber_loss(p, t, delta=1.5), numbers),
    "smooth l1": Case(
        "smooth_l1", lambda p, t: L.smooth_l1_loss(p, t, 0.5), lambda p, t: F.smooth_l1_loss(p, t, beta=0.5), numbers
    ),
    "log cosh": Case("log_cosh", L.log_cosh_loss, log_cosh, numbers),
    "quantile": Case("quantile", lambda p, t: L.quantile_loss(p, t, 0.3), pinball, numbers),
    "expectile": Case("expectile", lambda p, t: L.expectile_loss(p, t, 0.8), expectile, numbers),
    "poisson": Case("poisson_nll", L.poisson_nll_loss, F.poisson_nll_loss, counts),
    "poisson full": Case(
        "poisson_nll",
        lambda p, t: L.poisson_nll_loss(p, t, full=True),
        lambda p, t: F.poisson_nll_loss(p, t, full=True),
        counts,
    ),
    "poisson of rates": Case(
        "poisson_nll",
        lambda p, t: L.poisson_nll_loss(p, t, log_input=False),
        lambda p, t: F.poisson_nll_loss(p, t, log_input=False),
        rates,
    ),
    "gaussian": Case("gaussian_nll", L.gaussian_nll_loss, normal_from_scores, mean_and_spread),
    "gaussian with variance": Case(
        "gaussian_nll",
        lambda p, t, v: L.gaussian_nll_loss(p, t, v, full=True),
        lambda p, t, v: F.gaussian_nll_loss(p, t, v, full=True),
        normals,
        ("v",),
    ),
    "cross entropy": Case("cross_entropy", L.cross_entropy, lambda p, t: F.cross_entropy(p, long(t)), labels),
    "cross entropy weighted": Case(
        "cross_entropy",
        lambda p, t, w: L.cross_entropy(p, t, sample_weight=w),
        lambda p, t, w: weighted(F.cross_entropy(p, long(t), reduction="none"), w),
        weighted_labels,
    ),
    "cross entropy ignoring": Case(
        "cross_entropy",
        lambda p, t: L.cross_entropy(p, t, ignore_index=-100),
        lambda p, t: F.cross_entropy(p, long(t)),
        some_labels,
    ),
    "cross entropy smoothed": Case(
        "cross_entropy",
        lambda p, t: L.cross_entropy(p, t, label_smoothing=0.1),
        lambda p, t: F.cross_entropy(p, long(t), label_smoothing=0.1),
        labels,
    ),
    "cross entropy of weighted classes": Case(
        "cross_entropy",
        lambda p, t: L.cross_entropy(p, t, class_weight=CLASS_WEIGHT),
        lambda p, t: F.cross_entropy(p, long(t), like(CLASS_WEIGHT, p)),
        labels,
    ),
    "cross entropy smoothed, weighted, ignoring": Case(
        "cross_entropy",
        lambda p, t: L.cross_entropy(p, t, -100, label_smoothing=0.1, class_weight=CLASS_WEIGHT),
        lambda p, t: F.cross_entropy(p, long(t), like(CLASS_WEIGHT, p), label_smoothing=0.1),
        some_labels,
    ),
    "cross entropy with everything": Case(
        "cross_entropy",
        lambda p, t, w: L.cross_entropy(
            p, t, -100, label_smoothing=0.1, class_weight=CLASS_WEIGHT, sample_weight=w
        ),
        ignoring_with_everything,
        some_weighted_labels,
    ),
    "cross entropy of probabilities": Case("cross_entropy", L.cross_entropy, F.cross_entropy, probabilities),
    "cross entropy of probabilities, smoothed, weighted": Case(
        "cross_entropy",
        lambda p, t: L.cross_entropy(p, t, label_smoothing=0.2, class_weight=CLASS_WEIGHT),
        lambda p, t: F.cross_entropy(p, t, like(CLASS_WEIGHT, p), label_smoothing=0.2),
        probabilities,
    ),
    "kl": Case(
        "kl_div",
        L.kl_div_with_logits_loss,
        lambda p, t: F.kl_div(F.log_softmax(p, -1), t, reduction="batchmean"),
        probabilities,
    ),
    "binary": Case(
        "binary_cross_entropy",
        L.binary_cross_entropy_with_logits_loss,
        F.binary_cross_entropy_with_logits,
        yes_or_no,
    ),
    "binary with weights of ones": Case(
        "binary_cross_entropy",
        lambda p, t: L.bce(p, t, pos_weight=POS_WEIGHT.astype(p.dtype.numpy)),
        lambda p, t: F.binary_cross_entropy_with_logits(p, t, pos_weight=like(POS_WEIGHT, p)),
        yes_or_no,
    ),
    "focal": Case("focal", lambda p, t: L.focal_loss(p, t, 1.5, class_weight=CLASS_WEIGHT), focal, labels),
    "focal binary": Case("focal", lambda p, t: L.focal_loss(p, t, 2.0, 0.25), binary_focal, yes_or_no),
    "hinge": Case("hinge", L.hinge_loss, lambda p, t: F.relu(1 - t * p).mean(), signs),
    "hinge of classes": Case(
        "hinge",
        lambda p, t: L.hinge_loss(p, t, 0.5),
        lambda p, t: F.multi_margin_loss(p, long(t), margin=0.5),
        labels,
    ),
    "cosine": Case(
        "cosine_embedding",
        L.cosine_embedding_loss,
        lambda p, t: (1 - F.cosine_similarity(p, t)).mean(),
        numbers,
        ("t",),
    ),
    "cosine of pairs": Case(
        "cosine_embedding",
        lambda p, t, s: L.cosine_embedding_loss(p, t, s, margin=0.2),
        lambda p, t, s: F.cosine_embedding_loss(p, t, s, margin=0.2),
        pairs,
    ),
    "dice": Case("dice", L.dice_loss, dice, yes_or_no),
    "dice of classes": Case("dice", lambda p, t: L.dice_loss(p, t, 0.5), dice_of_classes, labels),
    "info nce": Case("info_nce", lambda p, t: L.info_nce_loss(p, t, 0.2), info_nce, numbers, ("t",)),
    "info nce symmetric": Case(
        "info_nce",
        lambda p, t: L.info_nce_loss(p, t, 0.2, symmetric=True),
        lambda p, t: info_nce(p, t, symmetric=True),
        numbers,
    ),
    "tversky": Case("tversky", lambda p, t: L.tversky_loss(p, t, 0.3, 0.7), tversky, yes_or_no),
    "tversky of classes": Case(
        "tversky", lambda p, t: L.tversky_loss(p, t, smooth=0.25), dice_of_classes, labels  # Dice, its smooth twice
    ),
    "poly1": Case("poly1", lambda p, t: L.poly1_loss(p, t, 2.0), poly1, labels),
    "distillation": Case("distillation", lambda p, t: L.distillation_loss(p, t, 3.0), distilled, numbers),
    "feature distillation": Case(
        "feature_distillation",
        L.feature_distillation_loss,
        lambda p, t: ((F.normalize(p) - F.normalize(t)) ** 2).sum(1).mean(),
        numbers,
    ),
    "supervised contrastive": Case(
        "supervised_contrastive", lambda p, t: L.supervised_contrastive_loss(p, t, 0.3), supervised_contrastive, labels
    ),
    "arcface": Case("arcface", lambda p, t: L.arcface_loss(p, t, scale=16.0), arcface, cosines),
    "cox": Case("cox", L.cox_loss, cox, times),
    "nll": Case("nll", L.nll_loss, lambda p, t: F.nll_loss(p, long(t)), labels),
    "nll with everything": Case(
        "nll",
        lambda p, t, w: L.nll_loss(p, t, -100, class_weight=CLASS_WEIGHT, sample_weight=w),
        lambda p, t, w: (F.nll_loss(p, long(t), like(CLASS_WEIGHT, p), reduction="none") * w).sum()
        / (like(CLASS_WEIGHT, p)[long(t).clamp(min=0)] * (t >= 0) * w).sum(),
        log_probabilities,
    ),
    "bce of probabilities": Case(
        "bce_of_probabilities",
        L.bce_of_probabilities_loss,
        lambda p, t: F.binary_cross_entropy(p, t.to(p.dtype)),
        chances,
    ),
    "ctc": Case("ctc", L.ctc_loss, ctc, speech),
    "ctc with lengths, summed": Case(
        "ctc",
        lambda p, t, i, n: L.ctc_loss(p, t, i, n, reduction="sum"),
        lambda p, t, i, n: ctc(p, t, i, n, "sum"),
        timed_speech,
    ),
    "triplet": Case("triplet", lambda p, t: L.triplet_loss(p, t, 0.5), batch_hard, labels),
    "contrastive": Case("contrastive", lambda p, t: L.contrastive_loss(p, t, 1.2), contrastive, distances),
}  # fmt: skip
