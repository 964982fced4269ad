"""Losses, optimizers and schedules, in our words and in torch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import wholestep as ws

Array = np.ndarray[Any, Any]
EVERYWHERE = {"decay_on": ("*",)}
EPS = 1e-3  # of optimizers that divide: what is 0 but for rounding must stay near 0


@dataclass(frozen=True)
class LossRow:
    """`target` draws what belongs to outputs of a shape; `classes`: the last axis of the outputs."""

    ours: Any
    theirs: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    target: Callable[[np.random.Generator, tuple[int, ...]], Array]
    classes: bool = False
    counts: Callable[[Array, int], Array] | None = None  # which rows of labels count, of so many classes; None: all


def numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.normal(size=shape)


def yes_or_no(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 2, shape).astype(np.float64)


def counts(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 4, shape).astype(np.float64)


def labels(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)


def shares(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    e = np.exp(rng.normal(size=shape))
    return e / e.sum(-1, keepdims=True)


def _rows(o: torch.Tensor) -> torch.Tensor:
    return o.reshape(-1, o.shape[-1])


def _weights(classes: int) -> Array:
    """Of three classes and more, some do not count at all."""
    return np.arange(classes) % 3 + (0.0 if classes > 2 else 0.5)


def _weighted(o: Any, t: Any, **rows: Any) -> Any:
    return ws.losses.cross_entropy(o, t, class_weight=_weights(o.shape[-1]), label_smoothing=0.1, axis=-1, **rows)


def _torch_weighted(o: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    weight = torch.tensor(_weights(o.shape[-1]), dtype=o.dtype)
    return F.cross_entropy(_rows(o), t.reshape(-1).long(), weight, label_smoothing=0.1)


def _of_rows(**options: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda o, t: F.cross_entropy(_rows(o), t.reshape(-1).long(), **options)


LAST = {"kind": "cross_entropy", "axis": -1}  # the classes are the last axis, whatever the shapes would allow
LOSSES: dict[str, LossRow] = {
    "mse": LossRow("mse", F.mse_loss, numbers),
    "mae": LossRow("mae", F.l1_loss, numbers),
    "huber": LossRow("huber", F.huber_loss, numbers),
    "smooth_l1": LossRow("smooth_l1", F.smooth_l1_loss, numbers),
    "log_cosh": LossRow(
        "log_cosh", lambda o, t: (o - t + F.softplus(-2 * (o - t)) - math.log(2)).mean(), numbers
    ),
    "poisson": LossRow(lambda o, t, **weights: ws.losses.poisson_nll_loss(o, t, **weights), F.poisson_nll_loss, counts),
    "bce": LossRow("binary_cross_entropy", F.binary_cross_entropy_with_logits, yes_or_no),
    "cross_entropy": LossRow(LAST, _of_rows(), labels, True),
    "smoothed": LossRow({**LAST, "label_smoothing": 0.2}, _of_rows(label_smoothing=0.2), labels, True),
    "ignoring": LossRow({**LAST, "ignore_index": 1}, _of_rows(ignore_index=1), labels, True, lambda t, _: t != 1),
    "weighted": LossRow(_weighted, _torch_weighted, labels, True, lambda t, classes: _weights(classes)[t] != 0),
    "soft": LossRow(LAST, lambda o, t: F.cross_entropy(_rows(o), _rows(t)), shares, True),
    "kl": LossRow(
        "kl_div",
        lambda o, t: F.kl_div(F.log_softmax(_rows(o), -1), _rows(t), reduction="batchmean"),
        shares,
        True,
    ),
}  # fmt: skip


class TorchLion(torch.optim.Optimizer):
    """w -= lr·(sign(β₁m + (1 - β₁)g) + decay·w); m = β₂m + (1 - β₂)g (arXiv:2302.06675)."""

    def __init__(self, params: Iterable[torch.nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                m = self.state[w].setdefault("m", torch.zeros_like(w))
                w -= group["lr"] * (torch.sign(0.9 * m + 0.1 * w.grad) + 0.1 * w)
                m.mul_(0.99).add_(w.grad, alpha=0.01)


@dataclass(frozen=True)
class OptimizerRow:
    ours: Callable[[float], Any]
    theirs: Callable[[Any, float], torch.optim.Optimizer]
    lr: float = 0.01


T = torch.optim
OPTIMIZERS: dict[str, OptimizerRow] = {
    "sgd": OptimizerRow(ws.SGD, lambda p, lr: T.SGD(p, lr), 0.1),
    "momentum": OptimizerRow(
        lambda lr: ws.SGD(lr, momentum=0.9, weight_decay=0.02, **EVERYWHERE),
        lambda p, lr: T.SGD(p, lr, momentum=0.9, weight_decay=0.02), 0.05,
    ),
    "nesterov": OptimizerRow(
        lambda lr: ws.SGD(lr, momentum=0.8, nesterov=True),
        lambda p, lr: T.SGD(p, lr, momentum=0.8, nesterov=True), 0.05,
    ),
    "adam": OptimizerRow(lambda lr: ws.Adam(lr, eps=EPS), lambda p, lr: T.Adam(p, lr, eps=EPS)),
    "adamw": OptimizerRow(
        lambda lr: ws.AdamW(lr, eps=EPS, weight_decay=0.1, **EVERYWHERE),
        lambda p, lr: T.AdamW(p, lr, eps=EPS, weight_decay=0.1),
    ),
    "amsgrad": OptimizerRow(lambda lr: ws.AMSGrad(lr, eps=EPS), lambda p, lr: T.Adam(p, lr, eps=EPS, amsgrad=True)),
    "nadam": OptimizerRow(lambda lr: ws.NAdam(lr, eps=EPS), lambda p, lr: T.NAdam(p, lr, eps=EPS)),
    "radam": OptimizerRow(lambda lr: ws.RAdam(lr, eps=EPS), lambda p, lr: T.RAdam(p, lr, eps=EPS)),
    "rmsprop": OptimizerRow(
        lambda lr: ws.RMSprop(lr, eps=EPS, momentum=0.5), lambda p, lr: T.RMSprop(p, lr, eps=EPS, momentum=0.5)
    ),
    "adagrad": OptimizerRow(lambda lr: ws.Adagrad(lr, eps=EPS), lambda p, lr: T.Adagrad(p, lr, eps=EPS)),
    "lion": OptimizerRow(lambda lr: ws.Lion(lr, weight_decay=0.1, **EVERYWHERE), TorchLion, 0.003),
}  # fmt: skip

# Ours for a rate, and what the rate of step n is multiplied by.
SCHEDULES: dict[str, tuple[Callable[[float], Any], Callable[[int], float]]] = {
    "exponential": (lambda lr: ws.schedules.Exponential(lr, 0.5), lambda n: 0.5**n),
    "cosine": (lambda lr: ws.schedules.Cosine(lr, 4), lambda n: (1 + math.cos(math.pi * min(n / 4, 1))) / 2),
    "steps": (lambda lr: ws.schedules.StepDecay(lr, 2, 0.1), lambda n: 0.1 ** (n // 2)),
    "line": (lambda lr: ws.schedules.Linear(lr, 0.0, 5), lambda n: 1 - min(n / 5, 1)),
}
