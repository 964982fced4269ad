"""`ws.data.Hard`, `Importance` and `SelfPaced`: rows drawn by their own losses and gradient norms, resumed exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep import nn
from wholestep.data.row_samplers import RowSampler

X, Y = (a[:300] for a in ws.datasets.digits())
SAMPLERS: dict[str, Callable[[], RowSampler]] = {
    "hard": ws.data.Hard,
    "hard by loss, fewer draws": lambda: ws.data.Hard(by="loss", floor=0.5, draws=200),
    "importance": ws.data.Importance,
    "self-paced": lambda: ws.data.SelfPaced(0.3, epochs=3),
}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def train(sampler: Any, data: Any = (X, Y), **settings: Any) -> tuple[nn.Module, ws.TrainHistory]:
    model = mlp()
    given = {"epochs": 4, "loss": "cross_entropy", "optimizer": ws.Adam(lr=1e-2), "seed": 1, "device": "reference"}
    return model, ws.fit(model, data, **{**given, "sampler": sampler, "progress": False, **settings})


def orders(history: ws.TrainHistory) -> list[np.ndarray]:
    return [epoch.rows for epoch in history.per_row.epochs]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_run_has_the_same_rows_again_with_arrays_and_with_a_loader(kind: str) -> None:
    sampler = SAMPLERS[kind]()
    model, history = train(sampler)
    loader = ws.DataLoader((X, Y), batch_size=32, sampler=sampler, seed=1, prefetch=2)
    other, again = train(None, loader, per_row=["loss"])
    assert len(history) == 4
    for one, two in zip(orders(history), orders(again), strict=True):
        np.testing.assert_array_equal(one, two)
        assert len(one) == (200 if "fewer" in kind else 300)
    first = orders(history)[0]
    assert len(set(first.tolist())) == len(first)  # the first epoch visits every row once
    assert {n: a.tobytes() for n, a in model.state_dict().items()} == {
        n: a.tobytes() for n, a in other.state_dict().items()
    }
    assert sampler.scores is None  # the sampler that was given is unchanged


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("stop", [20, 24])  # at the end of the second epoch for 10 steps in each, and inside the third
def test_a_resumed_run_draws_the_rows_of_an_uninterrupted_one(kind: str, stop: int, tmp_path: Path) -> None:
    whole, history = train(SAMPLERS[kind]())
    limit = ws.callbacks.StepBudget(stop)
    train(SAMPLERS[kind](), callbacks=[limit, ws.ModelCheckpoint(tmp_path, "loss", every=2)])
    model, rest = train(SAMPLERS[kind](), resume=tmp_path)
    for name, array in whole.state_dict().items():
        np.testing.assert_array_equal(model.state_dict()[name], array)
    np.testing.assert_array_equal(orders(rest)[-1], orders(history)[-1])
    assert rest["loss"] == history["loss"]


def test_hard_rows_are_drawn_in_proportion_to_their_values() -> None:
    sampler = ws.data.Hard(floor=0.25, draws=200_000)
    values = np.array([0.0, 1.0, 3.0, 4.0])
    sampler.record(np.arange(4), values, 4)
    drawn = np.bincount(sampler.rows(0, 1, 4), minlength=4) / 200_000
    np.testing.assert_allclose(drawn, (values / 2.0 + 0.25) / (4 * 1.25), atol=5e-3)
    sampler.record(np.array([0, 0, 1]), np.array([6.0, 8.0, np.nan]), 4)  # other rows keep what they had
    assert sampler.scores is not None
    np.testing.assert_array_equal(sampler.scores, [7.0, 1.0, 3.0, 4.0])


def test_hard_rows_of_a_run_are_those_with_large_gradients() -> None:
    wrong = Y.copy()
    wrong[::30] = (wrong[::30] + 1) % 10
    _, history = train(ws.data.Hard(), (X, wrong), epochs=10)
    late = np.bincount(np.concatenate(orders(history)[5:]), minlength=300)
    assert late[::30].mean() > 2 * late.mean()


def test_importance_estimates_the_gradient_of_all_rows() -> None:
    """Σ w g over the draws has the expectation Σ g over the rows, whatever the frequencies."""
    sampler = ws.data.Importance(draws=400_000)
    sampler.record(np.arange(4), np.array([0.1, 1.0, 2.0, 9.0]), 4)
    weights, rows = sampler.weights(4), sampler.rows(0, 1, 4)
    assert weights is not None
    totals = np.bincount(rows, weights[rows], minlength=4) / 100_000
    np.testing.assert_allclose(totals, 1.0, atol=0.03)


def test_importance_reads_the_norms_of_the_rows_and_not_of_their_weights() -> None:
    """With a learning rate of 0 a row has one gradient norm: weights of the sampler must not change it."""
    still = ws.SGD(lr=0.0)
    _, uniform = train(None, optimizer=still, per_row=["gradient_norm"], epochs=1)
    seen: list[np.ndarray] = []

    class Watch(ws.Callback):
        def on_epoch_end(self, epoch: int, logs: Any) -> None:
            assert self.run is not None
            seen.append(self.run.loader.sampler.scores)

    weights = np.linspace(0.5, 2.0, 300).astype("f4")
    for settings in ({"batch_size": 300}, {"batch_size": 32, "accumulate": 3}):
        train(ws.data.Importance(), optimizer=still, callbacks=[Watch()], epochs=3, **settings)
    expected = uniform.per_row.mean("gradient_norm")
    assert len(seen) == 6
    for scores in seen:
        np.testing.assert_allclose(scores, expected, rtol=1e-4)
    seen.clear()
    train(ws.data.Importance(), (X, Y, weights), optimizer=still, callbacks=[Watch()], batch_size=300, epochs=2)
    np.testing.assert_allclose(seen[0] / weights, seen[0][0] / weights[0] * expected / expected[0], rtol=1e-4)
    np.testing.assert_allclose(seen[1] / seen[0], (seen[1] / seen[0])[0], rtol=1e-4)


def test_importance_measures_validation_rows_as_usual() -> None:
    model, history = train(ws.data.Importance(), validation=(X[:50], Y[:50]), metrics=["accuracy"])
    measured = model.evaluate(X[:50], Y[:50], loss="cross_entropy", metrics=["accuracy"], device="reference")
    assert history["val_loss"][-1] == pytest.approx(measured["loss"], rel=1e-5)
    assert history["val_accuracy"][-1] == measured["accuracy"]


def test_the_pace_goes_from_easy_rows_to_all() -> None:
    sampler = ws.data.SelfPaced(0.25, epochs=3)
    sampler.record(np.arange(8), np.arange(8.0)[::-1], 8)
    assert [len(set(sampler.rows(0, epoch, 8).tolist())) for epoch in (0, 1, 2, 3, 9)] == [2, 4, 6, 8, 8]
    assert set(sampler.rows(0, 0, 8).tolist()) == {6, 7}  # the smallest losses
    assert all(len(sampler.rows(0, epoch, 8)) == 8 for epoch in range(4))


def test_other_samplers_work_by_name_of_the_argument() -> None:
    _, history = train(ws.data.Balanced(Y), per_row=["loss"], epochs=1)
    counts = np.bincount(Y[orders(history)[0]], minlength=10)
    assert counts.min() > 15


@pytest.mark.parametrize(
    ("call", "error", "pattern"),
    [
        (lambda: ws.data.Hard(by="accuracy"), ws.errors.OptionError, "by='accuracy': expected 'loss' or"),
        (lambda: ws.data.Hard(floor=0), ws.errors.OptionError, "floor=0: expected a number above 0"),
        (lambda: ws.data.Hard(draws=0), ws.errors.OptionError, "draws=0: expected a number of rows per epoch"),
        (lambda: ws.data.SelfPaced(1.5), ws.errors.OptionError, "start=1.5: expected a share of the rows"),
        (lambda: ws.data.SelfPaced(epochs=0), ws.errors.OptionError, "epochs=0: expected an integer"),
        (
            lambda: train(ws.data.Hard(), ws.DataLoader(X, Y)),
            ws.errors.UsageError,
            "give it to the loader",
        ),
        (
            lambda: train(ws.data.Hard(), privacy=ws.Privacy(epsilon=3, delta=1e-3, clip=1.0)),
            ws.errors.UsageError,
            "privacy= draws every batch from all rows",
        ),
    ],
)
def test_wrong_use(call: Callable[[], Any], error: type[Exception], pattern: str) -> None:
    with pytest.raises(error, match=pattern):
        call()


def test_a_checkpoint_of_other_data_is_refused() -> None:
    sampler = ws.data.Hard()
    sampler.record(np.arange(4), np.ones(4), 4)
    with pytest.raises(ws.errors.InputError, match="the data has 5 rows; received the values of 4 rows"):
        sampler.rows(0, 1, 5)


def test_a_loader_without_a_run_that_records_values_is_refused() -> None:
    session = ws.build_session(
        mlp(), inputs=ws.Spec(("batch", 64)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy",
        batch_size=32, device="reference",
    )  # fmt: skip
    with pytest.raises(ws.errors.UsageError, match=r"Hard reads the gradient_norm of rows, .* train with ws.fit"):
        ws.Trainer(session).train(ws.DataLoader(X, Y, sampler=ws.data.Hard()), 1)


@pytest.mark.parametrize("step", [5, 23, 30])
def test_a_replayed_step_has_the_rows_that_the_run_drew(step: int, tmp_path: Path) -> None:
    _, history = train(ws.data.Hard(), checkpoint=tmp_path)
    experiment = ws.Experiment(
        model=mlp(), data=(X, Y), sampler=ws.data.Hard(), epochs=4, loss="cross_entropy", optimizer=ws.Adam(lr=1e-2),
        seed=1, device="reference", progress=False,
    )  # fmt: skip
    again = ws.Replay(experiment, tmp_path, step)
    epoch, first = divmod(step, 10)
    np.testing.assert_array_equal(again.rows, orders(history)[epoch][32 * first : 32 * (first + 1)])
    np.testing.assert_array_equal(again.inputs["x"], X[again.rows])
