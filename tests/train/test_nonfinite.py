"""Losses that are not finite: a run ends with the step, the layer and what to do, through every way of training."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.errors import NonFiniteError, OptionError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = RNG.normal(size=(40, 2)).astype(np.float32)
HIGH = ws.SGD(lr=1e4)  # diverges within some steps


def mlp() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.ReLU(), ws.nn.Linear(4, 2))


class Log(ws.nn.Module):
    """The logarithm of what becomes negative in row 21."""

    def __init__(self) -> None:
        self.first, self.last = ws.nn.Linear(3, 4), ws.nn.Linear(4, 2)
        self.log = Logarithm()

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.last(self.log(self.first(x)))


class Logarithm(ws.nn.Module):
    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return ws.log(x)


def fit(model: ws.nn.Module | None = None, data: object = (X, Y), **options: Any) -> ws.TrainHistory:
    given = {"loss": "mse", "batch_size": 8, "seed": 0, "progress": False, "shuffle": False, **options}
    return ws.fit(model or mlp(), data, **given)


def losses_of(model: ws.nn.Module, **options: Any) -> list[float]:
    seen = ws.LossHistory()
    fit(model, callbacks=seen, nonfinite="ignore", **options)
    return seen.losses


def test_a_run_that_diverges_ends_and_says_why() -> None:
    """The step is the first whose loss is not finite, and the weights are put back to finite ones."""
    losses = losses_of(mlp(), optimizer=HIGH, epochs=4)
    first = next(i for i, loss in enumerate(losses) if not math.isfinite(loss))
    model = mlp()
    with pytest.raises(NonFiniteError) as caught:
        fit(model, optimizer=HIGH, epochs=4)
    text = str(caught.value)
    assert f"the loss of step {first % 5} of epoch {first // 5} (both counted from 0) is" in text
    overflow = (
        r"is inf: mul in the loss computed the first value that is not finite, inf at index \[\d, \d\] "
        r"\(\d+ of 16 elements\), from finite"
    )
    assert re.search(rf"{overflow} operands \(-?\S+e\+\d\d to \S+e\+\d\d\)", text)
    assert "Lower the learning rate (it is 1e+04), clip the gradients (clip_norm=1.0)" in text
    assert "nonfinite='skip' leaves such steps out" in text
    assert all(np.isfinite(v).all() for v in model.state_dict().values())


WEIGHTS = np.array([0.0, 1.0, 2.0], np.float32)
COUNTS_NOTHING = [{"class_weight": WEIGHTS}, {"class_weight": WEIGHTS, "label_smoothing": 0.1}, {"ignore_index": 0}]


@pytest.mark.parametrize("options", COUNTS_NOTHING, ids=["weights of 0", "smoothed", "ignored"])
def test_a_mean_over_rows_that_count_nothing_is_not_finite_as_in_torch(options: dict[str, Any]) -> None:
    """The second batch is all of a class that has no weight: 0/0, which is no reason to train on."""
    labels = np.repeat(np.array([1, 0, 2], np.int32), 8)
    names = {"class_weight": "weight"}
    theirs = {names.get(k, k): torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
    rows = [torch.nn.functional.cross_entropy(torch.zeros(8, 3), torch.tensor(labels[i : i + 8]).long(), **theirs)
            for i in (0, 8, 16)]  # fmt: skip
    assert [bool(torch.isfinite(r)) for r in rows] == [True, False, True]

    def loss(o: ws.Tensor, t: ws.Tensor) -> ws.Tensor:
        return ws.losses.cross_entropy(o, t, **options)

    model = ws.nn.Linear(3, 3)
    with pytest.raises(NonFiniteError, match=r"the loss of step 1 of epoch 0 \(both counted from 0\) is"):
        fit(model, (X[:24], labels), loss=loss)
    assert all(np.isfinite(v).all() for v in model.state_dict().values())
    found = fit(ws.nn.Linear(3, 3), (X[:24], labels), loss=loss, nonfinite="skip")
    assert math.isfinite(found["loss"][-1])


def test_ignoring_it_trains_on_as_before() -> None:
    assert math.isnan(fit(optimizer=HIGH, epochs=4, nonfinite="ignore")["loss"][-1])


def test_skipping_leaves_such_steps_out_and_counts_them(caplog: pytest.LogCaptureFixture) -> None:
    x = X.copy()
    x[17] = np.nan
    stream = [(x[i : i + 8], Y[i : i + 8]) for i in range(0, 40, 8)]
    model = mlp()
    history = fit(model, stream, epochs=2, nonfinite="skip")
    assert history["skipped_steps"] == [1.0, 1.0]
    assert all(math.isfinite(v) for v in history["loss"])
    assert all(np.isfinite(v).all() for v in model.state_dict().values())
    assert "epoch 1: 1 steps were skipped" in caplog.text


def negative_row() -> tuple[np.ndarray, ws.nn.Module]:
    """All of `first`'s outputs are positive but those of row 21."""
    model = Log()
    model.load_state_dict(
        {
            "first.weight": np.zeros((4, 3), np.float32) + np.float32(1.0),
            "first.bias": np.full(4, 20.0, np.float32),
            "last.weight": np.full((2, 4), 0.1, np.float32),
            "last.bias": np.zeros(2, np.float32),
        }
    )
    x = X.copy()
    x[21] = -100.0
    return x, model


