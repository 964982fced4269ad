"""Norms, update ratios and histograms of weights: in the history and in every log, as NumPy measures them."""

from __future__ import annotations

import csv
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import wholestep as ws

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
NAMES = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
LAYERS = {"0": NAMES[:2], "1": NAMES[2:4], "3": NAMES[4:]}


class Snapshots(ws.Callback):
    """The weights at the beginning and after each epoch."""

    def on_train_begin(self) -> None:
        self.seen = [self._weights()]

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        self.seen.append(self._weights())

    def _weights(self) -> dict[str, Any]:
        return {name: self.session.get(name).astype(np.float64).ravel() for name in NAMES}

    def of(self, names: list[str]) -> list[Any]:
        return [np.concatenate([weights[name] for name in names]) for weights in self.seen]


class StopAfter(ws.Callback):
    every = 1

    def __init__(self, steps: int) -> None:
        self.left = steps

    def on_step(self, metrics: ws.StepMetrics) -> None:
        self.left -= 1
        if not self.left:
            assert self.run is not None
            self.run.stop("enough")
            self.run.interrupted = True


def model() -> ws.nn.Module:
    """A norm in it: its running mean and variance are no parameters, and its bias begins as zeros."""
    return ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.BatchNorm1d(4), ws.nn.ReLU(), ws.nn.Linear(4, 2))


def fit(*callbacks: ws.Callback, epochs: int = 4, **options: Any) -> ws.TrainHistory:
    given = {"loss": "cross_entropy", "optimizer": ws.Adam(lr=0.01), "batch_size": 8, "progress": False, **options}
    return ws.fit(model(), (X, Y), epochs=epochs, seed=0, device="reference", callbacks=callbacks, **given)


def ratio(new: Any, old: Any) -> float:
    length = np.linalg.norm(old)
    return float(np.linalg.norm(new - old) / length) if length else math.nan


def check(history: ws.TrainHistory, watch: ws.callbacks.WeightStatistics, name: str, values: list[Any]) -> None:
    """Every epoch's numbers and histogram of one name, by NumPy."""
    np.testing.assert_allclose(history[f"norm/{name}"], [np.linalg.norm(w) for w in values[1:]], rtol=1e-12)
    ratios = [ratio(new, old) for old, new in pairwise(values)]
    np.testing.assert_allclose(history[f"update_ratio/{name}"], ratios, rtol=1e-12)
    assert [h.epoch for h in watch.histograms[name]] == list(range(len(values) - 1))
    for kept, weights in zip(watch.histograms[name], values[1:], strict=True):
        counts, edges = np.histogram(weights, bins=5)
        np.testing.assert_array_equal(kept.counts, counts)
        np.testing.assert_array_equal(kept.edges, edges)


