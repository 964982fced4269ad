"""Sections J and K of the conformance page: callbacks, loops, diagnostics."""

from __future__ import annotations

import csv
import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import wholestep as ws
from wholestep.session.inspect.statistics import stats_per_layer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def mlp() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.ReLU(), ws.nn.Linear(4, 2))


def fit(model: ws.nn.Module | None = None, **options) -> ws.TrainHistory:
    given = {"loss": "cross_entropy", "metrics": ["accuracy"], "batch_size": 8, "progress": False, **options}
    return ws.fit(model or mlp(), (X, Y), validation=(X, Y), **given)


def stop_after(stopping: ws.EarlyStopping, values: list[float]) -> int | None:
    run = ws.callbacks.Run(None, 10)  # type: ignore[arg-type]
    stopping.run = run
    for epoch, value in enumerate(values):
        stopping.on_epoch_end(epoch, {stopping.monitor: value})
        if run.stopped_by:
            return epoch
    return None


def test_j01_early_stopping() -> None:
    default = ws.EarlyStopping(patience=10)
    assert (default.monitor, default.mode) == ("val_loss", "min")
    values = [1.0, 0.9, 0.95, 0.96, 0.97, 0.98]
    assert stop_after(ws.EarlyStopping(patience=3), values) == 4
    assert stop_after(ws.EarlyStopping(patience=3, mode="max"), [-v for v in values]) == 4
    assert stop_after(ws.EarlyStopping("val_acc", patience=9), values) is None
    assert stop_after(ws.EarlyStopping(patience=2, min_delta=0.1), [1.0, 0.95, 0.94, 0.5]) == 2
    history = fit(epochs=50, optimizer=ws.SGD(lr=0.0), callbacks=ws.EarlyStopping(patience=2))
    assert len(history) == 3
    assert "has not improved for 2 epochs" in history.stopped_by


def test_j03_callback_lists_call_in_order() -> None:
    calls = []

    class Spy(ws.Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_epoch_begin(self, epoch: int) -> None:
            calls.append((self.name, epoch))

        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            calls.append((self.name, logs["loss"]))

    both = ws.CallbackList([Spy("a"), Spy("b")])
    both.on_epoch_begin(3)
    both.on_epoch_end(3, {"loss": 0.5})
    assert calls == [("a", 3), ("b", 3), ("a", 0.5), ("b", 0.5)]


def test_j04_csv_and_tensorboard(tmp_path: Path) -> None:
    log, folder = tmp_path / "runs" / "log.csv", tmp_path / "tb"
    lines = tmp_path / "log.jsonl"
    history = fit(epochs=2, callbacks=[ws.CSVLogger(log), ws.TensorBoardLogger(folder), ws.JSONLinesLogger(lines)])
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert [float(row["val_accuracy"]) for row in rows] == history["val_acc"]
    found = scalars(folder)
    assert found["epoch/loss"] == [(3, pytest.approx(history["loss"][0])), (7, pytest.approx(history["loss"][1]))]
    assert [step for step, _ in found["step/loss"]] == list(range(8))
    assert len(lines.read_text().splitlines()) == 2


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars of a folder, by TensorBoard's own reader."""
    reader = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_the_checksum_is_crc32c() -> None:
    from wholestep.callbacks.event_records import _masked_crc

    unmasked = (struct.unpack("<I", _masked_crc(b"123456789"))[0] - 0xA282EAD8) & 0xFFFFFFFF
    assert (unmasked >> 17 | unmasked << 15) & 0xFFFFFFFF == 0xE3069283  # the check value of CRC-32C


def test_j05_the_basic_loop() -> None:
    epochs = []

    class Spy(ws.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            epochs.append(sorted(logs))

    loop = ws.BasicTrainingLoop(mlp(), ws.Adam(lr=0.05), metrics=[ws.metrics.Accuracy()])
    loop.add_callback(Spy())
    history = loop.fit((X, Y), (X, Y), epochs=3, batch_size=8, progress=False)
    assert epochs == [["accuracy", "loss", "lr", "val_accuracy", "val_loss"]] * 3
    assert history["loss"][-1] < history["loss"][0]


def test_evaluation_changes_no_parameter_bit() -> None:
    model = mlp()
    session = ws.build_session(
        model, inputs=ws.Spec(("batch", 3)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy", batch_size=8
    )
    before = model.state_dict()
    session.evaluate_all({"x": X, "labels": Y})
    for name, value in model.state_dict().items():
        assert value.tobytes() == before[name].tobytes()


def test_budgets_and_slices() -> None:
    losses = ws.LossHistory()
    history = fit(epochs=9, callbacks=[losses, ws.StepBudget(6)])
    assert (len(losses.losses), [e.steps for e in history.epochs]) == (6, [4, 2])
    assert "budget of 6 steps" in history.stopped_by
    assert len(fit(epochs=10**6, callbacks=ws.TimeBudget(0.05))) < 10**6


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ws.EarlyStopping(patience=0), "patience must be an integer of at least 1"),
        (lambda: ws.EarlyStopping(mode="up"), "mode must be 'min' or 'max'"),
        (lambda: fit(epochs=-1), "epochs=-1: expected an integer"),
    ],
)
def test_options_out_of_range(make, text: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=text):
        make()


