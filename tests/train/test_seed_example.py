"""The example of the third seed (lines 140-178), word for word but for `var` and where things are imported from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import wholestep as ws

EXAMPLE = """
# Create optimizer
var optimizer = Adam(
    learning_rate=0.001,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-8
)

# Create learning rate scheduler
var scheduler = CosineAnnealingLR(
    optimizer=optimizer,
    T_max=100,
    eta_min=1e-6
)

# Create metrics
var train_loss = LossTracker()
var train_acc = Accuracy()
var val_loss = LossTracker()
var val_acc = Accuracy()

# Create callbacks
var early_stopping = EarlyStopping(
    monitor="val_loss",
    patience=10,
    mode="min"
)

var checkpoint = ModelCheckpoint(
    filepath="checkpoints/best_model.mojo",
    monitor="val_acc",
    mode="max"
)

# Create and run training loop
var loop = BasicTrainingLoop(
    model=my_model,
    optimizer=optimizer,
    scheduler=scheduler,
    metrics=[train_loss, train_acc, val_loss, val_acc],
    callbacks=[early_stopping, checkpoint]
)

loop.fit(
    train_data=train_loader,
    val_data=val_loader,
    epochs=100
)
"""


def torch_rates(epochs: int) -> list[float]:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=0.001)
    scheduler, used = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100, 1e-6), []
    for _ in range(epochs):
        used.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return used


def test_the_example_runs_and_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = ws.datasets.digits()
    names = {
        "Adam": ws.Adam, "CosineAnnealingLR": ws.schedules.CosineAnnealingLR, "LossTracker": ws.metrics.LossTracker,
        "Accuracy": ws.metrics.Accuracy, "EarlyStopping": ws.EarlyStopping, "ModelCheckpoint": ws.ModelCheckpoint,
        "BasicTrainingLoop": ws.BasicTrainingLoop, "my_model": ws.nn.Linear(64, 10),
        "train_loader": ws.DataLoader(x[:200], y[:200], 50), "val_loader": ws.DataLoader(x[200:300], y[200:300], 50),
    }  # fmt: skip
    text = EXAMPLE.replace("var ", "").replace("loop.fit(", "history = loop.fit(")
    exec(text, names)
    history: ws.TrainHistory = names["history"]  # type: ignore[assignment]
    assert history.names == ["loss", "accuracy", "val_loss", "val_accuracy", "lr"]
    np.testing.assert_allclose(history["lr"], torch_rates(len(history)), rtol=1e-9)
    best = ws.load_checkpoint("checkpoints/best_model.mojo", best="val_acc")
    assert best.logs["val_accuracy"] == max(history["val_acc"])
    assert history["val_acc"][-1] > 0.7
    assert "optimizer.lr follows Cosine by epoch" in capsys.readouterr().err
    train, held = (names["my_model"].evaluate(x[a], y[a], loss="cross_entropy") for a in (slice(200), slice(200, 300)))  # type: ignore[attr-defined]
    assert history["val_loss"][-1] == pytest.approx(held["loss"], rel=1e-4)
    assert train["loss"] < history["loss"][0]


def test_the_same_metric_twice_is_one_and_two_of_a_name_are_refused() -> None:
    from wholestep.steps.recipe import as_measures

    twice = as_measures([ws.metrics.Accuracy(), "accuracy", ws.metrics.LossTracker(), ws.metrics.LossTracker()])
    assert [m.metric.name for m in twice] == ["accuracy", "loss"]
    with pytest.raises(ws.errors.OptionError, match="two metrics are called 'accuracy'"):
        as_measures([ws.metrics.Accuracy(), ws.metrics.Accuracy(threshold=0.3)])
