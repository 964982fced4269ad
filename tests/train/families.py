"""Every row of every table of the library in one experiment per family, for fit, resume and the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import wholestep as ws
from tests.losses.cases import CASES
from tests.metrics.groups import OF_IMAGES, OF_NUMBERS
from tests.optim.table import ROWS as OPTIMIZERS
from tests.schedules.cases import CASES as SCHEDULES

Array = np.ndarray[Any, Any]
ROWS, FEATURES = 20, 4
# What a loss that takes no raw scores takes.
RANGES: Mapping[str, Callable[[ws.Tensor], ws.Tensor]] = {
    "nll": ws.log_softmax, "bce_of_probabilities": ws.sigmoid, "contrastive": ws.softplus, "arcface": ws.tanh,
}  # fmt: skip


class Heads(ws.nn.Module):
    """A linear layer for each output, by its shape."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self.heads = ws.nn.ModuleDict()
        for name, shape in shapes.items():
            start = 0.3 * np.random.default_rng(len(self.heads)).normal(size=(int(np.prod(shape)), FEATURES))
            self.heads[name] = ws.nn.Linear(FEATURES, len(start), bias=False, init=start)

    def forward(self, x: ws.Tensor) -> dict[str, ws.Tensor]:
        outputs = {name: head(x).reshape((x.shape[0], *self.shapes[name])) for name, head in self.heads.items()}
        return {name: RANGES[name](out) if name in RANGES else out for name, out in outputs.items()}


def _data(seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(ROWS, FEATURES)).astype("f")


def _experiment(model: ws.nn.Module, targets: Any, **options: Any) -> ws.Experiment:
    return ws.Experiment(
        model=model, data=(_data(), targets), test=(_data(), targets), batch_size=8, epochs=2, device="reference",
        **options,
    )  # fmt: skip


def losses(scale: float = 1.0) -> ws.Experiment:
    """The loss is the sum of all losses of the table, each of an output of its own; `scale` weighs each."""
    drawn = {}
    for case in CASES.values():
        arrays = case.data(np.random.default_rng(0), ROWS)
        if case.loss not in drawn and arrays.keys() == {"p", "t"}:
            drawn[case.loss] = arrays
    targets = {name: a["t"].astype("f") if a["t"].dtype.kind == "f" else a["t"] for name, a in drawn.items()}
    targets["gaussian_nll"] = targets["gaussian_nll"].reshape(ROWS)
    assert drawn.keys() == ws.losses.LOSSES.keys()
    return _experiment(
        Heads({name: a["p"].shape[1:] for name, a in drawn.items()}), targets,
        loss={name: ws.losses.Loss(name) for name in drawn}, loss_weights=dict.fromkeys(drawn, scale),
        optimizer=ws.SGD(lr=1e-3),
    )  # fmt: skip


def metrics(scale: float = 1.0) -> ws.Experiment:
    """All metrics of the table, of classes, numbers and images."""
    rng = np.random.default_rng(1)
    targets = {
        "classes": np.arange(ROWS) % 3, "numbers": rng.normal(size=(ROWS, 1)).astype("f"),
        "images": rng.normal(size=(ROWS, 11, 11)).astype("f"),
    }  # fmt: skip
    others = [ws.metrics.TopKAccuracy(k=2)]
    others += [n for n in ws.metrics.METRICS if n not in ("top_k_accuracy", *OF_NUMBERS, *OF_IMAGES)]
    return _experiment(
        Heads({"classes": (3,), "numbers": (1,), "images": (11, 11)}), targets,
        loss={"classes": "cross_entropy", "numbers": "mse", "images": "mse"},
        metrics={"classes": others, "numbers": [n for n in OF_NUMBERS if n != "loss"], "images": [*OF_IMAGES]},
        optimizer=ws.SGD(lr=0.01 * scale),
    )  # fmt: skip


def optimizers(scale: float = 1.0) -> ws.Experiment:
    """A layer for each optimizer, as a group that it trains."""
    names = {f"of{i}": row.ours for i, row in enumerate(OPTIMIZERS.values())}
    groups = [ws.Group(f"heads.{n}.*", name=n, optimizer=rule) for n, rule in names.items()]
    targets = {n: np.random.default_rng(2).normal(size=(ROWS, 2)).astype("f") for n in names}
    return _experiment(
        Heads(dict.fromkeys(names, (2,))), targets, loss=dict.fromkeys(names, "mse"),
        loss_weights=dict.fromkeys(names, scale), optimizer=ws.SGD(lr=0.1, groups=groups),
    )  # fmt: skip


def schedules(scale: float = 1.0) -> ws.Experiment:
    """A layer for each schedule, which governs the rate of its group."""
    cases = {f"of{i}": case.schedule for i, case in enumerate(SCHEDULES.values())}
    groups = [ws.Group(f"heads.{n}.*", name=n, lr=0.1) for n in cases]
    rates = {
        f"optimizer.{n}.lr": replace(s, monitor="loss") if isinstance(s, ws.schedules.ReduceOnPlateau) else s
        for n, s in cases.items()
    }  # fmt: skip
    targets = {n: np.random.default_rng(3).normal(size=(ROWS, 2)).astype("f") for n in cases}
    return _experiment(
        Heads(dict.fromkeys(cases, (2,))), targets, loss=dict.fromkeys(cases, "mse"), schedule=rates,
        loss_weights=dict.fromkeys(cases, 0.1 * scale), optimizer=ws.SGD(lr=0.1, groups=groups),
    )  # fmt: skip


