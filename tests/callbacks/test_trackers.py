"""Trackers: the records they receive, read by the trackers' own readers or by fakes; failures do not stop a run."""

from __future__ import annotations

import logging
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.callbacks.trackers import Tracker
from wholestep.errors import OptionError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def fit(tracker: ws.Callback, *more: ws.Callback, epochs: int = 3, **given: Any) -> ws.TrainHistory:
    return ws.fit(
        ws.nn.Linear(3, 2), (X, Y), validation=0.25, loss="cross_entropy", metrics=["accuracy"], epochs=epochs,
        optimizer=ws.SGD(lr=0.1), batch_size=8, device="reference", progress=False, callbacks=[tracker, *more], seed=0,
        **given,
    )  # fmt: skip


class FakeRun:
    """A run of wandb and trackio, whose interfaces agree in what is used."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments, self.records, self.ended = arguments, [], []
        self.id = arguments.get("id") or "run-1"
        self.name = arguments.get("name") or "run-1"

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.records.append((step, numbers))

    def finish(self, **ending: Any) -> None:
        self.ended.append(ending)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    """wandb and trackio as far as they are used; the runs that were begun."""
    runs: list[FakeRun] = []
    for name in ("wandb", "trackio"):
        module = types.ModuleType(name)
        module.init = lambda **arguments: runs.append(FakeRun(**arguments)) or runs[-1]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    return runs


@pytest.mark.parametrize("kind", [ws.callbacks.WandbLogger, ws.callbacks.TrackioLogger])
def test_numbers_and_facts_of_a_run(kind: type[Tracker], fake: list[FakeRun]) -> None:
    tracker = kind("digits", "first")
    history = fit(tracker)
    (run,) = fake
    assert run.arguments["project"] == "digits"
    assert run.arguments["name"] == "first"
    config = run.arguments["config"]
    assert config["optimizer.lr"] == 0.1
    assert config["environment.wholestep"] == ws.__version__
    assert len(config["identity.plan"]) > 60  # its digest
    assert config["identity.data.rows"] == 24
    assert [step for step, _ in run.records] == [1, 2, 3]
    for name in ("loss", "val_loss", "accuracy", "lr"):
        assert [numbers[name] for _, numbers in run.records] == history[name]
    assert len(run.ended) == 1
    assert (tracker.sent, tracker.dropped, tracker.failure) == (3, 0, None)


def test_a_resumed_run_continues_its_run(fake: list[FakeRun], tmp_path: Path) -> None:
    fit(ws.callbacks.WandbLogger("digits", mode="offline"), epochs=2, checkpoint=tmp_path)
    fit(ws.callbacks.WandbLogger("digits", mode="offline"), epochs=4, checkpoint=tmp_path, resume=True)
    first, second = fake
    assert first.arguments["mode"] == "offline"
    assert (first.arguments["id"], second.arguments["id"]) == (None, first.id)
    assert [step for run in fake for step, _ in run.records] == [1, 2, 3, 4]


class Stop(ws.Callback):
    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        raise ZeroDivisionError


def test_an_error_of_the_run_ends_it_as_failed(fake: list[FakeRun]) -> None:
    with pytest.raises(ZeroDivisionError):
        fit(ws.callbacks.WandbLogger("digits"), Stop())
    assert fake[0].ended == [{"exit_code": 1}]


@pytest.mark.parametrize("where", ["start", "send", "finish", "import"])
def test_a_tracker_that_fails_changes_nothing(
    where: str, fake: list[FakeRun], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of any kind is one warning; the numbers of the run are those without a tracker."""
    plain = fit(ws.LossHistory())

    def fail(*arguments: object) -> None:
        raise SystemExit("no network")

    tracker = ws.callbacks.WandbLogger("digits")
    if where == "import":
        monkeypatch.setitem(sys.modules, "wandb", None)
    else:
        monkeypatch.setattr(tracker, where, fail)
    with caplog.at_level(logging.WARNING, "wholestep"):
        assert fit(tracker) == plain
    assert [record.getMessage() for record in caplog.records if "WandbLogger failed" in record.getMessage()] != []
    assert len([record for record in caplog.records if "WandbLogger" in record.getMessage()]) == 1
    assert tracker.failure is not None
    assert (tracker.sent, tracker.dropped) == ((3, 0) if where == "finish" else (0, 3))


