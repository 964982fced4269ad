"""Callbacks that raise, that stop inside an epoch, and in a loop of one's own: nothing of it is silent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import wholestep as ws

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def mlp() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.ReLU(), ws.nn.Linear(4, 2))


def fit(model: ws.nn.Module | None = None, **options: Any) -> ws.TrainHistory:
    given = {"loss": "cross_entropy", "batch_size": 8, "seed": 0, "progress": False, "validation": (X, Y), **options}
    return ws.fit(model or mlp(), (X, Y), **given)


class Pruned(Exception):  # noqa: N818
    """What a search raises to end a trial."""


EVENTS = ["on_train_begin", "on_epoch_begin", "on_step", "on_slice", "on_epoch_end", "on_epoch", "on_train_end"]


def raising(event: str, error: BaseException, *, tolerant: bool = False) -> ws.Callback:
    def fail(self: ws.Callback, *arguments: object) -> None:
        raise error

    return type("Raising", (ws.Callback,), {event: fail, "tolerant": tolerant})()


@pytest.mark.parametrize("error", [Pruned("not good"), StopIteration("enough"), AssertionError("checked")])
@pytest.mark.parametrize("event", EVENTS)
def test_an_exception_ends_the_run_and_reaches_the_caller(event: str, error: Exception) -> None:
    ended = []

    class Spy(ws.Callback):
        def on_exception(self, error: BaseException) -> None:
            ended.append(error)

        def on_train_end(self) -> None:
            ended.append("end")

    with pytest.raises(type(error), match=str(error)):
        fit(epochs=3, callbacks=[raising(event, error), Spy()])
    assert ended == (["end"] if event == "on_train_end" else [error, "end"])


def test_a_metric_under_any_name_says_what_is_better_of_it() -> None:
    stopping, saving = ws.EarlyStopping("val_quality"), ws.EarlyStopping("val_quality", mode="min")
    history = fit(epochs=2, metrics=[ws.metrics.Recall(name="quality")], callbacks=[stopping, saving])
    assert (stopping.mode, saving.mode) == ("max", "min")
    assert stopping.best.value == max(e.logs["val_quality"] for e in history.epochs)


def test_plateaus_and_checkpoints_go_by_the_metric_too(tmp_path: Path) -> None:
    """ "cost" falls by its name; this one is a recall, and rises."""
    plateau = ws.schedules.ReduceOnPlateau(0.5, patience=0, factor=0.5, monitor="val_cost")
    metrics = [ws.metrics.Recall(name="cost")]
    saving = ws.ModelCheckpoint(tmp_path, "val_cost", last=9, best=1)
    history = fit(epochs=4, metrics=metrics, schedule=plateau, optimizer=ws.SGD(lr=0.5), callbacks=saving)
    values, best, rate, rates = history["val_cost"], -1.0, 0.5, []
    for value in values:
        rates.append(rate)
        rate, best = (rate, value) if value > best * 1.0001 else (rate / 2, best)
    assert history["lr"] == pytest.approx(rates)
    assert ws.load_checkpoint(tmp_path, best="val_cost").logs["val_cost"] == max(values)
    assert ws.load_checkpoint(tmp_path, best="val_cost", mode="min").logs["val_cost"] == min(values)
    strange = ws.schedules.ReduceOnPlateau(0.5, monitor="loss", mode="max")
    assert (strange.way, ws.schedules.ReduceOnPlateau(0.5).way) == ("max", "min")
    with pytest.raises(ws.errors.UsageError, match="ReduceOnPlateau monitors 'oddity', whose name does not say"):
        _ = ws.schedules.ReduceOnPlateau(0.5, monitor="oddity").way


def test_trainers_and_loops_hand_it_on_too() -> None:
    session = ws.build_session(
        mlp(), inputs=ws.Spec(("batch", 3)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy", batch_size=8
    )
    with pytest.raises(Pruned, match="not good"):
        ws.Trainer(session, callbacks=raising("on_step", Pruned("not good"))).train(ws.DataLoader(X, Y, 8), 2)
    with pytest.raises(Pruned, match="not good"):
        ws.BasicTrainingLoop(mlp(), callbacks=[raising("on_epoch_end", Pruned("not good"))]).fit(
            (X, Y), epochs=3, progress=False
        )


def test_who_is_tolerant_is_left_out_once_training_runs(caplog: pytest.LogCaptureFixture) -> None:
    assert len(fit(epochs=3, callbacks=raising("on_epoch_end", OSError("disk full"), tolerant=True))) == 3
    assert "the callback Raising failed in on_epoch_end and is left out from here on" in caplog.text
    with pytest.raises(OSError, match="no such folder"):
        fit(callbacks=raising("on_train_begin", OSError("no such folder"), tolerant=True))


@pytest.mark.parametrize("event", ["on_step", "on_epoch_end"])
def test_what_was_done_is_saved_first_and_resumes_to_the_same_bits(event: str, tmp_path: Path) -> None:
    class Fails(ws.Callback):
        every = 1
        calls = 0

        def _count(self, *_: object) -> None:
            self.calls += 1
            if self.calls == 2:
                raise Pruned("later")

    setattr(Fails, event, Fails._count)
    straight, resumed = mlp(), mlp()
    whole = fit(straight, epochs=3)
    with pytest.raises(Pruned, match="later"):
        fit(resumed, epochs=3, callbacks=Fails(), checkpoint=tmp_path)
    stored = ws.load_checkpoint(tmp_path)
    assert (stored.position.epoch, stored.position.step) == ((0, 2) if event == "on_step" else (2, 0))
    again = mlp()
    assert fit(again, epochs=3, resume=tmp_path).rows() == whole.rows()
    for name, value in straight.state_dict().items():
        assert again.state_dict()[name].tobytes() == value.tobytes()


# -- epochs that were not finished -------------------------------------------------------------------------------


def test_a_partial_epoch_is_in_the_history() -> None:
    seen = ws.LossHistory()
    history = fit(epochs=9, callbacks=[seen, ws.StepBudget(6)])
    assert [(e.epoch, e.steps, e.partial) for e in history.epochs] == [(0, 4, False), (1, 2, True)]
    assert history.final_loss() == pytest.approx(np.mean(seen.losses[4:]))
    assert "1 (part)" in str(history)
    assert ws.TrainHistory.from_json(history.to_json()).epochs == history.epochs
    first = fit(callbacks=ws.StepBudget(2), epochs=2)
    assert first.final_loss() is not None
    assert [e.partial for e in first.epochs] == [True]
    assert fit(callbacks=ws.TimeBudget(1e-9), epochs=2).final_loss() is not None


# -- what is better ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("monitor", "mode"),
    [("val_accuracy", "max"), ("val_acc", "max"), ("f1", "max"), ("val_roc_auc", "max"), ("val_r2", "max"),
     ("val_loss", "min"), ("loss", "min"), ("val_log_loss", "min"), ("error_rate", "min"), ("mse", "min"),
     ("val_perplexity", "min"), ("top_k_accuracy", "max"), ("average_precision", "max")],
)  # fmt: skip
def test_the_mode_follows_from_the_name(monitor: str, mode: str) -> None:
    assert ws.EarlyStopping(monitor).mode == ws.ModelCheckpoint("runs", monitor).mode == mode
    assert ws.EarlyStopping(monitor, mode="min").mode == "min"


def test_a_name_that_does_not_tell_is_asked_about() -> None:
    class Own(ws.metrics.Accuracy):
        kind, higher_is_better = "own", None

    renamed = [Own(name="rightness")]
    for callback in (ws.EarlyStopping("val_rightness"), ws.ModelCheckpoint("never", "val_rightness")):
        with pytest.raises(ws.errors.UsageError, match=r"monitors 'val_rightness', .* Give mode='min' or mode='max'"):
            fit(metrics=renamed, callbacks=callback)
        with pytest.raises(ws.errors.UnknownNameError, match="monitors 'val_rightness', which this run does not have"):
            fit(callbacks=callback)
    assert ws.ModelCheckpoint("runs", "temperature", "max").mode == "max"


def test_the_mode_is_used(tmp_path: Path) -> None:
    values = iter([0.5, 0.9, 0.7])

    class Says(ws.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
            logs["val_accuracy"] = next(values)

    best = ws.ModelCheckpoint(tmp_path, "val_accuracy")
    stopping = ws.EarlyStopping("val_accuracy")
    fit(epochs=3, metrics=["accuracy"], callbacks=[Says(), best, stopping])
    assert stopping.best.value == 0.9
    assert best._values == [0.9]


def test_of_checkpoints_too(tmp_path: Path) -> None:
    metrics = [ws.metrics.Accuracy(), ws.metrics.Accuracy(name="rightness")]
    fit(epochs=3, metrics=metrics, callbacks=ws.ModelCheckpoint(tmp_path, "val_accuracy", last=3))
    every = [ws.load_checkpoint(p).logs["val_accuracy"] for p in sorted(tmp_path.glob("step-*"))]
    assert ws.load_checkpoint(tmp_path, best="val_accuracy").logs["val_accuracy"] == max(every)
    assert ws.load_checkpoint(tmp_path, best="val_rightness").logs["val_accuracy"] == max(every)
    with pytest.raises(ws.errors.UsageError, match="monitors 'lr', whose name does not say"):
        ws.load_checkpoint(tmp_path, best="lr")
    assert ws.load_checkpoint(tmp_path, best="val_rightness", mode="max").logs["val_rightness"] == max(every)


# -- a loop of one's own -----------------------------------------------------------------------------------------


def test_every_callback_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    """Pattern 3 of the third seed: a list of callbacks between hand-written epochs."""
    model = mlp()
    session = ws.build_session(
        model, inputs=ws.Spec(("batch", 3)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy", batch_size=32
    )
    callbacks = ws.CallbackList(
        [
            ws.EarlyStopping("val_loss", patience=1, restore_best=True),
            ws.ModelCheckpoint(tmp_path / "runs"),
            ws.CSVLogger(tmp_path / "log.csv"),
            ws.TensorBoardLogger(tmp_path / "tb"),
        ],
        session=session,
    )
    best = None
    for epoch, value in enumerate([1.0, 0.5, 0.7, 0.6]):
        callbacks.on_epoch_begin(epoch)
        session.step(x=X, labels=Y)
        best = model.state_dict() if epoch == 1 else best
        callbacks.on_epoch_end(epoch, {"val_loss": value})
        if callbacks.stopped_by:
            break
    callbacks.on_train_end()
    assert epoch == 2
    assert "val_loss has not improved for 1 epochs" in callbacks.stopped_by
    assert ws.load_checkpoint(tmp_path / "runs", best="val_loss").logs == {"val_loss": 0.5}
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
    found = EventAccumulator(str(tmp_path / "tb")).Reload().Scalars("epoch/val_loss")
    assert [(e.step, e.value) for e in found] == [(0, 1.0), (1, 0.5), (2, pytest.approx(0.7))]
    assert best is not None
    np.testing.assert_array_equal(model.state_dict()["0.weight"], best["0.weight"])


def test_who_needs_a_session_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholestep.session.session.alive", ())
    for callback in (ws.ModelCheckpoint(tmp_path), ws.EarlyStopping(restore_best=True), ws.GradientStatistics({})):
        with pytest.raises(ws.errors.UsageError, match=r"has not given one: ws.CallbackList\(\[...\], session=sess"):
            ws.CallbackList([callback]).on_epoch_end(0, {"val_loss": 1.0})


def test_json_has_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    callbacks = ws.CallbackList([ws.JSONLinesLogger(path)])
    callbacks.on_epoch_end(0, {"loss": float("nan"), "f1": [1.0, float("inf")]})
    record = json.loads(path.read_text(), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert record == {"epoch": 0, "loss": None, "f1": [1.0, None]}


def test_a_checkpoint_takes_keras_word_for_its_folder(tmp_path: Path) -> None:
    assert ws.ModelCheckpoint(filepath=tmp_path / "best").folder == tmp_path / "best"
    with pytest.raises(ws.errors.UsageError, match="takes one place to write to"):
        ws.ModelCheckpoint()
    with pytest.raises(ws.errors.UsageError, match="takes one place to write to"):
        ws.ModelCheckpoint(tmp_path, filepath=tmp_path)


# -- every one -----------------------------------------------------------------------------------------------------


def test_every_callback_has_a_test() -> None:
    """By its name in the tests of runs: `fit` or a trainer has been given it."""
    exported = {name: getattr(ws.callbacks, name) for name in ws.callbacks.__all__}
    ours = {name for name, cls in exported.items() if isinstance(cls, type) and issubclass(cls, ws.Callback)}
    written = "\n".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    bases = {"Callback", "MetricCallback", "Tracker"}
    assert {name for name in ours if not re.search(rf"\b{name}\(", written)} == bases
