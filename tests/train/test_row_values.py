"""`per_row=` in fit: the table in the history, suspects, and spikes of the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep import nn

ROOT = Path(__file__).resolve().parents[2]
MNIST = [parent / "shared" / "data" / "mnist" for parent in (ROOT, *ROOT.parents)]


def with_wrong_labels(y: np.ndarray, share: float) -> tuple[np.ndarray, set[int]]:
    """The labels with a share of them moved to another class, and the rows of these."""
    rng = np.random.default_rng(0)
    flipped = rng.choice(len(y), int(share * len(y)), replace=False)
    y = y.copy()
    y[flipped] = (y[flipped] + rng.integers(1, 10, len(flipped))) % 10
    return y, set(flipped.tolist())


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train(x: Any, y: Any, **settings: Any) -> ws.TrainHistory:
    settings = {"epochs": 2, "loss": "cross_entropy", "optimizer": ws.Adam(), "seed": 0, "progress": False, **settings}
    return ws.fit(mlp(), (x, y), **settings)


def test_wrong_labels_are_among_the_suspects() -> None:
    x, y = ws.datasets.digits()
    y, flipped = with_wrong_labels(y, 0.01)
    history = train(x, y, epochs=15, per_row=["loss", "gradient_norm"])
    suspects = history.suspects(len(y) // 50)
    assert len({s.row for s in suspects} & flipped) >= 0.6 * len(flipped)
    assert sorted(suspects, key=lambda s: -s.score) == suspects
    assert suspects[0].loss > float(np.mean(history["loss"]))


@pytest.mark.long
def test_wrong_labels_of_mnist_are_among_the_suspects() -> None:
    """1 % of 60,000 labels are wrong; 60 % of these are among the 2 % most suspect rows."""
    folder = next((each for each in MNIST if each.is_dir()), None)
    if folder is None:
        pytest.skip(f"the files of MNIST are in none of {', '.join(map(str, MNIST))}")
    (x, y), _ = ws.data.mnist(folder)
    y, flipped = with_wrong_labels(y, 0.01)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    settings: dict[str, Any] = {"batch_size": 128, "epochs": 5, "seed": 0, "progress": False, "optimizer": ws.Adam()}
    history = ws.fit(model, (x, y), loss="cross_entropy", per_row=["gradient_norm"], **settings)
    assert len({s.row for s in history.suspects(len(y) // 50)} & flipped) >= 0.6 * len(flipped)


@pytest.mark.parametrize("settings", [{}, {"shuffle": False}, {"batch_size": 100, "drop_last": True}])
def test_every_row_of_every_epoch_has_its_loss(settings: dict[str, Any]) -> None:
    x, y = (a[:250] for a in ws.datasets.digits())
    history = train(x, y, per_row=["loss"], device="reference", **settings)
    visited = 200 if "drop_last" in settings else 250
    for stats, epoch in zip(history.epochs, history.per_row.epochs, strict=True):
        assert len(set(epoch.rows.tolist())) == len(epoch.values["loss"]) == visited
        assert np.mean(epoch.values["loss"]) == pytest.approx(stats.avg_loss, rel=1e-5)
    if settings == {"shuffle": False}:
        np.testing.assert_array_equal(history.per_row.epochs[0].rows, np.arange(250))


def test_values_belong_to_their_rows() -> None:
    """With a learning rate of 0 a row has the same loss in every epoch, wherever the epoch visits it."""
    x, y = (a[:100] for a in ws.datasets.digits())
    history = train(x, y, per_row=["loss"], optimizer=ws.SGD(lr=0.0), device="reference")
    by_row = [dict(zip(e.rows.tolist(), e.values["loss"], strict=True)) for e in history.per_row.epochs]
    assert by_row[0].keys() == by_row[1].keys()
    assert all(by_row[0][row] == pytest.approx(by_row[1][row], rel=1e-5) for row in by_row[0])


@pytest.mark.parametrize("settings", [{"batch_size": 16, "accumulate": 2}, {"batch_size": 32, "memory": "1MB"}])
def test_micro_batches_record_the_values_of_the_whole_batch(settings: dict[str, Any]) -> None:
    x, y = (a[:100] for a in ws.datasets.digits())
    recorded = {"per_row": ["loss", "gradient_norm"], "optimizer": ws.SGD(lr=0.1)}
    whole, divided = train(x, y, batch_size=32, **recorded), train(x, y, **settings, **recorded)
    for one, other in zip(whole.per_row.epochs, divided.per_row.epochs, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
        for name, values in one.values.items():
            np.testing.assert_allclose(other.values[name], values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ends", [{"epochs": 2}, {"epochs": 3, "callbacks": [ws.StepBudget(9)]}])
def test_a_resumed_run_has_the_rows_of_the_whole_run(ends: dict[str, Any], tmp_path: Path) -> None:
    """Resumed after an epoch, and in the middle of the third, which has 4 steps."""
    x, y = (a[:100] for a in ws.datasets.digits())
    settings: dict[str, Any] = {"per_row": ["loss", "gradient_norm"], "device": "reference", "batch_size": 25}
    whole = train(x, y, **{**settings, "epochs": 3})
    train(x, y, **{**settings, **ends}, checkpoint=tmp_path)
    resumed = train(x, y, **{**settings, "epochs": 3}, checkpoint=tmp_path, resume=True)
    assert [epoch.epoch for epoch in resumed.per_row.epochs] == [0, 1, 2]
    for one, other in zip(whole.per_row.epochs, resumed.per_row.epochs, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
        assert one.values.keys() == other.values.keys()
        for name, values in one.values.items():
            np.testing.assert_array_equal(other.values[name], values)
    assert resumed.suspects(5) == whole.suspects(5)


def test_rows_of_a_skipped_step_are_recorded() -> None:
    x, y = (a[:96] for a in ws.datasets.digits())
    x = x.copy()
    x[40] = -2.0

    class Logarithm(nn.Module):
        def forward(self, x: Any) -> Any:
            return ws.log(x + 1.0)

    model = nn.Sequential(Logarithm(), mlp())
    settings: dict[str, Any] = {"nonfinite": "skip", "shuffle": False, "device": "reference", "batch_size": 32}
    history = ws.fit(model, (x, y), loss="cross_entropy", epochs=2, per_row=["loss"], progress=False, **settings)
    for epoch in history.per_row.epochs:
        assert np.flatnonzero(~np.isfinite(epoch.values["loss"])).tolist() == [40]


def test_training_itself_is_unchanged() -> None:
    x, y = ws.datasets.digits()
    assert train(x, y)["loss"] == pytest.approx(train(x, y, per_row=["loss", "gradient_norm"])["loss"], rel=1e-6)


def test_data_without_row_numbers_and_runs_without_values_are_refused() -> None:
    x, y = ws.datasets.digits()
    with pytest.raises(ws.errors.UsageError, match="needs data whose rows have numbers"):
        ws.fit(mlp(), [(x[:32], y[:32])], loss="cross_entropy", per_row=["loss"], progress=False)
    with pytest.raises(ws.errors.UsageError, match="no values of rows were recorded"):
        train(x[:64], y[:64], device="reference").suspects(3)


def test_a_spike_names_its_step_and_the_rows_that_cause_it() -> None:
    x, y = ws.datasets.digits()
    x = x[:960].copy()
    x[700] *= 1000  # in step 21 of the first epoch
    spikes = ws.callbacks.LossSpikes(rows=2)
    train(x, y[:960], epochs=1, shuffle=False, per_row=["gradient_norm"], callbacks=[spikes], device="reference")
    (first, *_) = spikes.spikes
    assert (first.epoch, first.step, first.rows[0]) == (0, 21, 700)
    assert first.loss > 2 * first.expected


def test_a_steady_loss_has_no_spikes() -> None:
    x, y = ws.datasets.digits()
    spikes = ws.callbacks.LossSpikes()
    train(x[:960], y[:960], callbacks=[spikes], device="reference")
    assert spikes.spikes == []
