"""What an error or a document advises works when it is done: each row is the mistake, what is said, and the advice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(12, 3)).astype(np.float32), RNG.integers(0, 2, 12)
SPEC: dict[str, Any] = {
    "inputs": ws.Spec(("batch", 3)), "targets": ws.Spec(("batch",), "int64"), "loss": "cross_entropy", "batch_size": 4,
}  # fmt: skip
QUIET: dict[str, Any] = {"loss": "cross_entropy", "batch_size": 4, "progress": False}


class HalfUsed(ws.nn.Module):
    def __init__(self) -> None:
        self.used, self.idle = ws.nn.Linear(3, 2), ws.nn.Linear(3, 2)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.used(x)


def frozen() -> object:
    model = HalfUsed()
    model.freeze("idle.*")
    return ws.fit(model, (X, Y), **QUIET)


def normed() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.BatchNorm1d(4), ws.nn.Linear(4, 2))


def recurrent(*between: ws.nn.Module) -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.LSTM(3, 4), *between, ws.nn.Linear(4, 2))


Case = tuple[Callable[[], object], str, Callable[[], object]]
ADVICE: dict[str, Case] = {
    "a parameter that is not used": (
        lambda: ws.fit(HalfUsed(), (X, Y), **QUIET),
        r"the loss does not depend on 'idle.weight'.*freeze it, model.freeze\('idle.weight'\)",
        frozen,
    ),
    "or accepted": (
        lambda: ws.build_session(HalfUsed(), **SPEC),
        r"accept it: ws.build_session\(..., unused=\['idle.weight'",
        lambda: ws.build_session(HalfUsed(), unused=["idle.weight", "idle.bias"], **SPEC).step(x=X[:4], labels=Y[:4]),
    ),
    "accumulation over a norm of the batch": (
        lambda: ws.fit(normed(), (X, Y), accumulate=2, **QUIET),
        r"Train with accumulate=1, or .*per_micro_batch=True",
        lambda: ws.fit(normed(), (X, Y), accumulate=2, per_micro_batch=True, **QUIET),
    ),
    "a model alone for inference": (
        lambda: ws.build_inference_session(ws.nn.Linear(3, 2)),
        r"inputs=ws.Spec\(\('batch', 784\)\)",
        lambda: ws.build_inference_session(ws.nn.Linear(3, 2), inputs=ws.Spec(("batch", 3)), batch_size=4).step(
            x=X[:4]
        ),
    ),
    "an argument that a session does not have": (
        lambda: ws.estimate(ws.nn.Linear(3, 2), clip_nrom=1.0, **SPEC),
        r"no argument 'clip_nrom'. Did you mean clip_norm=\?",
        lambda: ws.estimate(ws.nn.Linear(3, 2), clip_norm=1.0, **SPEC),
    ),
    "a tuple inside Sequential": (
        lambda: recurrent().predict(X.reshape(2, 6, 3)),
        r"ws.nn.Lambda\(lambda outputs: outputs\[0\]\)",
        lambda: recurrent(ws.nn.Lambda(lambda outputs: outputs[0])).predict(X.reshape(2, 6, 3)),
    ),
    "a function as schedule": (
        lambda: ws.fit(ws.nn.Linear(3, 2), (X, Y), schedule=lambda n: 0.5**n, **QUIET),
        r"ws.schedules.Lambda\(function\) multiplies it",
        lambda: ws.fit(ws.nn.Linear(3, 2), (X, Y), schedule=ws.schedules.Lambda(lambda n: 0.5**n, lr=1.0), **QUIET),
    ),
    "two sets of data by position": (
        lambda: ws.fit(ws.nn.Linear(3, 2), X, Y, **QUIET),  # type: ignore[misc]
        r"data is one argument: ws.fit\(model, \(x, y\), loss=...\)",
        lambda: ws.fit(ws.nn.Linear(3, 2), (X, Y), **QUIET),
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_advice_can_be_followed(name: str) -> None:
    wrong, said, advised = ADVICE[name]
    with pytest.raises(ws.errors.WholestepError, match=said):
        wrong()
    advised()


def test_plan_files_of_models(tmp_path: Path) -> None:
    model, path = ws.nn.Linear(3, 2), tmp_path / "a.plan"
    with pytest.raises(ws.errors.UsageError, match=r"For a model: ws.build_session_cached\(model, path"):
        ws.save_plan(ws.compile_training_graph(model, **SPEC)[0], model, path)  # type: ignore[arg-type]
    first = ws.build_session_cached(model, path, **SPEC)
    again = ws.build_session_cached(model, path, **SPEC)
    assert "optimizer.lr" in again.scalars
    assert "optimizer.beta" not in again.scalars
    assert again.plan == first.plan
    assert np.isfinite(again.step(x=X[:4], labels=Y[:4]).loss)


def test_few_rows_are_a_batch_and_examples_with_labels_are_data() -> None:
    """Fewer rows than the batch: all of them; a list of (x, label): examples."""
    whole = ws.fit(ws.nn.Linear(3, 2), (X[:5], Y[:5]), loss="cross_entropy", epochs=2, seed=0, progress=False)
    pairs = list(zip(X[:5], Y[:5], strict=True))
    listed = ws.fit(ws.nn.Linear(3, 2), pairs, loss="cross_entropy", epochs=2, batch_size=5, seed=0, progress=False)
    assert whole["loss"] == pytest.approx(listed["loss"], rel=1e-5)


def test_where_there_is_no_compiler_the_reference_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("WHOLESTEP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("wholestep.compiler.backends.cpu.runtime.compiler._zig", lambda: None)
    with pytest.raises(ws.errors.CompilerError, match=r"pip install ziglang .*device='reference' needs none"):
        ws.fit(ws.nn.Linear(3, 2), (X, Y), **QUIET)
    history = ws.fit(ws.nn.Linear(3, 2), (X, Y), device="reference", **QUIET)
    assert np.isfinite(history["loss"][-1])


def test_the_e_graph_has_so_many_seconds() -> None:
    """Afterwards the program stays as it was, and the report says why."""
    options = ws.CompileOptions(egraph_seconds=1e-6, cache=False, verify=False)
    session = ws.build_session(ws.nn.Linear(3, 2), options=options, device="reference", **SPEC)
    assert "saturation took more than 1e-06 s" in str(session.optimization())
