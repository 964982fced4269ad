"""Every loss, every metric, every optimizer in one experiment per family, for fit, resume and the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import wholestep as ws
from tests.losses.cases import CASES
from tests.metrics.groups import OF_IMAGES, OF_NUMBERS
from tests.optim.table import ROWS as OPTIMIZERS

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


FAMILIES = {"losses": losses, "metrics": metrics, "optimizers": optimizers}