def test_k01_spans_of_a_build_and_an_epoch() -> None:
    class Steps(ws.DataLoader):
        def arrays(self) -> None:
            return None

    session = ws.build_session(
        mlp(), inputs=ws.Spec(("batch", 3)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy", batch_size=8,
        options=ws.CompileOptions(cache=False),
    )  # fmt: skip
    ws.Trainer(session).train(Steps(X, Y, 8), 1)
    spans = {s.name: s for s in session.spans}
    expected = ("build_session", "optimize_forward", "autodiff", "optimize_full", "compile", "device_init")
    for name in (*expected, "train_epoch", "set_input"):
        assert name in spans
    assert spans["autodiff"].depth > spans["build_session"].depth
    assert spans["set_input"].depth > spans["train_epoch"].depth


def with_gradient(gradient: np.ndarray) -> ws.Session:
    """A session whose loss has this gradient: Σ w·g."""
    g = ws.Graph()
    w = g.parameter("w", gradient.shape)
    g.set_outputs([(w * g.input("g", gradient.shape)).sum()])
    return ws.build_session(g)


def test_k02_gradient_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    gradient = np.array([[1, -2], [3, 0]], np.float32)
    session = with_gradient(gradient)
    found = session.gradient_stats(g=gradient)["w"]
    assert (found.min, found.max, found.mean) == (-2.0, 3.0, 0.5)
    session.print_gradient_stats()
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].split() == ["gradient", "of", "min", "max", "mean", "norm", "update/w", "dead"]
    assert printed.splitlines()[1].split()[:4] == ["w", "-2", "3", "0.5"]


def test_gradient_statistics_have_dead_units_and_the_ratio_of_the_next_update() -> None:
    """The second unit of the first layer is below zero for every row; a step of SGD moves a weight by lr · gradient."""
    model = ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.ReLU(), ws.nn.Linear(4, 2))
    session = ws.build_session(
        model, inputs=ws.Spec(("batch", 3)), targets=ws.Spec(("batch", 2)), loss="mse", optimizer=ws.SGD(lr=0.1),
        batch_size=8, device="reference", seed=0,
    )  # fmt: skip
    bias = session.get("0.bias").copy()
    bias[1] = -100.0
    session.set("0.bias", bias)
    rng = np.random.default_rng(0)
    batch = {"x": rng.random((8, 3), np.float32), "labels": rng.random((8, 2), np.float32)}
    before = session.state_dict()
    stats = session.gradient_stats(batch)
    assert all(np.array_equal(value, before[name]) for name, value in session.state_dict().items())
    assert (stats["0.weight"].dead >= 1, stats["0.weight"].units, stats["2.weight"].dead) == (True, 4, 0)
    for name, found in stats.items():
        norm = float(np.linalg.norm(before[name]))
        assert found.update_ratio == pytest.approx(0.1 * found.norm / norm, rel=1e-4)
    layer = session.gradient_stats(batch, per="layer")["0"]
    assert layer == stats_per_layer(stats)["0"]
    assert layer.units == 4
    assert layer.update == pytest.approx(np.hypot(stats["0.weight"].update, stats["0.bias"].update))


