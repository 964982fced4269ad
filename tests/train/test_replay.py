"""Steps computed again from a checkpoint have the bits that the run had; two runs differ where they differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import wholestep as ws
from tests.support.compilers import quick
from wholestep import nn
from wholestep.cli import app

STEPS = 39  # of three epochs of 13


def build(lr: float = 1e-3, **settings: Any) -> ws.Experiment:
    x, y = ws.datasets.digits()
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 10))
    return ws.Experiment(
        model=model,
        data=(x[:400], y[:400]),
        **{
            "loss": "cross_entropy",
            "optimizer": ws.Adam(lr=lr),
            "epochs": 3,
            "seed": 3,
            "device": "reference",
            "progress": False,
            **settings,
        },
    )


class Recorder(ws.Callback):
    """The loss of every step, and a weight after it."""

    every = 1

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.weights: dict[int, np.ndarray] = {}

    def on_step(self, metrics: ws.StepMetrics) -> None:
        step = 13 * metrics.epoch + metrics.step
        self.losses[step], self.weights[step] = metrics.loss, self.session.get("0.weight").copy()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recorder]:
    """A run that was interrupted in its second epoch and resumed."""
    folder, recorder = tmp_path_factory.mktemp("run"), Recorder()
    build(callbacks=[recorder, ws.StepBudget(20)]).fit(checkpoint=folder)
    build(callbacks=[recorder]).fit(checkpoint=folder, resume=True)
    assert len(recorder.losses) == STEPS
    return folder, recorder


DRAWN = sorted(np.random.default_rng(28).choice(STEPS, 8, replace=False).tolist())


@pytest.mark.parametrize("step", sorted({0, 12, 13, 20, 38, *DRAWN}))
def test_a_step_has_the_bits_that_it_had(recorded: tuple[Path, Recorder], step: int) -> None:
    folder, recorder = recorded
    again = ws.Replay(build(), folder, step)
    np.testing.assert_array_equal(again.inputs["x"], build().data[0][again.rows])
    assert again.run().loss == recorder.losses[step]
    np.testing.assert_array_equal(again.session.get("0.weight"), recorder.weights[step])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_of_a_resumed_run_on_a_cpu_has_its_bits_with_any_number_of_threads(threads: int, tmp_path: Path) -> None:
    recorder, settings = Recorder(), {"device": "cpu", "threads": 2, "options": quick()}
    build(callbacks=[recorder, ws.StepBudget(20)], **settings).fit(checkpoint=tmp_path)
    build(callbacks=[recorder], **settings).fit(checkpoint=tmp_path, resume=True)
    for step in (3, 27):
        again = ws.Replay(build(**{**settings, "threads": threads}), tmp_path, step)
        assert again.run().loss == recorder.losses[step]
        np.testing.assert_array_equal(again.session.get("0.weight"), recorder.weights[step])


def test_tensors_of_a_step_are_those_before_its_update(recorded: tuple[Path, Recorder]) -> None:
    folder, recorder = recorded
    again = ws.Replay(build(), folder, 5)
    np.testing.assert_array_equal(again.tensor("0.weight"), recorder.weights[4])
    assert again.tensor("0.weight.grad").shape == (16, 64)
    np.testing.assert_array_equal(again.tensor("x"), again.inputs["x"])
    hidden, dropped, slope = (again.tensor(name) for name in ("1", "2", "3.grad"))
    assert (dropped == 0).sum() > (hidden == 0).sum()  # dropout as in training
    np.testing.assert_allclose(dropped[dropped != 0], hidden[dropped != 0] / 0.9, rtol=1e-6)
    np.testing.assert_allclose(slope.T @ dropped, again.tensor("3.weight.grad"), rtol=1e-4, atol=1e-7)
    scores = dropped @ again.tensor("3.weight").T + again.tensor("3.bias")
    np.testing.assert_allclose(again.tensor("3"), scores, rtol=1e-5, atol=1e-6)
    shifted = np.exp(scores - scores.max(1, keepdims=True))
    chosen = shifted[np.arange(32), again.tensor("labels")] / shifted.sum(1)
    assert again.run().loss == pytest.approx(
        -np.log(chosen).mean(), rel=1e-5
    )  # these are the values of the step itself
    with pytest.raises(ws.errors.UnknownNameError, match="the step has no tensor 'nothing'"):
        again.tensor("nothing")


def test_a_damaged_checkpoint_is_passed_over(recorded: tuple[Path, Recorder], tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(recorded[0], tmp_path / "run"))
    newest = sorted(folder.glob("step-*"))[-1]
    (newest / "weights.safetensors").write_bytes(b"")
    assert ws.Replay(build(), folder, 38).run().loss == recorded[1].losses[38]


def test_two_equal_runs_have_no_difference_and_a_planted_bit_is_found(tmp_path: Path) -> None:
    class Flip(ws.Callback):
        every = 1

        def on_step(self, metrics: ws.StepMetrics) -> None:
            if (metrics.epoch, metrics.step) == (1, 4):  # after 18 updates
                weight = self.session.get("3.bias").copy()
                weight.view(np.int32)[7] ^= 1
                self.session.set("3.bias", weight)

    for name, callbacks in (("a", []), ("b", []), ("c", [Flip()])):
        build(callbacks=callbacks, epochs=2).fit(checkpoint=tmp_path / name)
    assert ws.compare_runs((build(), tmp_path / "a"), (build(), tmp_path / "b")) is None
    difference = ws.compare_runs((build(), tmp_path / "a"), (build(callbacks=[Flip()]), tmp_path / "c"))
    assert difference is not None
    assert (difference.step, difference.tensors[0], difference.settings) == (18, "3.bias", ())
    assert difference.example.endswith("at index [7]")
    assert re.match(
        r"after 18 updates '3\.bias' differs: np\.float32\(\S+\) and np\.float32\(\S+\) at", str(difference)
    )


def test_a_bit_that_only_a_checkpoint_has_is_found_there(tmp_path: Path) -> None:
    """Nothing that the experiment contains has changed it: the difference is that of the checkpoints."""

    class Flip(ws.Callback):
        def on_epoch_end(self, epoch: int, logs: Any) -> None:
            weight = self.session.get("0.bias").copy()
            weight.view(np.int32)[3] ^= 1
            self.session.set("0.bias", weight)

    build(epochs=1).fit(checkpoint=tmp_path / "a")
    build(epochs=1, callbacks=[Flip()]).fit(checkpoint=tmp_path / "b")
    difference = ws.compare_runs((build(), tmp_path / "a"), (build(), tmp_path / "b"))
    assert difference is not None
    assert (difference.step, difference.tensors) == (13, ("0.bias",))


def test_a_difference_names_the_setting_that_explains_it(tmp_path: Path) -> None:
    for name, lr in (("a", 1e-3), ("b", 2e-3)):
        build(lr, epochs=1).fit(checkpoint=tmp_path / name)
    difference = ws.compare_runs((build(1e-3), tmp_path / "a"), (build(2e-3), tmp_path / "b"))
    assert difference is not None
    assert (difference.step, difference.settings) == (1, ("optimizer.lr=0.001 and 0.002",))
    assert difference.tensors[0] == "0.weight"


def test_an_experiment_that_draws_without_a_seed_is_found() -> None:
    ws.verify_determinism(build, steps=3)
    unseeded = np.random.default_rng()

    def noisy() -> ws.Experiment:
        x, y = build().data
        return build().having({"data": (x + unseeded.standard_normal(x.shape).astype("f4"), y)})

    with pytest.raises(ws.errors.UsageError, match=r"not deterministic: the batches of step 0 differ in \['x'\]"):
        ws.verify_determinism(noisy, steps=3)


SCRIPT = """
import wholestep as ws
def build(lr: float = 1e-3):
    x, y = ws.datasets.digits()
    model = ws.nn.Sequential(ws.nn.Linear(64, 8), ws.nn.ReLU(), ws.nn.Linear(8, 10))
    return ws.Experiment(model=model, data=(x[:128], y[:128]), loss="cross_entropy", optimizer=ws.SGD(lr=lr), seed=0,
                         device="reference", epochs=2)
"""


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    for name, lr in (("a", "0.001"), ("b", "0.01")):
        done = CliRunner().invoke(app, ["train", "script.py", "--folder", name, "--set", f"lr={lr}", "--no-progress"])
        assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(app, ["replay", "a", "--step", "5", "--show", "2.bias", "--show", "0.grad"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("step 5: epoch 1, step 1 of it; rows ")
    assert "2.bias\n[" in shown.output
    assert "0.grad\n[[" in shown.output
    compared = CliRunner().invoke(app, ["compare", "a", "b"])
    assert compared.exit_code == 1
    assert compared.output.startswith("after 1 updates '0.weight'")
    assert "different settings: optimizer.lr=0.001 and 0.01" in compared.output
    assert CliRunner().invoke(app, ["compare", "a", "a"]).exit_code == 0