def test_every_number_is_numpys_and_in_every_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Loggers stand before what measures: they write its numbers of the same epoch all the same."""
    each, layers, seen = ws.WeightStatistics(bins=5), ws.WeightStatistics(per="layer", bins=5), Snapshots()
    gradients = ws.GradientStatistics({"x": X[:8], "labels": Y[:8]}, quiet=True, per="layer")
    logs = [ws.TensorBoardLogger(tmp_path), ws.CSVLogger(tmp_path / "a.csv"), ws.JSONLinesLogger(tmp_path / "a.jsonl")]
    history = fit(*logs, each, layers, seen, gradients, progress=True)
    assert list(each.histograms) == NAMES
    assert list(layers.histograms) == list(gradients.history[0]) == list(LAYERS)
    for name in NAMES:
        check(history, each, name, seen.of([name]))
    for layer, names in LAYERS.items():
        check(history, layers, layer, seen.of(names))
    assert math.isnan(history["update_ratio/1.bias"][0])
    assert 0 < history["update_ratio/0.weight"][0] < 1

    last = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))[-1]
    assert float(last["norm/3"]) == history["norm/3"][-1]
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert lines[0]["update_ratio/1.bias"] is None
    assert [line["update_ratio/3"] for line in lines] == history["update_ratio/3"]
    assert "norm/" not in str(history) + history.plot() + capsys.readouterr().err  # too many for people
    assert history.plot(names=["norm/3"]).startswith("norm/3")
    assert ws.History.from_json(history.to_json())["norm/3"] == history["norm/3"]

    reader = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
    assert set(reader.Tags()["histograms"]) == {f"weights/{name}" for name in (*NAMES, *LAYERS)}
    events = reader.Histograms("weights/0.weight")
    assert [e.step for e in events] == [3, 7, 11, 15]
    for event, weights in zip(events, seen.of(["0.weight"])[1:], strict=True):
        counts, edges = np.histogram(weights, bins=5)
        got = event.histogram_value
        assert (got.bucket, got.bucket_limit) == (counts.tolist(), edges[1:].tolist())
        assert (got.min, got.max, got.num) == (weights.min(), weights.max(), 12)
        np.testing.assert_allclose([got.sum, got.sum_squares], [weights.sum(), (weights**2).sum()], rtol=1e-12)
    assert reader.Scalars("epoch/norm/3")[-1].value == pytest.approx(history["norm/3"][-1])


def test_a_resumed_run_goes_on_the_same(tmp_path: Path) -> None:
    """Stopped between two measurements, inside an epoch: the ratio is to the weights before, of the first run."""
    whole, cut, rest = (ws.WeightStatistics(every=2, bins=5) for _ in range(3))
    expected = fit(whole)
    fit(cut, StopAfter(4 * 3 + 1), ws.ModelCheckpoint(tmp_path, "loss", last=1))
    assert ws.load_checkpoint(tmp_path).step == 4 * 3 + 1
    assert [h.epoch for h in cut.histograms["0.weight"]] == [1]
    log = ws.CSVLogger(tmp_path / "log.csv")
    history = fit(log, rest, resume=tmp_path)
    for name in (f"{kind}/{n}" for kind in ("norm", "update_ratio") for n in NAMES):
        np.testing.assert_array_equal(history[name], expected[name])
        assert [e for e, value in enumerate(history[name]) if value == value][-1] == 3
    assert math.isnan(history["norm/0.weight"][2])  # not measured then
    for name, kept in whole.histograms.items():
        assert [h.epoch for h in rest.histograms[name]] == [1, 3]
        for a, b in zip(kept, rest.histograms[name], strict=True):
            assert (a.counts.tolist(), a.edges.tolist(), a.sum) == (b.counts.tolist(), b.edges.tolist(), b.sum)

    with pytest.raises(
        ws.errors.CheckpointError, match=r"was started with per='parameter', bins=5; received per='layer'"
    ):
        fit(ws.WeightStatistics(per="layer", bins=5), resume=tmp_path)
    fit(rest, epochs=2)  # a new run begins anew
    assert [h.epoch for h in rest.histograms["0.weight"]] == [1]


def test_gradients_per_layer_are_those_of_its_parameters_together() -> None:
    from wholestep.session.inspect.statistics import Stats, stats_of, stats_per_layer

    arrays = {"a.weight": RNG.normal(size=(3, 4)), "a.bias": RNG.normal(size=4), "scale": RNG.normal(size=2)}
    found = stats_per_layer(stats_of(arrays))
    together = Stats.of("a", np.concatenate([arrays["a.weight"].ravel(), arrays["a.bias"]]))
    assert list(found) == ["a", "model"]
    for field in ("min", "max", "mean", "norm", "size"):
        assert getattr(found["a"], field) == pytest.approx(getattr(together, field))


def test_in_a_loop_of_ones_own_and_of_weights_that_are_not_finite() -> None:
    net = ws.nn.Linear(3, 2)
    session = ws.build_session(
        net, inputs=ws.Spec(("batch", 3)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy", batch_size=8,
        device="reference",
    )  # fmt: skip
    watch = ws.WeightStatistics("layer")
    callbacks = ws.CallbackList([watch], session=session)
    callbacks.on_train_begin()
    spoilt = session.get("weight")
    spoilt[0, 0] = np.inf
    session.set("weight", spoilt)
    callbacks.on_epoch_end(0, {"loss": 1.0})
    assert watch.run is not None
    assert watch.run.history is not None
    assert watch.run.history.last["norm/model"] == math.inf
    assert watch.histograms["model"][0].counts.sum() == 3 * 2 + 2 - 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"per": "module"}, "WeightStatistics: per must be 'parameter' or 'layer'; received 'module'"),
        ({"every": 0}, "WeightStatistics: every must be an integer of at least 1; received 0"),
        ({"every": True}, "every must be an integer of at least 1; received True"),
        ({"bins": 2.5}, "WeightStatistics: bins must be an integer of at least 1; received 2.5"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ws.errors.OptionError, match=text):
        ws.WeightStatistics(**options)
    if "per" in options:
        with pytest.raises(ws.errors.OptionError, match="GradientStatistics: per must be 'parameter' or 'layer'"):
            ws.GradientStatistics({}, **options)
