"""Replicas: each equals its run alone, bit for bit; one plan for all; means, spread, the best, ensembles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.compilers import quick
from wholestep.compiler import pipeline
from wholestep.compiler.backends.cpu.runtime import object_loader

RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 5)).astype(np.float32)
Y = RNG.integers(0, 3, 70)
GIVEN: dict[str, Any] = {
    "loss": "cross_entropy",
    "metrics": ["accuracy"],
    "batch_size": 16,  # the last batch has 6 rows
    "epochs": 2,
    "progress": False,
    "threads": 2,
    "options": quick(),
}


def network() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(5, 7), ws.nn.ReLU(), ws.nn.Dropout(0.3), ws.nn.Linear(7, 3))


def bits(model: ws.nn.Module) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in model.state_dict().items()}


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_each_replica_has_the_bits_of_its_run_alone(device: str) -> None:
    train, held = ws.data.split((X, Y), 0.2, 3)
    model = network()
    history = ws.fit(model, (X, Y), validation=0.2, replicas=3, seed=3, device=device, **GIVEN)
    alone = []
    for replica in history.replicas:
        single = network()
        alone.append(ws.fit(single, train, validation=held, device=device, **replica.settings, **GIVEN))
        assert bits(single) == bits(replica.model)
        assert alone[-1].epochs == replica.history.epochs
    assert [r.settings for r in history] == [{"seed": 3}, {"seed": 4}, {"seed": 5}]
    losses = np.array([h["val_loss"] for h in alone])
    np.testing.assert_allclose(history["val_loss"], losses.mean(0))
    np.testing.assert_allclose(history.std("val_loss"), losses.std(0, ddof=1))
    assert history.best.index == losses[:, -1].argmin()
    assert bits(model) == bits(history.best.model)
    assert history.rank_by("val_accuracy")[0].last("val_accuracy") == max(h["val_accuracy"][-1] for h in alone)
    np.testing.assert_array_equal(model.predict_classes(X), history.best.model.predict_classes(X))


def test_a_sweep_is_every_combination_and_compiles_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans: list[str] = []
    objects: list[str] = []
    plan, compiled = pipeline.Compiler.plan, object_loader.compile_c

    def count_plan(self: Any, graph: Any, *more: Any) -> Any:
        plans.append(graph.text if hasattr(graph, "text") else str(id(graph)))
        return plan(self, graph, *more)

    def count_object(*given: Any, **more: Any) -> Any:
        objects.append("object")
        return compiled(*given, **more)

    monkeypatch.setattr(pipeline.Compiler, "plan", count_plan)
    monkeypatch.setattr(object_loader, "compile_c", count_object)
    rates = np.geomspace(1e-4, 1e-1, 15).tolist()
    options = ws.CompileOptions(verify=False, compiler=quick().compiler, cache_dir=str(tmp_path))
    given = {**GIVEN, "epochs": 1, "options": options, "metrics": []}
    history = ws.fit(network(), (X, Y), sweep={"optimizer.lr": rates, "seed": range(2)}, **given)
    assert len(plans) == len(objects) == 1
    assert [r.settings["optimizer.lr"] for r in history.replicas[::2]] == rates
    assert len({bytes(r.model.state_dict()["0.weight"]) for r in history}) == 30
    single = network()
    ws.fit(single, (X, Y), optimizer=ws.AdamW(lr=rates[4]), seed=1, **given)
    assert bits(single) == bits(history.replicas[9].model)
    assert str(history).split()[:5] == ["replica", "optimizer.lr", "seed", "loss", "lr"]


def test_a_replica_that_diverges_ends_alone() -> None:
    given = {**GIVEN, "optimizer": ws.SGD(lr=0.1), "epochs": 3, "loss": "mse", "metrics": []}
    model, target = ws.nn.Linear(5, 1), X[:, :1] * 3
    history = ws.fit(model, (X, target), sweep={"optimizer.lr": [1e20, 1e-2]}, **given)
    assert isinstance(history.replicas[0].error, ws.errors.NonFiniteError)
    assert history.best.index == 1
    assert [r.index for r in history.rank_by("loss")] == [1, 0]
    assert history["loss"] == history.replicas[1].history["loss"]
    with pytest.raises(ws.errors.NonFiniteError):
        ws.fit(ws.nn.Linear(5, 1), (X, target), sweep={"optimizer.lr": [1e20, 1e30]}, **given)


def test_replicas_are_saved_and_resumed_by_themselves(tmp_path: Path) -> None:
    whole = ws.fit(network(), (X, Y), replicas=2, seed=0, **{**GIVEN, "epochs": 3})
    ws.fit(network(), (X, Y), replicas=2, seed=0, checkpoint=tmp_path, **{**GIVEN, "epochs": 1})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["replica-0", "replica-1"]
    resumed = ws.fit(network(), (X, Y), replicas=2, seed=0, checkpoint=tmp_path, resume=True, **{**GIVEN, "epochs": 3})
    assert [bits(r.model) for r in resumed] == [bits(r.model) for r in whole]
    loaded = network()
    loaded.load(tmp_path / "replica-1")
    assert bits(loaded) == bits(whole.replicas[1].model)
    assert ws.load_checkpoint(tmp_path / "replica-1").config["replica"] == "seed=1"


def test_an_error_in_one_replica_ends_all_and_is_raised() -> None:
    class Fails(ws.Callback):
        def on_epoch_end(self, epoch: int, logs: Any) -> None:
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        ws.fit(network(), (X, Y), replicas=4, callbacks=[Fails()], **{**GIVEN, "epochs": 1000})


def test_callbacks_are_those_of_each_replica() -> None:
    stopping = ws.EarlyStopping("loss", patience=1, baseline=0.0)
    history = ws.fit(network(), (X, Y), replicas=2, callbacks=stopping, **{**GIVEN, "epochs": 9})
    assert [len(r.history) for r in history] == [1, 1]
    assert history.stopped_by == "loss has not improved for 1 epochs"
    assert stopping.run is None


def test_an_ensemble_predicts_the_mean_with_one_program() -> None:
    history = ws.fit(network(), (X, Y), replicas=3, **GIVEN)
    ensemble = history.ensemble()
    assert isinstance(ensemble, ws.nn.Ensemble)
    expected = np.mean([r.model.predict(X) for r in history], axis=0)
    np.testing.assert_allclose(ensemble.predict(X), expected, rtol=1e-5, atol=1e-6)
    assert (ensemble.predict_classes(X) == expected.argmax(1)).mean() > 0.95
    assert list(ensemble.state_dict())[:2] == ["0.0.weight", "0.0.bias"]


def test_a_plot_has_bands(tmp_path: Path) -> None:
    history = ws.fit(network(), (X, Y), replicas=2, validation=0.2, **GIVEN)
    drawn = Path(history.plot(tmp_path / "runs.svg", names=["loss", "val_loss"])).read_text()
    assert drawn.count("<polygon") == 2
    assert "loss" in history.plot()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"replicas": 0}, r"replicas=0: expected an integer of at least 1"),
        ({"sweep": {"seed": []}}, "there are no values to try"),
        ({"sweep": {"data": [1]}}, "sweep= cannot change 'data'"),
        ({"sweep": {"optimizer.rate": [1]}}, "has no 'rate'"),
        ({"replicas": 2, "sweep": {"seed": [1]}}, "both give the seeds"),
        ({"replicas": 2, "within": "1s"}, "leave out workers= and within="),
        ({"replicas": 2, "callbacks": [ws.CSVLogger("a.csv")]}, "folder of its own"),
    ],
)
def test_wrong_use(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=says):
        ws.fit(network(), (X, Y), **{**GIVEN, **given})
