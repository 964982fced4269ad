"""What loggers write is what TensorBoard's own reader, csv and json read; a killed and resumed run has no row twice."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

import wholestep as ws

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
STEPS = 4  # of an epoch

Scalars = dict[str, list[tuple[int, float]]]


def scalars(folder: Path) -> Scalars:
    """Every scalar of a folder, as TensorBoard shows it."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


class Killed(BaseException):
    """Ends a run as a signal would: nothing after it runs."""


class KillAt(ws.Callback):
    every = 1

    def __init__(self, step: int) -> None:
        self.left = step

    def on_step(self, metrics: ws.StepMetrics) -> None:
        self.left -= 1
        if not self.left:
            raise Killed


def loggers(folder: Path) -> list[ws.Callback]:
    return [
        ws.TensorBoardLogger(folder / "tb"),
        ws.CSVLogger(folder / "log.csv"),
        ws.JSONLinesLogger(folder / "log.jsonl", steps=True),
    ]


def fit(folder: Path, *more: ws.Callback, resume: Path | None = None, epochs: int = 3) -> ws.TrainHistory:
    model = ws.nn.Linear(3, 2)
    keep = ws.ModelCheckpoint(folder / "run", "loss", last=9, every=3)
    given = {"loss": "cross_entropy", "metrics": ["accuracy"], "epochs": epochs, "batch_size": 8, "progress": False}
    callbacks = [*loggers(folder), keep, *more]
    return ws.fit(model, (X, Y), **given, seed=0, callbacks=callbacks, resume=resume)


def test_tensorboard_reads_every_scalar(tmp_path: Path) -> None:
    losses = ws.LossHistory()
    history = fit(tmp_path, losses)
    found = scalars(tmp_path / "tb")
    assert set(found) == {"step/loss", "epoch/loss", "epoch/accuracy", "epoch/lr"}
    assert found["step/loss"] == [(i, pytest.approx(v, rel=1e-6)) for i, v in enumerate(losses.losses)]
    for name in ("loss", "accuracy"):
        expected = [(STEPS * (i + 1) - 1, pytest.approx(v, rel=1e-6)) for i, v in enumerate(history[name])]
        assert found[f"epoch/{name}"] == expected


def hyper_parameters(folder: Path) -> dict[str, Any]:
    """What a folder's run was started with, as TensorBoard's own plugin reads it."""
    reader = EventAccumulator(str(folder)).Reload()
    content = reader.PluginTagToContent(metadata.PLUGIN_NAME)[metadata.SESSION_START_INFO_TAG]
    start = metadata.parse_session_start_info_plugin_data(content)
    assert start.start_time_secs > 1e9
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}


def test_tensorboard_reads_the_hyper_parameters(tmp_path: Path) -> None:
    logger = ws.TensorBoardLogger(tmp_path)
    given = {"loss": "mse", "epochs": 2, "batch_size": 8, "progress": False, "device": "reference", "shuffle": False}
    experiment = ws.Experiment(model=ws.nn.Linear(3, 1), data=(X, X[:, :1]), callbacks=logger, **given)
    experiment.fit(
        optimizer=ws.AdamW(lr=0.125),
        config={"settings": {"größe": 3}, "sizes": [1, 2], "none": None, "script": "\udcff.py"},
    )
    found = hyper_parameters(tmp_path)
    assert found["optimizer.lr"] == 0.125
    assert (found["loss"], found["batch_size"], found["shuffle"]) == ("mse", 8, False)
    assert (found["settings.größe"], found["sizes"], found["none"]) == (3, "[1, 2]", "null")
    assert found["script"] == "?.py"
    assert set(scalars(tmp_path)) == {"step/loss", "epoch/loss", "epoch/lr"}  # as before


