"""What a run logs besides its loss: parts of the loss, class weights, gradient norms, rates; torch is the oracle."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import wholestep as ws
from tests.support.compilers import quick

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3)).astype(np.float32)
KIND = (X[:, 0] > 0.4).astype(np.int32) + (X[:, 1] > 0.8)
SIZE = (X @ np.array([[1.0], [-2.0], [0.5]], np.float32)).astype(np.float32)
AIMS = {"kind": KIND, "size": SIZE}
WEIGHT = RNG.uniform(0.2, 2.0, 20).astype(np.float32)


class Two(ws.nn.Module):
    """Two heads over one layer."""

    def __init__(self) -> None:
        self.kind, self.size = ws.nn.Linear(3, 3), ws.nn.Linear(3, 1)

    def forward(self, x: ws.Tensor) -> Any:
        return {"kind": self.kind(x), "size": self.size(x)}


START = {name: RNG.normal(size=a.shape).astype(np.float32) for name, a in Two().state_dict().items()}


def heads() -> Two:
    model = Two()
    model.load_state_dict(START)
    return model


def fit(model: ws.nn.Module | None = None, data: Any = (X, AIMS), **settings: Any) -> ws.TrainHistory:
    given = {"loss": {"kind": "cross_entropy", "size": "mse"}, "optimizer": ws.SGD(lr=0.1), "batch_size": 8}
    return ws.fit(
        model or heads(),
        data,
        **{**given, "shuffle": False, "progress": False, "device": "reference", "options": quick(), **settings},
    )


def by_torch(
    weights: dict[str, float], epochs: int, clip: float | None = None, rows: np.ndarray | None = None
) -> dict[str, list[float]]:
    """A plain loop: the means by rows of the loss and of its parts, and the norms of gradients by steps."""
    p = {name: torch.tensor(a, requires_grad=True) for name, a in START.items()}
    out: dict[str, list[float]] = {"loss": [], "kind_loss": [], "size_loss": [], "grad_norm": []}
    for _ in range(epochs):
        sums, norms, shares = dict.fromkeys(("loss", "kind_loss", "size_loss"), 0.0), [], 0.0
        for i in range(0, 20, 8):
            x, w = torch.tensor(X[i : i + 8]), torch.ones(len(X[i : i + 8]))
            w = w if rows is None else torch.tensor(rows[i : i + 8])
            kinds = F.cross_entropy(
                x @ p["kind.weight"].T + p["kind.bias"], torch.tensor(KIND[i : i + 8]).long(), reduction="none"
            )
            errors = (x @ p["size.weight"].T + p["size.bias"] - torch.tensor(SIZE[i : i + 8])).square()[:, 0]
            kind, size = (kinds * w).sum() / w.sum(), (errors * w).sum() / w.sum()
            loss = weights.get("kind", 1.0) * kind + weights.get("size", 1.0) * size
            grads = torch.autograd.grad(loss, list(p.values()))
            norm = torch.sqrt(sum(g.square().sum() for g in grads))
            norms.append(norm.item())
            scale = 1.0 if clip is None else min(1.0, clip / norm.item())
            for q, g in zip(p.values(), grads, strict=True):
                q.data -= 0.1 * scale * g
            share = w.sum().item()
            sums["loss"] += loss.item() * len(x)
            sums["kind_loss"] += kind.item() * share
            sums["size_loss"] += size.item() * share
            shares += share
        out["loss"].append(sums["loss"] / 20)
        for name in ("kind_loss", "size_loss"):
            out[name].append(sums[name] / shares)
        out["grad_norm"].append(float(np.mean(norms)))
    return out


PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "weights": ({"loss_weights": {"size": 0.25}}, {"weights": {"size": 0.25}}),
    "both": ({"loss_weights": {"size": 0.25, "kind": 3}}, {"weights": {"size": 0.25, "kind": 3.0}}),
    "rows": (
        {"loss_weights": {"size": 0.25}, "data": (X, AIMS, WEIGHT)},
        {"weights": {"size": 0.25}, "rows": WEIGHT},
    ),
    "micro-batches": ({"loss_weights": {"size": 0.25}, "accumulate": 2, "batch_size": 4}, {"weights": {"size": 0.25}}),
    "clipped": ({"clip_norm": 0.5}, {"clip": 0.5}),
    "clipped micro-batches": (
        {"clip_norm": 0.5, "accumulate": 2, "batch_size": 4, "device": "cpu", "options": quick()},
        {"clip": 0.5},
    ),
}


@pytest.mark.parametrize("case", PARTS)
def test_parts_of_the_loss_and_norms_are_logged_as_torch_has_them(case: str) -> None:
    settings, asked = PARTS[case]
    history = fit(epochs=3, gradient_norm=True, **settings)
    for name, values in by_torch(asked.pop("weights", {}), 3, **asked).items():
        np.testing.assert_allclose(history[name], values, rtol=2e-5, err_msg=name)


def test_parts_are_validated_saved_and_gone_on_with(tmp_path: Path) -> None:
    log, model = tmp_path / "log.csv", heads()
    settings: dict[str, Any] = {"validation": (X, AIMS), "loss_weights": {"size": 0.5}, "clip_norm": 1.0, "epochs": 2}
    history = fit(model, callbacks=ws.CSVLogger(log), **settings)
    loss = {"kind": "cross_entropy", "size": "mse"}
    found = model.evaluate(X, AIMS, loss=loss)
    assert found["loss"] == pytest.approx(found["kind_loss"] + found["size_loss"])
    last = history.last
    assert last["val_loss"] == pytest.approx(found["kind_loss"] + 0.5 * found["size_loss"])
    assert (last["val_kind_loss"], last["val_size_loss"]) == pytest.approx((found["kind_loss"], found["size_loss"]))
    columns = "epoch loss kind_loss size_loss grad_norm val_loss val_kind_loss val_size_loss lr"
    with log.open() as file:
        assert next(csv.reader(file)) == columns.split()
    parts = heads()
    fit(parts, checkpoint=tmp_path / "run", callbacks=ws.StepBudget(4), **settings)
    again = fit(parts, checkpoint=tmp_path / "run", resume=True, exact=True, **settings)
    assert again.to_json() == history.to_json()
    stopped = fit(
        epochs=9, validation=(X, AIMS), callbacks=ws.EarlyStopping("val_size_loss", patience=1, min_delta=9.0)
    )
    assert len(stopped) == 2


def test_a_function_may_return_parts_and_weights_may_follow_a_schedule() -> None:
    def both(output: Any, target: Any) -> Any:
        return {"fit": ws.losses.mse_loss(output, target), "size": (output * output).mean()}

    model = ws.nn.Linear(3, 1)
    history = fit(
        model,
        (X, SIZE),
        loss=both,
        loss_weights={"size": 1.0},
        schedule={"loss_weights.size": ws.schedules.StepDecay(1.0, 1, 0.5, unit="epoch")},
        epochs=3,
    )
    for i, weight in enumerate((1.0, 0.5, 0.25)):
        assert history["loss"][i] == pytest.approx(history["fit_loss"][i] + weight * history["size_loss"][i], rel=1e-5)


LOSSES: dict[str, tuple[Any, Any, Any]] = {
    "dict": ({0: 1.0, 2: 4.0}, "cross_entropy", [1.0, 1.0, 4.0]),
    "balanced": ("balanced", "cross_entropy", 20 / (3 * np.bincount(KIND))),
    "names, as JSON has them": ({"1": 2.0}, "cross_entropy", [1.0, 2.0, 1.0]),
}


@pytest.mark.parametrize("case", LOSSES)
def test_class_weight_is_torchs(case: str) -> None:
    given, loss, weights = LOSSES[case]
    model = ws.nn.Linear(3, 3)
    model.load_state_dict({"weight": START["kind.weight"], "bias": START["kind.bias"]})
    scores = torch.tensor(model.predict(X))
    expected = F.cross_entropy(
        scores, torch.tensor(KIND).long(), torch.tensor(np.asarray(weights), dtype=torch.float32)
    )
    history = fit(model, (X, KIND), loss=loss, class_weight=given, batch_size=20, epochs=1)
    assert history["loss"][0] == pytest.approx(expected.item(), rel=1e-5)


def test_class_weight_of_answers_is_torchs_pos_weight() -> None:
    model, yes = ws.nn.Linear(3, 1), (KIND == 2).astype(np.float32)
    scores = torch.tensor(model.predict(X))[:, 0]
    ratio = float((len(yes) - yes.sum()) / yes.sum())
    expected = F.binary_cross_entropy_with_logits(scores, torch.tensor(yes), pos_weight=torch.tensor(ratio))
    history = fit(model, (X, yes), loss="bce", class_weight="balanced", batch_size=20, epochs=1)
    assert history["loss"][0] == pytest.approx(expected.item(), rel=1e-5)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one number": (
        {"loss": "mse", "loss_weights": {"a": 1.0}},
        r"loss_weights=\{'a': 1.0\} is for a loss of several parts",
    ),
    "part": (
        {"loss_weights": {"kinds": 1.0}},
        r"loss_weights\['kinds'\]: the loss has no such part; it has: kind, size",
    ),
    "weight": ({"loss_weights": {"kind": "x"}}, r"loss_weights\['kind'\] must be a number; received 'x'"),
    "by output": ({"class_weight": [1.0]}, "this one is a dict by output. Give the output its own"),
    "own": ({"loss": lambda o, t: o.mean(), "class_weight": [1.0]}, "cannot change a user-defined loss"),
    "no classes": (
        {"loss": "mse", "class_weight": [1.0]},
        r"losses of classes; mse has none. .*data=\(x, y, weights\[y\]\)",
    ),
    "twice": (
        {"loss": ws.losses.Loss("cross_entropy", class_weight=[1.0, 2.0, 1.0]), "class_weight": [1.0, 1.0, 1.0]},
        "the loss has its own class_weight=; leave class_weight= out",
    ),
    "too few": ({"class_weight": [1.0]}, "class_weight has 1 numbers, and the model has 3 classes; give one each"),
    "too far": ({"class_weight": {3: 1.0}}, "class_weight has the class 3, and the model has the classes 0 to 2"),
    "negative": (
        {"class_weight": [1.0, -1.0, 1.0]},
        "class_weight: a weight must be a number of at least 0; received -1.0",
    ),
    "a word": ({"class_weight": "even"}, "class_weight='even': expected a dict, .* or 'balanced'"),
    "a name": ({"class_weight": {"cat": 1.0}}, "classes are numbers from 0, .*received 'cat'"),
    "missing": ({"data": (X, KIND * 0), "class_weight": "balanced"}, "no row has the class 1"),
    "unseen": ({"data": [(X, KIND)], "class_weight": "balanced"}, "counts class indices of data in memory"),
    "its name": (
        {"metrics": [ws.metrics.Accuracy(name="grad_norm")], "clip_norm": 1.0},
        "a metric is called 'grad_norm'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_weighed_is_told(case: str) -> None:
    settings, text = WRONG[case]
    one = {"data": (X, KIND), "loss": "cross_entropy", "model": ws.nn.Linear(3, 3)}
    two = case in ("part", "weight", "by output")
    if settings.get("loss") == "mse":
        one = {"data": (X, SIZE), "model": ws.nn.Linear(3, 1)}
    with pytest.raises(ws.errors.WholestepError, match=text):
        fit(**{**({} if two else one), **settings})
    with pytest.raises(ws.errors.UsageError, match="loss_weights= describe a module; a graph or step declares its own"):
        ws.build_session(ws.Graph(), loss_weights={})


def test_every_optimizer_has_its_rate_in_the_history() -> None:
    groups = ws.SGD(lr=0.1, groups=(ws.Group("kind.*", lr=0.01),))
    last = fit(optimizer=groups).last
    assert (last["lr/optimizer"], last["lr/optimizer.kind"]) == pytest.approx((0.1, 0.01))
