"""Optimizer updates on ten million parameters with given gradients: each optimizer in every framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import optax

    import wholestep as ws

FLAT = ((10_000_000,),)
MATRIX = ((2500, 4000),)  # for optimizers that use rows and columns, or matrix norms
SQUARES = ((1000, 1000),) * 10  # Muon's iteration grows with the shorter side
RATE = 1e-3


@dataclass(frozen=True)
class Update:
    """An optimizer.  `passes` is the number of buffers that an update must read or write, each counted once."""

    shapes: tuple[tuple[int, ...], ...]
    passes: int
    ours: Callable[[Any], ws.Optimizer]
    torch: tuple[str, dict[str, Any]] | None = None
    fused: bool = False  # does torch have a fused kernel?
    optax: Callable[[Any], optax.GradientTransformation] | None = None
    same_numbers: bool = True  # compare the results?  torch's Muon runs in bfloat16


UPDATES: dict[str, Update] = {
    "sgd": Update(FLAT, 3, lambda ws: ws.SGD(RATE), ("SGD", {"lr": RATE}), True, lambda o: o.sgd(RATE)),
    "momentum": Update(
        FLAT, 5, lambda ws: ws.SGD(RATE, momentum=0.9), ("SGD", {"lr": RATE, "momentum": 0.9}), True,
        lambda o: o.sgd(RATE, momentum=0.9),
    ),
    "adam": Update(FLAT, 7, lambda ws: ws.Adam(RATE), ("Adam", {"lr": RATE}), True, lambda o: o.adam(RATE)),
    "adamw": Update(
        FLAT, 7, lambda ws: ws.AdamW(RATE, decay_on=("*",)), ("AdamW", {"lr": RATE}), True,
        lambda o: o.adamw(RATE, weight_decay=0.01),
    ),
    "amsgrad": Update(
        FLAT, 9, lambda ws: ws.AMSGrad(RATE), ("Adam", {"lr": RATE, "amsgrad": True}), True
    ),  # optax's Adamax uses the largest corrected moment, which gives other values
    "adagrad": Update(FLAT, 5, lambda ws: ws.Adagrad(RATE), ("Adagrad", {"lr": RATE}), True),
    "nadam": Update(FLAT, 7, lambda ws: ws.NAdam(RATE), ("NAdam", {"lr": RATE})),
    "radam": Update(FLAT, 7, lambda ws: ws.RAdam(RATE), ("RAdam", {"lr": RATE})),
    "rmsprop": Update(
        FLAT, 5, lambda ws: ws.RMSprop(RATE), ("RMSprop", {"lr": RATE}), False,
        lambda o: o.rmsprop(RATE, decay=0.99, eps_in_sqrt=False),
    ),
    "rmsprop_centered": Update(
        FLAT, 9, lambda ws: ws.RMSprop(RATE, centered=True, momentum=0.9),
        ("RMSprop", {"lr": RATE, "centered": True, "momentum": 0.9}),
    ),
    "lion": Update(
        FLAT, 5, lambda ws: ws.Lion(RATE, weight_decay=0.01, decay_on=("*",)), None, False,
        lambda o: o.lion(RATE, weight_decay=0.01),
    ),
    "adadelta": Update(FLAT, 7, lambda ws: ws.Adadelta(RATE), ("Adadelta", {"lr": RATE})),
    "adamax": Update(FLAT, 7, lambda ws: ws.Adamax(RATE), ("Adamax", {"lr": RATE})),
    "rprop": Update(FLAT, 7, lambda ws: ws.Rprop(RATE), ("Rprop", {"lr": RATE})),
    "asgd": Update(FLAT, 5, lambda ws: ws.ASGD(RATE), ("ASGD", {"lr": RATE})),
    "ademamix": Update(FLAT, 9, lambda ws: ws.AdEMAMix(RATE)),
    "schedule_free": Update(FLAT, 7, lambda ws: ws.ScheduleFreeAdamW(RATE)),
    "adabelief": Update(FLAT, 7, lambda ws: ws.AdaBelief(RATE)),
    "yogi": Update(FLAT, 7, lambda ws: ws.Yogi(RATE)),
    "adan": Update(FLAT, 11, lambda ws: ws.Adan(RATE)),
    "novograd": Update(MATRIX, 5, lambda ws: ws.NovoGrad(RATE)),
    "prodigy": Update(FLAT, 11, lambda ws: ws.Prodigy()),
    "lars": Update(MATRIX, 5, lambda ws: ws.LARS(RATE)),
    "lamb": Update(
        MATRIX, 7, lambda ws: ws.LAMB(RATE, weight_decay=0.01), None, False, lambda o: o.lamb(RATE, weight_decay=0.01)
    ),
    "adafactor": Update(MATRIX, 3, lambda ws: ws.Adafactor(1e-2), ("Adafactor", {"lr": 1e-2})),
    "muon": Update(SQUARES, 5, lambda ws: ws.Muon(RATE), ("Muon", {"lr": RATE}), same_numbers=False),
    "polar_express": Update(SQUARES, 5, lambda ws: ws.Muon(RATE, polar_express=True)),
    "normuon": Update(SQUARES, 5, lambda ws: ws.NorMuon(RATE)),
    "soap": Update(((128, 128),) * 10, 13, lambda ws: ws.SOAP(RATE)),
    "adam8bit": Update(MATRIX, 4, lambda ws: ws.Adam8bit(RATE)),
    "adamw8bit": Update(MATRIX, 4, lambda ws: ws.AdamW8bit(RATE)),
    "schedule_free_sgd": Update(FLAT, 7, lambda ws: ws.ScheduleFreeSGD(RATE)),
}  # fmt: skip


def weights(update: Update) -> list[np.ndarray]:
    """The initial weights of every contender."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in update.shapes]


def gradients(update: Update) -> list[np.ndarray]:
    """The constant gradient of every step, chosen so that no moment decays to denormals."""
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in update.shapes]