def test_a_table_of_gradients_has_a_line_for_each_layer(capsys: pytest.CaptureFixture[str]) -> None:
    session = ws.build_session(
        mlp(), inputs=ws.Spec(("batch", 3)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy", batch_size=8,
        device="reference",
    )  # fmt: skip
    session.print_gradient_stats(x=X[:8], labels=Y[:8], per="layer")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["gradient", "0", "2"]
    gradients = session.gradients(x=X[:8], labels=Y[:8])
    norm = np.sqrt(sum((gradients[f"0.{name}"].astype("f8") ** 2).sum() for name in ("weight", "bias")))
    assert float(lines[1].split()[4]) == pytest.approx(norm, rel=1e-3)
    with pytest.raises(ws.errors.OptionError, match="gradient_stats: per must be 'parameter' or 'layer'"):
        session.gradient_stats(x=X[:8], labels=Y[:8], per="model")


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.0, "vanishing"), (1e10, "exploding"), (np.nan, "exploding"), (1.0, "")]
)
def test_k03_vanishing_and_exploding(value: float, verdict: str) -> None:
    gradient = np.full((2, 2), value, np.float32)
    assert with_gradient(gradient).gradient_stats(g=gradient)["w"].verdict == verdict


def test_k04_an_observer_sees_every_layer_and_changes_nothing() -> None:
    seen, plain = (
        ws.build_session(
            mlp(),
            inputs=ws.Spec(("batch", 3)),
            targets=ws.Spec(("batch",), "int32"),
            loss="cross_entropy",
            batch_size=8,
            seed=0,
        )
        for _ in range(2)
    )
    text = io.StringIO()
    seen.set_observer(ws.ConsoleObserver(file=text))
    for _ in range(2):
        for session in (seen, plain):
            session.step(x=X[:8], labels=Y[:8])
    assert seen.plan == plain.plan
    assert seen.get("0.weight").tobytes() == plain.get("0.weight").tobytes()
    lines = text.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["step", "0", "1", "2"] * 2
    with pytest.raises(ws.errors.UsageError, match="an observer has a method on_activations"):
        seen.set_observer(3)  # type: ignore[arg-type]


def test_the_profiler_times_steps_at_intervals(tmp_path: Path) -> None:
    model = mlp()
    profiler = ws.Profiler(path=tmp_path / "trace.json", steps=2, quiet=True, every=2)
    history = fit(model, epochs=2, seed=0, callbacks=profiler)
    steps = history.epochs[0].steps
    expected = [epoch * steps + s for epoch in range(2) for s in range(2, steps + 1, 2)]
    assert len(expected) > 1
    assert [*profiler.profiles] == expected
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"trace-{n}.json" for n in expected)
    with pytest.raises(ws.errors.OptionError, match="Profiler: every must be an integer of at least 1; received 0"):
        ws.Profiler(every=0)


def test_the_profiler_times_a_step_once_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, watched = mlp(), mlp()
    fit(plain, epochs=2, seed=0)
    profiler = ws.Profiler(path=tmp_path / "trace.json", steps=2)
    fit(watched, epochs=2, seed=0, callbacks=profiler)
    assert profiler.profile is not None
    assert profiler.profile.steps == 2
    assert capsys.readouterr().err.count("2 steps on") == 1
    kinds = {e.get("cat") for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {"span", "kernel"} <= kinds
    for name, value in plain.state_dict().items():
        assert value.tobytes() == watched.state_dict()[name].tobytes()
    with pytest.raises(ws.errors.OptionError, match="Profiler: steps must be an integer of at least 1; received 0"):
        ws.Profiler(steps=0)