class OfEach(ws.nn.Module):
    """A linear layer of each input, added up."""

    def __init__(self) -> None:
        self.image, self.sound = ws.nn.Linear(3 * 8 * 8, 3), ws.nn.Linear(6 * 10, 3)
        self.tokens = ws.nn.Embedding(7, 3)

    def forward(self, image: ws.Tensor, sound: ws.Tensor, tokens: ws.Tensor) -> ws.Tensor:
        flat = self.image(image.reshape((image.shape[0], -1))) + self.sound(sound.reshape((sound.shape[0], -1)))
        return flat + self.tokens(tokens).mean(1)


def augmentation(scale: float = 1.0, *, mixing: Any = None) -> ws.Experiment:
    """Every augmentation, of the kind of input that it is for."""
    rng, d = np.random.default_rng(4), ws.data
    x = {
        "image": rng.uniform(size=(ROWS, 3, 8, 8)).astype("f"), "sound": rng.normal(size=(ROWS, 6, 10)).astype("f"),
        "tokens": rng.integers(0, 7, (ROWS, 5)).astype(np.int32),
    }  # fmt: skip
    of_images = [d.RandomAffine(20, 0.1), d.RandomFlip(), d.ColorJitter(0.2), d.RandomErasing(), d.Cutout(3)]
    chains = {
        "image": [*of_images, mixing or d.MixUp()], "sound": [d.SpecAugment()], "tokens": [d.MaskTokens(0.2)],
    }  # fmt: skip
    ws.manual_seed(0)
    data = (x, np.arange(ROWS, dtype=np.int32) % 3)
    return ws.Experiment(
        model=OfEach(), data=data, test=data, loss="cross_entropy", augment=chains, batch_size=8, epochs=2,
        device="reference", optimizer=ws.SGD(lr=0.1 * scale), metrics=["accuracy"],
    )  # fmt: skip


def cut_mix(scale: float = 1.0) -> ws.Experiment:
    """As `augmentation`, with the other way to mix rows."""
    return augmentation(scale, mixing=ws.data.CutMix())


def _sampled(sampler: Any, scale: float) -> ws.Experiment:
    ws.manual_seed(0)
    x = _data()
    data = (x, (x[:, 0] > 0).astype(np.int32))
    return ws.Experiment(
        model=ws.nn.Linear(FEATURES, 2), data=data, test=data, loss="cross_entropy", sampler=sampler, batch_size=8,
        epochs=3, device="reference", optimizer=ws.SGD(lr=0.5 * scale), metrics=["accuracy"],
    )  # fmt: skip


def hard_rows(scale: float = 1.0) -> ws.Experiment:
    return _sampled(ws.data.Hard(), scale)


def important_rows(scale: float = 1.0) -> ws.Experiment:
    return _sampled(ws.data.Importance(), scale)


def self_paced_rows(scale: float = 1.0) -> ws.Experiment:
    return _sampled(ws.data.SelfPaced(), scale)


def weighted_rows(scale: float = 1.0) -> ws.Experiment:
    return _sampled(ws.data.Weighted(np.arange(ROWS) + 1.0), scale)


def balanced_rows(scale: float = 1.0) -> ws.Experiment:
    return _sampled(ws.data.Balanced((_data()[:, 0] > 0).astype(np.int32)), scale)


def pruning(scale: float = 1.0) -> ws.Experiment:
    """Every form of pruning, for a layer each; the amount is a number that the program does not have."""
    forms = {
        f"{per}_{scope}": ws.optim.Pruned(
            ws.SGD(0.1), amount=0.5 * scale, end=4, every=2, per=per, scope=scope, name=f"{per}_{scope}"
        )
        for per in ("elements", "rows", "columns") for scope in ("global", "layer")
    }  # fmt: skip
    groups = [
        ws.Group(f"heads.{n}.*", name=n, optimizer=replace(rule, optimizer=rule.optimizer.named(f"inner_{n}")))
        for n, rule in forms.items()
    ]
    targets = {n: np.random.default_rng(5).normal(size=(ROWS, 4)).astype("f") for n in forms}
    return _experiment(
        Heads(dict.fromkeys(forms, (4,))), targets, loss=dict.fromkeys(forms, "mse"),
        optimizer=ws.SGD(lr=0.1, groups=groups),
    )  # fmt: skip


def quantization(scale: float = 1.0) -> ws.Experiment:
    """A layer for each way to find ranges and scales."""
    ways = [(c, o) for c in (True, False) for o in ("average", "extremes", "fixed")]
    model = Heads({f"of{i}": (3,) for i in range(len(ways))})
    for i, (per_channel, observer) in enumerate(ways):
        ws.nn.quantize(model, _data(), targets=f"heads.of{i}", per_channel=per_channel, observer=observer)
    targets = {n: np.random.default_rng(6).normal(size=(ROWS, 3)).astype("f") for n in model.shapes}
    return _experiment(model, targets, loss=dict.fromkeys(targets, "mse"), optimizer=ws.SGD(lr=0.1 * scale))


FAMILIES = {
    f.__name__: f
    for f in (
        losses, metrics, optimizers, schedules, augmentation, cut_mix, hard_rows, important_rows, self_paced_rows,
        weighted_rows, balanced_rows, pruning, quantization,
    )
}  # fmt: skip
