"""A module's numbers are the module's: whoever changes them, everyone who reads them sees the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws

Array = np.ndarray[Any, Any]
WIDTH = 16  # so that programs keep transposed copies of weights
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype(np.float32)
Y = RNG.normal(size=(8, 1)).astype(np.float32)


class Net(ws.nn.Module):
    """A trained layer, a norm with running statistics, a frozen layer and a head."""

    def __init__(self) -> None:
        self.body = ws.nn.Sequential(ws.nn.Linear(3, WIDTH), ws.nn.BatchNorm1d(WIDTH))
        self.fixed = ws.nn.Linear(WIDTH, WIDTH)
        self.head = ws.nn.Linear(WIDTH, 1)
        self.fixed.freeze("*")

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.head(ws.tanh(self.fixed(self.body(x))))


def expected(numbers: dict[str, Array], x: Array = X) -> Array:
    """The network in NumPy, from numbers by name."""
    n = numbers
    h = x @ n["body.0.weight"].T + n["body.0.bias"]
    h = (h - n["body.1.running_mean"]) / np.sqrt(n["body.1.running_var"] + 1e-5) * n["body.1.weight"] + n["body.1.bias"]
    h = np.tanh(h @ n["fixed.weight"].T + n["fixed.bias"])
    return h @ n["head.weight"].T + n["head.bias"]


def body(numbers: dict[str, Array]) -> Array:
    h = X @ numbers["body.0.weight"].T + numbers["body.0.bias"]
    n = {k.removeprefix("body.1."): v for k, v in numbers.items() if k.startswith("body.1.")}
    return (h - n["running_mean"]) / np.sqrt(n["running_var"] + 1e-5) * n["weight"] + n["bias"]


@dataclass
class World:
    """One network, everything that contains it, and every session over it, all built before anything changes."""

    net: Net
    other: ws.nn.Module
    alone: ws.Session
    again: ws.Session
    beside: ws.Session
    graph: ws.Session
    fitted: ws.Session
    second: ws.Session
    accumulating: ws.Session


def _world() -> World:
    net = Net()
    tail = ws.nn.Sequential(net.fixed, ws.nn.Tanh(), net.head)
    other = ws.nn.Sequential(ws.nn.Linear(WIDTH, WIDTH), ws.nn.ReLU())
    specs = {"x": ws.Spec(("batch", 3)), "y": ws.Spec(("batch", 1))}

    @ws.step(inputs=specs)
    def alone(g: ws.Graph, x: ws.Tensor, y: ws.Tensor) -> ws.Tensor:
        loss = ws.losses.mse_loss(net(x), y)
        ws.Adam(lr=0.01).update(g, net.traced(g), ws.gradients(loss, net))
        return loss

    @ws.step(inputs=specs)
    def beside(g: ws.Graph, x: ws.Tensor, y: ws.Tensor) -> ws.Tensor:
        loss = ws.losses.mse_loss(tail(net.body(x) + other(net.body(x))), y)
        ws.SGD(lr=0.01).update(g, net.traced(g), ws.gradients(loss, net))
        return loss

    g = ws.Graph()
    out = net(g.input("x", ("batch", 3)))
    g.set_outputs([ws.losses.mse_loss(out, g.input("y", ("batch", 1))), out])
    how: dict[str, Any] = {"inputs": specs["x"], "targets": specs["y"], "loss": "mse", "batch_size": 8}
    return World(
        net,
        tail,
        ws.build_session(alone, batch_size=8),
        ws.build_session(alone, batch_size=8),
        ws.build_session(beside, batch_size=8),
        ws.build_session(g, batch_size=8),
        ws.build_session(net, optimizer=ws.SGD(lr=0.02), **how),
        ws.build_session(net, optimizer=ws.Adam(lr=0.01), **how),
        ws.build_session(net, accumulate=2, per_micro_batch=True, **{**how, "batch_size": 4}),
    )


@pytest.fixture(scope="module")
def world() -> World:
    return _world()


def _scaled(numbers: dict[str, Array], by: float) -> dict[str, Array]:
    return {name: (a * by + 0.01).astype(np.float32) for name, a in numbers.items()}


def _load_file(w: World, folder: Path) -> None:
    twin = Net()
    twin.load_state_dict(_scaled(w.net.state_dict(), 1.1))
    twin.save(folder / "net.safetensors")
    w.net.load(folder / "net.safetensors")


def _restore(session: ws.Session, by: float) -> None:
    known = session.state_dict()
    changed = {n: (a * by).astype(a.dtype) if a.shape and "Adam" not in n else a for n, a in known.items()}
    session.load_state_dict(changed)


def _stage_by_stage(session: ws.Session) -> None:
    session.forward(x=X)
    session.backward(Y)
    session.apply_gradients(lr=0.1)


CHANGES: dict[str, Callable[[World, Path], object]] = {
    "load_state_dict": lambda w, _: w.net.load_state_dict(_scaled(w.net.state_dict(), 0.9)),
    "load_state_dict of a part": lambda w, _: w.net.head.load_state_dict(_scaled(w.net.head.state_dict(), 1.3)),
    "load": _load_file,
    "set in a step's session": lambda w, _: w.alone.set("head.weight", w.alone.get("head.weight") * 2.0),
    "set in a step of several": lambda w, _: w.beside.set("net.body.0.bias", np.ones(WIDTH, np.float32)),
    "set in a model's session": lambda w, _: w.fitted.set("body.1.running_mean", np.full(WIDTH, 0.1, np.float32)),
    "set of a frozen one": lambda w, _: w.second.set("fixed.bias", np.full(WIDTH, 0.3, np.float32)),
    "load_state_dict of a session": lambda w, _: _restore(w.alone, 0.8),
    "step of a step": lambda w, _: w.alone.step(x=X, y=Y),
    "step of its second session": lambda w, _: w.again.step(x=X, y=Y),
    "run of a step of several": lambda w, _: w.beside.run(x=X, y=Y, epochs=2),
    "step of a graph": lambda w, _: w.graph.step(x=X, y=Y),
    "step of a model's session": lambda w, _: w.fitted.step(x=X, labels=Y),
    "run of a second optimizer": lambda w, _: w.second.run(x=X, labels=Y, epochs=2),
    "step of micro-batches": lambda w, _: w.accumulating.step(x=X, labels=Y),
    "apply_gradients": lambda w, _: _stage_by_stage(w.graph),
    "step of an optimizer": lambda w, _: ws.SGD(lr=0.1).step(
        w.net.head, {"weight": np.ones((1, WIDTH), "f"), "bias": Y[0]}
    ),
    "fit": lambda w, _: ws.fit(w.net, (X, Y), loss="mse", epochs=1, batch_size=8, progress=False),
}

READS: dict[str, Callable[[World, dict[str, Array]], tuple[object, object]]] = {
    "predict": lambda w, n: (w.net.predict(X), expected(n)),
    "predict of a part": lambda w, n: (w.net.body.predict(X), body(n)),
    "predict of another network": lambda w, n: (w.other.predict(body(n)), expected(n)),
    "predict of a step's session": lambda w, n: (w.alone.predict(x=X), expected(n)),
    "predict of a named module": lambda w, n: (w.beside.predict(w.net, X), expected(n)),
    "predict of a model's session": lambda w, n: (w.second.predict(x=X), expected(n)),
    "predict of a graph": lambda w, n: (w.graph.predict(x=X), expected(n)),
    "evaluate of a step's session": lambda w, n: (w.again.evaluate(x=X, y=Y).loss, np.mean((expected(n) - Y) ** 2)),
    "evaluate": lambda w, n: (w.net.evaluate(X, Y, loss="mse")["loss"], np.mean((expected(n) - Y) ** 2)),
    "get of a step's session": lambda w, n: (w.again.get("head.weight"), n["head.weight"]),
    "get of a step of several": lambda w, n: (w.beside.get("net.body.1.running_var"), n["body.1.running_var"]),
    "get of a model's session": lambda w, n: (w.fitted.get("fixed.bias"), n["fixed.bias"]),
    "state_dict of a part": lambda w, n: (w.net.body[0].state_dict()["weight"], n["body.0.weight"]),
    "a new copy": lambda w, n: (copy.deepcopy(w.net).state_dict()["head.bias"], n["head.bias"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whoever_changes_the_numbers_everyone_reads_them(world: World, change: str, tmp_path: Path) -> None:
    before = world.net.state_dict()
    CHANGES[change](world, tmp_path)
    numbers = world.net.state_dict()
    assert any(not np.array_equal(numbers[name], before[name]) for name in numbers), "nothing was changed"
    for way, read in READS.items():
        found, wanted = read(world, numbers)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6, err_msg=f"{change} -> {way}")