@pytest.mark.parametrize("checkpoint", ["run", "run/step-00000003"])
def test_after_a_kill_nothing_stands_twice(tmp_path: Path, checkpoint: str) -> None:
    """From the newest checkpoint, behind which two steps were logged, and from one in the first epoch."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fit(whole)
    with pytest.raises(Killed):
        fit(cut, KillAt(2 * STEPS + 2))
    assert ws.load_checkpoint(cut / "run").step == 2 * STEPS
    fit(cut, resume=cut / checkpoint)
    assert scalars(cut / "tb") == scalars(whole / "tb")
    for name in ("log.csv", "log.jsonl"):
        assert (cut / name).read_text() == (whole / name).read_text()


def test_a_new_run_in_an_old_folder_begins_anew(tmp_path: Path) -> None:
    fit(tmp_path, epochs=2)
    fit(tmp_path, epochs=1)
    assert [step for step, _ in scalars(tmp_path / "tb")["step/loss"]] == list(range(STEPS))
    assert len(list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))) == 1
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(lines) == STEPS + 1


def test_a_history_is_drawn_into_a_file(tmp_path: Path) -> None:
    history = ws.History([ws.EpochStats(i, 1 / (i + 1), 4, {"loss": 1 / (i + 1), "val_loss": 1.0}) for i in range(3)])
    assert history.plot(tmp_path / "run.png") == str(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "run.png").stat().st_size > 5000
    assert history.plot(names=["val_loss"]).startswith("val_loss  ")
    with pytest.raises(KeyError, match="the history has no 'val_accuracy'; it has: loss, val_loss"):
        history.plot(tmp_path / "other.png", names=["val_acc"])


def test_curves_of_few_epochs_are_one_line_each() -> None:
    def history(epochs: int) -> ws.History:
        logs = [{"loss": 1 / (i + 1), "val_loss": float("nan") if i == 1 else 2.0} for i in range(epochs)]
        return ws.History([ws.EpochStats(i, each["loss"], 4, each) for i, each in enumerate(logs)])

    assert history(3).plot().splitlines() == ["loss      █▃▁  1  0.5  0.3333", "val_loss  ▁?▁  2  nan  2"]
    assert history(1).plot(names=["loss"]) == "loss  ▁  1"
    assert len(history(10).plot().splitlines()) == 2
    many = history(30).plot(names=["loss"]).splitlines()
    assert (many[0], len(many)) == ("loss", 11)
    assert "".join(many).count("•") == 30


# -- metrics that are no single number ---------------------------------------------------------------------------------


def test_matrices_and_numbers_of_each_class_are_in_the_history_and_in_every_log(tmp_path: Path) -> None:
    model = ws.nn.Linear(3, 2)
    history = ws.fit(
        model,
        (X, Y),
        validation=(X[:20], Y[:20]),
        loss="cross_entropy",
        metrics=["confusion_matrix", ws.metrics.F1(average=None)],
        epochs=2,
        batch_size=8,
        callbacks=[*loggers(tmp_path), ws.ModelCheckpoint(tmp_path / "run", "val_loss")],
        progress=False,
    )
    predicted = model.predict(X[:20]).argmax(1)
    matrix = [[int(((Y[:20] == t) & (predicted == p)).sum()) for p in range(2)] for t in range(2)]
    assert history["val_confusion_matrix"][-1].tolist() == matrix
    assert [m.sum() for m in history["confusion_matrix"]] == [32, 32]
    each = [2 * matrix[c][c] / (sum(matrix[c]) + matrix[0][c] + matrix[1][c]) for c in range(2)]
    np.testing.assert_allclose(history.last["val_f1"], each)
    assert history.scalars == ["loss", "val_loss", "lr"]
    assert "confusion" not in str(history) + history.plot()
    assert ws.History.from_json(history.to_json())["val_confusion_matrix"][-1].tolist() == matrix

    history.to_csv(tmp_path / "history.csv")
    for name in ("log.csv", "history.csv"):
        last = list(csv.DictReader((tmp_path / name).read_text().splitlines()))[-1]
        assert json.loads(last["val_confusion_matrix"]) == matrix
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["val_confusion_matrix"] == matrix
    found = scalars(tmp_path / "tb")
    assert found["epoch/val_confusion_matrix/0/1"][-1] == (2 * STEPS - 1, matrix[0][1])
    assert found["epoch/val_f1/1"][-1] == (2 * STEPS - 1, pytest.approx(each[1]))
    assert ws.load_checkpoint(tmp_path / "run").history["val_confusion_matrix"][-1].tolist() == matrix


def test_what_is_no_single_number_is_neither_watched_nor_drawn(tmp_path: Path) -> None:
    history = ws.History([ws.EpochStats(0, 0.5, 4, {"loss": 0.5, "f1": [0.25, 0.75]})])
    with pytest.raises(ws.errors.UsageError, match=r"'f1' is an array in every epoch and not a curve"):
        history.plot(names=["f1"])
    with pytest.raises(
        ws.errors.UsageError, match=r"EarlyStopping monitors 'f1', which is not one number but 2 of them"
    ):
        ws.EarlyStopping("f1", mode="max").on_epoch_end(0, {"f1": [0.25, 0.75]})


def test_the_environment_of_a_run_is_a_text(tmp_path: Path) -> None:
    fit(tmp_path)
    reader = EventAccumulator(str(tmp_path / "tb"), size_guidance={"tensors": 0}).Reload()
    assert reader.summary_metadata["run"].plugin_data.plugin_name == "text"
    (stored,) = reader.Tensors("run")
    (text,) = stored.tensor_proto.string_val
    lines = dict(line.strip("| ").split(" | ") for line in text.decode().splitlines()[2:])
    assert lines["environment.wholestep"] == ws.__version__
    assert lines["identity.data.rows"] == str(len(X))
