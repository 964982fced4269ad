"""Our own parts agree with each other: what one takes, the others take, under one name."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.errors import UsageError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
ABOUT: dict[str, Any] = {
    "inputs": ws.Spec(("batch", 3)), "targets": ws.Spec(("batch",), "int32"), "loss": "cross_entropy",
}  # fmt: skip


def of(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def test_arguments_have_one_name_everywhere() -> None:
    shared = {"loss", "loss_weights", "optimizer", "schedule", "metrics", "batch_size", "accumulate", "clip_norm",
              "clip_value", "nonfinite", "precision", "loss_scale", "seed", "device", "threads", "options"}  # fmt: skip
    for function in (ws.fit, ws.Experiment, ws.build_session):
        assert shared <= of(function), function
    assert {"x", "y", "loss", "metrics", "sample_weight", "batch_size", "device"} <= of(ws.nn.Module.evaluate)
    assert ws.History is ws.TrainHistory


def test_a_name_an_object_and_a_function_are_taken_alike() -> None:
    """Of losses, metrics, optimizers: by name, by object; a function of one's own with a name."""

    def spread(output: ws.Tensor, target: ws.Tensor) -> ws.Tensor:
        return output.max(1) - output.min(1)

    def loss(output: ws.Tensor, target: ws.Tensor) -> ws.Tensor:
        return ws.losses.cross_entropy(output, target)

    given: dict[str, Any] = {"progress": False, "device": "reference", "epochs": 1, "seed": 0}
    named = ws.fit(ws.nn.Linear(3, 2), (X, Y), loss="cross_entropy", optimizer="adamw", metrics=["accuracy"], **given)
    made = ws.fit(
        ws.nn.Linear(3, 2), (X, Y), loss=loss, optimizer=ws.AdamW(), metrics=[ws.metrics.Accuracy(), spread],
        schedule=ws.schedules.Lambda(lambda epoch: 1.0), **given,
    )  # fmt: skip
    assert made["loss"] == named["loss"]  # and ten rows are fewer than the usual batch of 32
    assert made["accuracy"] == named["accuracy"]
    assert "spread" in made.names


def test_every_builder_takes_a_module(tmp_path: Any) -> None:
    model = ws.nn.Linear(3, 2)
    session = ws.build_session(model, **ABOUT, batch_size=10, device="reference", optimizer="sgd")
    inference = ws.build_inference_session(model, inputs=ABOUT["inputs"], batch_size=10, device="reference")
    np.testing.assert_allclose(session.predict(x=X), inference.predict(x=X), rtol=1e-6)
    assert ws.estimate(model, **ABOUT, batch_size=10) is not None
    assert ws.Trainer(session).session() is session
    with pytest.raises(UsageError, match=r"session\.step\(x=.*\) trains"):
        session(X, Y)
