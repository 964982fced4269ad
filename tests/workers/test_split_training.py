"""Training with layers divided among ranks, compiled: states, checkpoints and evaluation are those of whole layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compilers import quick
from wholestep.compiler.plan.serialize import encode
from wholestep.compiler.runtime.parts import Parts
from wholestep.errors import OptionError

nn = ws.nn
ROWS = 29  # in batches of 8: the last one has 5
RNG = np.random.default_rng(7)
VECTORS = RNG.standard_normal((ROWS, 16)).astype(np.float32)
LABELS = RNG.integers(0, 4, ROWS).astype(np.int32)
TOKENS = RNG.integers(0, 40, (ROWS, 7)).astype(np.int32)
TEXT = TOKENS[:, :-1], TOKENS[:, 1:]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64, split="columns"), nn.GELU(), nn.Linear(64, 4, split="rows"))


def gpt(split: bool = True) -> nn.Module:
    return ws.models.gpt2(layers=1, width=16, heads=4, vocabulary=40, context=6, split=split)


def fitted(make: Callable[[], nn.Module], data: Any, **settings: Any) -> tuple[dict[str, np.ndarray], nn.Module, Any]:
    model = make()
    told = {"epochs": 2, "batch_size": 8, "seed": 3, "progress": False, "loss": "cross_entropy", "options": quick()}
    made = ws.fit(model, data, **{**told, "optimizer": ws.SGD(lr=0.05, momentum=0.9), **settings})
    return {name: np.asarray(a) for name, a in model.state_dict().items()}, model, made


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray], atol: float = 2e-7) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, rtol=1e-5, atol=atol, err_msg=name)


CASES: dict[str, tuple[tuple[int, int], Any, Any, dict[str, Any]]] = {
    "gpt": ((2, 2), gpt, TEXT, {"clip_norm": 0.5}),
    "three": (
        (1, 3),
        lambda: nn.Sequential(nn.Linear(16, 48, split="columns"), nn.ReLU(), nn.Linear(48, 4, split="rows")),
        (VECTORS, LABELS),
        {"accumulate": 2},
    ),
    "averages, and parts of parts": (
        (2, 2),
        perceptron,
        (VECTORS, LABELS),
        {"optimizer": ws.optim.EMA(ws.SGD(lr=0.05, momentum=0.9), 0.9), "shard": "optimizer", "nonfinite": "skip"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_equals_that_of_whole_layers(case: str) -> None:
    """To 1e-6: products are added up over ranks, in another order."""
    grid, make, data, settings = CASES[case]
    held = {"validation": (data[0][:9], data[1][:9]), "metrics": ["accuracy"]}
    whole, model, made = fitted(make, data, **{k: v for k, v in settings.items() if k != "shard"}, **held)
    parts, divided, run = fitted(make, data, shards=grid, **settings, **held)
    same(whole, parts)
    np.testing.assert_allclose(run["val_loss"], made["val_loss"], rtol=1e-5)
    np.testing.assert_allclose(divided.predict(data[0][:5]), model.predict(data[0][:5]), rtol=1e-4, atol=1e-6)


# -- what a state is -----------------------------------------------------------------------------------------------

ABOUT: dict[str, Any] = {
    "inputs": ws.Spec(("batch", 16)),
    "targets": ws.Spec(("batch",), "int32"),
    "loss": "cross_entropy",
    "optimizer": ws.SGD(lr=0.05, momentum=0.9),
    "batch_size": 8,
    "seed": 3,
}


def test_states_are_seen_whole(tmp_path: Path) -> None:
    """The plan is what its trace means, checked on ranks of its own."""
    checked = replace(quick(), verify=True, cache_dir=tmp_path)
    divided = ws.build_session(perceptron(), **ABOUT, shards=(1, 2), options=checked)
    plain = ws.build_session(perceptron(), **ABOUT, options=quick())
    for one in (divided, plain):
        one.step(x=VECTORS[:8], labels=LABELS[:8])
    for name in plain.state.names:
        np.testing.assert_allclose(divided.get(name), plain.get(name), rtol=1e-5, atol=1e-7, err_msg=name)
    held = {
        name: divided.state.slot(name).newest for name in ("0.weight", "2.weight", "2.weight.sgd.velocity", "2.bias")
    }
    parts = {name: [a.read() for a in p.of.values()] for name, p in held.items() if isinstance(p, Parts)}
    assert {name: [a.shape for a in each] for name, each in parts.items()} == {
        "0.weight": [(32, 16)] * 2,
        "2.weight": [(4, 32)] * 2,
        "2.weight.sgd.velocity": [(4, 32)] * 2,
    }
    np.testing.assert_array_equal(parts["2.weight"][1], divided.get("2.weight")[:, 32:])
    np.testing.assert_array_equal(parts["0.weight"][1], divided.get("0.weight")[32:])
    value = RNG.standard_normal((64, 16)).astype(np.float32)
    for one in (divided, plain):
        one.set("0.weight", value)
        one.load_state_dict({**one.state_dict(), "0.bias": np.ones(64, np.float32)})
    np.testing.assert_array_equal(divided.get("0.weight"), value)
    losses = [one.evaluate(x=VECTORS[8:16], labels=LABELS[8:16]).loss for one in (divided, plain)]
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_a_run_goes_on_in_another_grid_and_without(tmp_path: Path) -> None:
    data = VECTORS, LABELS
    fitted(perceptron, data, shards=(1, 2), epochs=1, checkpoint=tmp_path)
    unbroken, _, _ = fitted(perceptron, data, shards=(1, 2))
    again, _, _ = fitted(perceptron, data, shards=(1, 2), resume=tmp_path, exact=True)
    assert {n: a.tobytes() for n, a in again.items()} == {n: a.tobytes() for n, a in unbroken.items()}
    for other in ({"shards": (2, 2)}, {"shards": 2}, {}):
        same(unbroken, fitted(perceptron, data, resume=tmp_path, **other)[0])


def test_a_mark_alone_changes_nothing() -> None:
    """Not even the plan: without ranks that divide layers it is that of a layer that is not marked."""
    told = {**ABOUT, "inputs": ws.Spec(("batch", 6), "int32"), "targets": ws.Spec(("batch", 6), "int32")}
    plans = [ws.build_session(gpt(split), **told, device="null", shards=2).plan for split in (False, True)]
    assert encode(plans[0]) == encode(plans[1])


# -- what cannot be ------------------------------------------------------------------------------------------------


def test_a_grid_without_marks_is_told(caplog: pytest.LogCaptureFixture) -> None:
    ws.build_session(nn.Linear(16, 4), **ABOUT, device="null", shards=(1, 2))
    assert "model=2, and no layer says how workers divide it: all of them compute the same" in caplog.text


@pytest.mark.parametrize(
    ("make", "given", "error", "told"),
    [
        (perceptron, {"shards": (1, 3)}, OptionError, "the 64 outputs of '0.weight' do not divide among 3 workers"),
        (perceptron, {"shards": (1, 2), "device": "reference"}, OptionError, "threads of a CPU; device='reference'"),
    ],
)
def test_what_cannot_be_divided_is_refused(make: Any, given: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        ws.build_session(make(), **{**ABOUT, "device": "null", **given})