def test_a_tracker_that_hangs_delays_no_step(monkeypatch: pytest.MonkeyPatch, fake: list[FakeRun]) -> None:
    released = threading.Event()
    tracker = ws.callbacks.WandbLogger("digits", timeout=0.2)
    monkeypatch.setattr(tracker, "send", lambda *arguments: released.wait(30))
    begun = time.monotonic()
    history = fit(tracker, epochs=20)
    assert len(history) == 20
    assert time.monotonic() - begun < 15
    released.set()


def test_what_trackers_refuse() -> None:
    with pytest.raises(OptionError, match=r"WandbLogger: mode='on'; expected 'online', 'offline' or 'disabled'"):
        ws.callbacks.WandbLogger("digits", mode="on")
    with pytest.raises(OptionError, match=r"MLflowLogger: timeout=0 must be above 0"):
        ws.callbacks.MLflowLogger("digits", timeout=0)


def test_mlflow_receives_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of MLflow as far as it is used."""
    calls: list[tuple[str, Any]] = []

    class Client:
        def __init__(self, uri: str | None) -> None:
            calls.append(("uri", uri))

        def get_experiment_by_name(self, name: str) -> None:
            calls.append(("experiment", name))

        def create_experiment(self, name: str) -> str:
            return "7"

        def create_run(self, number: str, tags: dict[str, str], run_name: str | None) -> Any:
            calls.append(("run", (number, tags, run_name)))
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))

        def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
            assert run == "abc"
            assert len(params) <= 100
            calls.extend(("metric", metric) for metric in metrics)
            calls.extend(("param", param) for param in params)

        def set_terminated(self, run: str, status: str) -> None:
            calls.append(("end", (run, status)))

    module, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
    module.MlflowClient = Client  # type: ignore[attr-defined]
    entities.Metric = entities.Param = lambda *values: values  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    tracker = ws.callbacks.MLflowLogger("digits", "first", uri="sqlite:///x.db")
    history = fit(tracker)
    assert tracker.failure is None
    assert calls[:2] == [("uri", "sqlite:///x.db"), ("experiment", "digits")]
    number, tags, name = dict(calls)["run"]
    assert (number, name) == ("7", "first")
    assert tags["environment.wholestep"] == ws.__version__
    params = dict(value for kind, value in calls if kind == "param")
    assert params["optimizer.lr"] == "0.1"
    losses = [value[:2] + value[3:] for kind, value in calls if kind == "metric" and value[0] == "val_loss"]
    assert losses == [("val_loss", loss, i + 1) for i, loss in enumerate(history["val_loss"])]
    assert calls[-1] == ("end", ("abc", "FINISHED"))


def test_mlflow_reads_what_was_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the default, a database, needs another package
    mlflow = pytest.importorskip("mlflow")
    uri = (tmp_path / "mlruns").as_uri()
    tracker = ws.callbacks.MLflowLogger("digits", uri=uri)
    history = fit(tracker)
    assert tracker.failure is None
    client = mlflow.MlflowClient(uri)
    run = client.get_run(tracker.id)
    assert run.info.status == "FINISHED"
    assert run.data.params["optimizer.lr"] == "0.1"
    assert [m.value for m in client.get_metric_history(tracker.id, "val_loss")] == history["val_loss"]


def test_wandb_writes_an_offline_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    tracker = ws.callbacks.WandbLogger("digits", mode="offline", folder=str(tmp_path), timeout=60)
    fit(tracker)
    assert tracker.failure is None
    assert tracker.sent == 3
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_trackio_reads_what_was_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # read when trackio is imported
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    tracker = ws.callbacks.TrackioLogger("digits", "first", timeout=60)
    history = fit(tracker)
    assert tracker.failure is None
    logs = storage.get_logs("digits", "first")
    assert [row["val_loss"] for row in logs] == pytest.approx(history["val_loss"])
