"""An experiment is the one list of what a run is told; `ws.fit` shows it, and hands batches on in few hops."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws

PACKAGE = Path(ws.__file__).parent
RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
GIVEN: dict[str, Any] = {"loss": "cross_entropy", "batch_size": 8, "epochs": 2, "progress": False, "seed": 3}


def mlp() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.ReLU(), ws.nn.Linear(4, 2))


def test_fit_is_an_experiment() -> None:
    one, other = mlp(), mlp()
    history = ws.fit(one, (X, Y), **GIVEN)
    again = ws.Experiment(model=other, data=(X, Y), **GIVEN).fit()
    assert [e.avg_loss for e in history.epochs] == [e.avg_loss for e in again.epochs]
    for name, array in one.state_dict().items():
        assert array.tobytes() == other.state_dict()[name].tobytes()


def test_the_signature_and_the_help_of_fit_are_the_experiments() -> None:
    shown = inspect.signature(ws.fit).parameters
    known = {f.name: f for f in fields(ws.Experiment)}
    assert set(shown) - {"more"} == set(known) - {"test"}
    assert [name for name, p in shown.items() if p.default is p.empty] == ["model", "data", "more", "loss"]
    assert all(p.default == known[name].default for name, p in shown.items() if p.default is not p.empty)
    assert shown["epochs"].annotation == "int"
    help_text = inspect.getdoc(ws.fit)
    assert help_text is not None
    assert "    nonfinite: " in help_text
    assert "Example::" in help_text


def test_a_trainers_steps_are_those_of_its_epochs() -> None:
    trainer, loader = ws.Experiment(model=mlp(), data=(X, Y), **GIVEN).trainer()
    other, again = ws.Experiment(model=mlp(), data=(X, Y), **GIVEN).trainer()
    losses, rows = zip(*trainer.steps(loader, 0, 0, 1), strict=True)
    assert np.concatenate(rows).tolist() == [8, 8, 8, 8]
    assert np.mean(np.concatenate(losses)) == pytest.approx(other.train_epoch(again, 0).avg_loss, rel=1e-12)
    first = trainer.batch_at(loader, 0, 0)
    loader.shuffle(0)
    loader.reset()
    assert first["x"].tobytes() == trainer.named_batch(next(loader.remaining()))["x"].tobytes()


def test_a_misspelt_argument_is_told() -> None:
    with pytest.raises(ws.errors.UsageError, match=r"ws.fit has no argument 'epoch'. Did you mean epochs=\?"):
        ws.fit(mlp(), (X, Y), loss="cross_entropy", epoch=3)
    with pytest.raises(ws.errors.UnknownNameError, match="Experiment has no 'epoch'"):
        ws.Experiment(model=mlp(), data=(X, Y), loss="cross_entropy").fit(epoch=3)
    with pytest.raises(TypeError, match="loss"):
        ws.fit(mlp(), (X, Y))  # type: ignore[call-arg]


def test_an_experiment_has_an_optimizer_that_settings_reach() -> None:
    plain = ws.Experiment(model=mlp(), data=(X, Y), loss="cross_entropy")
    assert plain.optimizer == ws.AdamW()
    assert plain.having({"optimizer.lr": 0.5}).optimizer == ws.AdamW(lr=0.5)
    weighed = ws.Experiment(model=mlp(), data=(X, Y), loss="mse", loss_weights={"a": 1.0, "b": 2.0})
    assert weighed.having({"loss_weights.b": 0.5}).loss_weights == {"a": 1.0, "b": 0.5}
    torchs = ws.schedules.StepLR(ws.SGD(lr=0.1), step_size=5)
    assert ws.Experiment(model=mlp(), data=(X, Y), loss="mse", schedule=torchs).optimizer == ws.SGD(lr=0.1)


def test_device_and_precision_reach_the_session() -> None:
    with pytest.raises(ws.errors.OptionError, match="precision='float8'"):
        ws.fit(mlp(), (X, Y), precision="float8", **GIVEN)
    planned = ws.Experiment(model=mlp(), data=(X, Y), device="null", precision="bfloat16", **GIVEN).trainer()[0].session
    assert planned.device.startswith("null")
    assert "bfloat16" in {str(b.type.dtype) for b in planned.plan.buffers}


def test_a_run_is_kept_and_gone_on_with_from_its_experiment(tmp_path: Path) -> None:
    model = mlp()
    experiment = ws.Experiment(model=model, data=(X, Y), checkpoint=tmp_path, **GIVEN)
    experiment.fit(epochs=1)
    history = experiment.fit(resume=True, exact=True)
    straight = mlp()
    ws.fit(straight, (X, Y), **GIVEN)
    assert len(history.epochs) == 2
    for name, array in straight.state_dict().items():
        assert array.tobytes() == model.state_dict()[name].tobytes()
    with pytest.raises(ws.errors.UsageError, match="resume=True resumes from the folder that checkpoint= names"):
        ws.fit(mlp(), (X, Y), resume=True, **GIVEN)


@pytest.mark.parametrize(("accumulate", "loop"), [(1, "run_loop"), (2, "run_micro_batches")])
def test_a_batch_takes_at_most_seven_hops_from_fit_to_the_native_call(
    monkeypatch: pytest.MonkeyPatch, accumulate: int, loop: str
) -> None:
    trainer, _ = ws.Experiment(model=mlp(), data=(X, Y), **GIVEN).trainer()
    library = trainer.session._programs.main.program.library  # one in the process: every session's
    native, ways = getattr(library, loop), []

    def note(given: Any) -> int:
        ways.append([f.name for f in traceback.extract_stack() if PACKAGE in Path(f.filename).parents])
        return native(given)

    monkeypatch.setattr(library, loop, note)
    ws.fit(mlp(), (X, Y), accumulate=accumulate, **GIVEN)
    assert ways[0][0] == "fit"
    hops = [*ways[0][1:], loop]
    assert len(hops) <= 7, " -> ".join(hops)
