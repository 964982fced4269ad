"""`ws.nn.Linear` stores the transpose of its weight; nobody sees it.  The twin of each model stores rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.compilers import quick

RNG = np.random.default_rng(3)
X = RNG.standard_normal((40, 48)).astype(np.float32)
Y = RNG.integers(0, 10, 40).astype(np.int32)


def network(by_columns: bool) -> ws.nn.Module:
    model = ws.nn.Sequential(
        ws.nn.Linear(48, 32), ws.nn.Tanh(), ws.nn.Linear(32, 24), ws.nn.ReLU(), ws.nn.Linear(24, 10)
    )
    for owned in model.named_arrays().values():
        owned.by_columns = owned.by_columns and by_columns
    return model


def session(model: ws.nn.Module, **arguments: Any) -> ws.Session:
    options = {"optimizer": ws.Adam(lr=1e-2), "loss": "cross_entropy", "options": quick(), "batch_size": 16, "seed": 5}
    inputs, targets = {"x": ws.Spec(("batch", 48))}, {"labels": ws.Spec(("batch",), "int32")}
    return ws.build_session(model, inputs=inputs, targets=targets, **{**options, **arguments})


def trained(by_columns: bool, steps: int = 5, **arguments: Any) -> tuple[ws.nn.Module, ws.Session]:
    model = network(by_columns)
    s = session(model, **arguments)
    for i in range(steps):
        s.step(x=X[i : i + 16], labels=Y[i : i + 16])
    return model, s


def test_bits_files_and_everything_read_are_the_twins(tmp_path: Path) -> None:
    (model, s), (twin, t) = trained(True), trained(False)
    assert s.plan.copy_bytes < t.plan.copy_bytes  # the first layer has none
    assert [b.name for b in s.plan.buffers if b.transposed and b.space.value == "state"]
    found, want = s.state_dict(), t.state_dict()
    assert found.keys() == want.keys()
    assert found["0.weight.adam.m"].shape == (32, 48)
    for name, value in want.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    np.testing.assert_array_equal(s.predict(x=X), t.predict(x=X))
    assert float(s.evaluate(x=X, labels=Y)) == float(t.evaluate(x=X, labels=Y))
    np.testing.assert_array_equal(model.predict(X), twin.predict(X))
    for each, name in ((model, "a"), (twin, "b")):
        each.save(tmp_path / f"{name}.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    # What is written is what is read, by every way; the next step is the twin's.
    w = np.arange(32 * 48, dtype=np.float32).reshape(32, 48) / 2000 - 0.4
    s.set("0.weight", w)
    np.testing.assert_array_equal(s.get("0.weight"), w)
    np.testing.assert_array_equal(model.state_dict()["0.weight"], w)
    hidden = np.tanh(X @ w.T + want["0.bias"])
    logits = np.maximum(hidden @ want["2.weight"].T + want["2.bias"], 0) @ want["4.weight"].T + want["4.bias"]
    np.testing.assert_allclose(model.predict(X), logits, rtol=1e-4, atol=1e-5)
    t.load_state_dict(s.state_dict())
    assert float(s.step(x=X[:16], labels=Y[:16])) == float(t.step(x=X[:16], labels=Y[:16]))
    np.testing.assert_array_equal(s.get("0.weight"), t.get("0.weight"))
    np.testing.assert_array_equal(copy.deepcopy(model).state_dict()["0.weight"], s.get("0.weight"))


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "averages": lambda: {"optimizer": ws.optim.EMA(ws.AdamW(lr=1e-2), decay=0.9)},
    "micro-batches": lambda: {"accumulate": 2, "batch_size": 8},
    "half": lambda: {"precision": "bfloat16"},
}


@pytest.mark.parametrize("case", CASES)
def test_same_bits_as_the_twin(case: str) -> None:
    (_, s), (_, t) = trained(True, **CASES[case]()), trained(False, **CASES[case]())
    for name, value in t.state_dict().items():
        np.testing.assert_array_equal(s.state_dict()[name], value, err_msg=name)
    np.testing.assert_array_equal(s.predict(x=X), t.predict(x=X))


@pytest.mark.parametrize("case", ["muon", "lamb"])
def test_same_numbers_as_the_twin(case: str) -> None:
    """Norms of whole matrices add up in another order."""
    rest = ws.Group(ndim=(0, 1), name="rest", optimizer=ws.AdamW())
    chosen = ws.optim.Muon(lr=1e-2, groups=[rest]) if case == "muon" else ws.optim.LAMB(lr=1e-2)
    options = {"optimizer": chosen, "clip_norm": 0.1}
    (_, s), (_, t) = trained(True, 3, **options), trained(False, 3, **options)
    for name, value in t.state_dict().items():
        np.testing.assert_allclose(s.state_dict()[name], value, rtol=2e-3, atol=2e-4, err_msg=name)


def test_another_backend_over_the_same_numbers() -> None:
    model, s = trained(True)
    r = session(model, device="reference")
    np.testing.assert_allclose(r.predict(x=X), s.predict(x=X), rtol=1e-5, atol=1e-5)
    r.step(x=X[:16], labels=Y[:16])
    np.testing.assert_array_equal(r.get("0.weight"), s.get("0.weight"))
    s.step(x=X[:16], labels=Y[:16])
    np.testing.assert_array_equal(r.get("0.weight"), s.get("0.weight"))


def test_a_weight_that_is_also_looked_up() -> None:
    """A table that a Linear layer owns: right, whoever pays for it."""

    class Tied(ws.nn.Module):
        def __init__(self) -> None:
            self.head = ws.nn.Linear(16, 32, bias=False)
            self.table = ws.nn.Embedding(32, 16)
            self.table.weight = self.head.weight

        def forward(self, index: ws.Tensor) -> ws.Tensor:
            return self.head(self.table(index))

    model = Tied()
    w = model.state_dict()["head.weight"]
    index = np.array([3, 31, 0, 3], np.int32)
    np.testing.assert_allclose(model.predict(index), w[index] @ w.T, rtol=1e-5, atol=1e-6)


def test_declarations_agree() -> None:
    g = ws.Graph()
    w = g.parameter("w", (32, 48), by_columns=True)
    g.set_outputs({"loss": (g.input("x", ("batch", 48)) @ w.T).mean()})
    s = ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=4, options=quick())
    before = s.get("w")
    s.step(x=X[:4])
    slope = np.tile(X[:4].sum(0) / (4 * 32), (32, 1))
    np.testing.assert_allclose(s.get("w"), before - 0.1 * slope, rtol=1e-5, atol=1e-6)
    with pytest.raises(ws.errors.GraphError, match=r"'w' is stored by columns \(by_columns=True\).*stored by rows"):
        s.state.add({"w": w.node.type}, lambda name: None)