WAYS = ["rows in memory", "a stream", "transformed", "accumulated"]


@pytest.mark.parametrize("way", WAYS)
def test_the_first_layer_is_named(way: str) -> None:
    x, model = negative_row()
    data: object = (x, Y)
    if way == "a stream":
        data = [(x[i : i + 8], Y[i : i + 8]) for i in range(0, 40, 8)]
    if way == "transformed":
        data = ws.DataLoader(x, Y, 8, shuffle=False, transform=lambda a, draw: a + 0.0)
    options = {"batch_size": 4, "accumulate": 2} if way == "accumulated" else {}
    with pytest.raises(
        NonFiniteError,
        match=r"step 2 of epoch 0 .*: log in layer 'log' computed the first value that is not finite, nan",
    ) as caught:
        fit(model, data, optimizer=ws.SGD(lr=1e-3), **options)
    assert "from finite operands (-280 to " in str(caught.value)
    assert re.search(r"\n  at \S+test_nonfinite\.py:\d+: return ws\.log\(x\)$", str(caught.value))
    after = model.state_dict()
    _, again = negative_row()
    fit(again, (x[:16], Y[:16]), optimizer=ws.SGD(lr=1e-3), **options)
    before = again.state_dict()
    for name, value in after.items():
        assert value.tobytes() == before[name].tobytes(), "the weights are those before the step"


def test_an_input_is_named_with_its_row() -> None:
    x = X.copy()
    x[19, 1] = np.inf
    stream = [(x[i : i + 8], Y[i : i + 8]) for i in range(0, 40, 8)]
    with pytest.raises(
        NonFiniteError, match=r"the input 'x' has values that are not finite, first in row 3 of the batch"
    ):
        fit(data=stream)


def test_a_large_model_says_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholestep.train.nonfinite.most_bytes", lambda: 0)
    with pytest.raises(
        NonFiniteError, match=r"by then '0\.weight', .* are not finite\. The weights are those after it"
    ):
        fit(optimizer=HIGH, epochs=4)


def test_a_step_that_cannot_be_made_again_is_told_all_the_same() -> None:
    """The rates of the callback are not those of the steps that are made again; data may be gone."""
    model = mlp()
    rates = ws.callbacks.LearningRateScheduler(lambda step: 1e-3 if step < 6 else 1e30, unit="step")
    with pytest.raises(NonFiniteError, match=r"The weights are restored to those before step \d of epoch \d") as caught:
        fit(model, optimizer=ws.SGD(lr=1e-3), epochs=4, callbacks=rates)
    assert "of epoch 1 (both counted from 0) is" in str(caught.value)
    assert all(np.isfinite(v).all() for v in model.state_dict().values())
    x = X.copy()
    x[17] = np.nan

    class Fleeting:
        """Data that breaks when it is read once more than training needs."""

        left = 3

        def __iter__(self) -> Iterator[Any]:
            self.left -= 1
            if self.left < 0:
                raise ConnectionError("gone")
            return iter([(x[i : i + 8], Y[i : i + 8]) for i in range(0, 40, 8)])

    with pytest.raises(NonFiniteError, match="the loss of step 2 of epoch 0"):
        fit(data=Fleeting())


def test_the_last_update_counts_too() -> None:
    """One step spoils the weights; no loss shows it."""
    model = mlp()
    with pytest.raises(
        NonFiniteError, match=r"after epoch 0 '0\.weight'.* not finite: the update before it, step 0 of"
    ):
        fit(model, (X[:8], Y[:8]), optimizer=ws.SGD(lr=1e39), epochs=1)


def test_gradients_are_named_too() -> None:
    """The root of 0 is 0, and its slope is not finite."""

    class Root(ws.nn.Module):
        def __init__(self) -> None:
            self.first, self.scale = ws.nn.Linear(3, 2), ws.nn.Parameter((2,), 0.0)

        def forward(self, x: ws.Tensor) -> ws.Tensor:
            return self.first(x) + ws.sqrt(self.scale * self.scale)

    with pytest.raises(
        NonFiniteError, match=r"step 1 of .*the update before it, step 0 of epoch 0, had gradients that .* 'scale'"
    ):
        fit(Root(), optimizer=ws.SGD(lr=1e-3))


# -- every way of training ---------------------------------------------------------------------------------------


def session(**options: Any) -> ws.Session:
    return ws.build_session(
        mlp(), inputs=ws.Spec(("batch", 3)), targets=ws.Spec(("batch", 2)), loss="mse", optimizer=HIGH, batch_size=8,
        **options,
    )  # fmt: skip


def test_trainers_and_loops_end_too(tmp_path: Path) -> None:
    loader = ws.DataLoader(X, Y, 8, shuffle=False)
    trainer = ws.Trainer(session(), callbacks=ws.ModelCheckpoint(tmp_path, "loss", every=1, last=9))
    with pytest.raises(NonFiniteError, match="saved as the last checkpoint: resume=True repeats the step"):
        trainer.train(loader, 4)
    assert trainer.history.stopped_by.startswith("NonFiniteError: the loss of step")
    assert trainer.history.epochs[-1].partial
    stored = ws.load_checkpoint(tmp_path)
    assert all(np.isfinite(a).all() for a in stored.arrays.values()), "nothing spoilt was saved"
    assert math.isnan(ws.Trainer(session(), ws.TrainConfig(nonfinite="ignore")).train(loader, 4)["loss"][-1])
    history = ws.Trainer(session(nonfinite="skip")).train(loader, 4)
    assert sum(history["skipped_steps"]) > 0
    with pytest.raises(NonFiniteError, match="No state was changed"):
        ws.Trainer(session(nonfinite="raise")).train(loader, 4)
    with pytest.raises(NonFiniteError, match="the loss of step"):
        ws.BasicTrainingLoop(mlp(), HIGH, loss="mse").fit((X, Y), epochs=4, batch_size=8, progress=False)


class Pause(ws.StepBudget):
    """A budget that a checkpoint does not remember."""

    def state_dict(self) -> dict[str, Any]:
        return {}


def test_a_resumed_run_ends_at_the_same_step(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError) as straight:
        fit(optimizer=ws.SGD(lr=30.0), epochs=40)
    keep = ws.ModelCheckpoint(tmp_path, "loss", every=1, last=1)
    fit(optimizer=ws.SGD(lr=30.0), epochs=40, callbacks=[Pause(3), keep])
    with pytest.raises(NonFiniteError) as resumed:
        fit(optimizer=ws.SGD(lr=30.0), epochs=40, resume=tmp_path)
    assert str(resumed.value).split(":")[0] == str(straight.value).split(":")[0]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(OptionError, match="nonfinite='stop': expected one of 'raise', 'skip', 'ignore'"):
        fit(nonfinite="stop")
    with pytest.raises(OptionError, match="this session was built without it"):
        ws.Trainer(session(), ws.TrainConfig(nonfinite="skip"))


def test_best_weights_are_restored_where_they_are_kept() -> None:
    model = mlp()
    with pytest.raises(NonFiniteError, match="the loss of step"):
        fit(model, optimizer=ws.SGD(lr=30.0), epochs=40, callbacks=ws.EarlyStopping("loss", restore_best=True))
    assert all(np.isfinite(v).all() for v in model.state_dict().values())


# -- more rows than the capacity ---------------------------------------------------------------------------------


def test_gradient_statistics_take_the_docstrings_batch() -> None:
    """64 rows in a default fit of 32: the gradients of the loss of all of them."""
    x, y = RNG.normal(size=(64, 3)).astype(np.float32), RNG.normal(size=(64, 2)).astype(np.float32)
    watch = ws.GradientStatistics({"x": x[:64], "labels": y[:64]}, quiet=True)
    model = mlp()
    ws.fit(model, (x, y), loss="mse", epochs=2, progress=False, callbacks=watch)
    assert len(watch.history) == 2
    wide = ws.build_session(
        model, inputs=ws.Spec(("batch", 3)), targets=ws.Spec(("batch", 2)), loss="mse", batch_size=64
    )
    expected = wide.gradient_stats(x=x, labels=y)
    for name, found in watch.history[-1].items():
        assert found.norm == pytest.approx(expected[name].norm, rel=1e-5)
