"""Whole networks against torch: twenty steps at lr 1e-3, weights within 1e-4 of their scale (1e-10 in float64)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wholestep as ws
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter

Array = np.ndarray[Any, Any]
TOLERANCE = {"float32": 1e-4, "float64": 1e-10}
STEPS = 20
LR = 1e-3


@dataclass(frozen=True)
class Network:
    """Parameters, inputs, and the loss of both, once in our words and once in torch's."""

    parameters: dict[str, tuple[int, ...]]
    inputs: dict[str, tuple[tuple[Any, ...], str]]  # shape, and dtype or "labels"
    ours: Callable[..., ws.Tensor]
    theirs: Callable[..., torch.Tensor]
    capacity: dict[str, int] = field(default_factory=lambda: {"batch": 16})

    def graph(self, dtype: str) -> ws.Graph:
        g = ws.Graph()
        given = {n: g.input(n, s, "int32" if kind == "labels" else dtype) for n, (s, kind) in self.inputs.items()}
        params = {n: g.parameter(n, shape, init=self.start(n), dtype=dtype) for n, shape in self.parameters.items()}
        g.set_outputs({"loss": self.ours(**given, **params)})
        return g

    def start(self, name: str) -> Array:
        shape = self.parameters[name]
        rng = np.random.default_rng(sum(map(ord, name)))
        return rng.normal(size=shape) / np.sqrt(shape[0] if len(shape) > 1 else 10.0)

    def batch(self, step: int, dtype: str) -> dict[str, Array]:
        """Every third batch is full, the others are smaller along each symbolic dimension."""
        rng = np.random.default_rng(step)
        sizes = {s: n if step % 3 == 0 else int(rng.integers(1, n)) for s, n in self.capacity.items()}
        shapes = {n: [sizes.get(e, e) for e in shape] for n, (shape, _) in self.inputs.items()}
        return {
            n: rng.integers(0, 5, shapes[n]).astype(np.int32)
            if kind == "labels"
            else rng.normal(size=shapes[n]).astype(dtype)
            for n, (_, kind) in self.inputs.items()
        }


OPTIMIZERS = {
    "sgd": (ws.SGD(LR), lambda p: torch.optim.SGD(p, LR)),
    "momentum": (ws.SGD(LR, momentum=0.9), lambda p: torch.optim.SGD(p, LR, momentum=0.9)),
    "adam": (ws.Adam(LR), lambda p: torch.optim.Adam(p, LR)),
}


def check(network: Network, optimizer: str, dtype: str) -> None:
    ours, theirs = OPTIMIZERS[optimizer]
    session = ws.build_session(network.graph(dtype), optimizer=ours, capacity=network.capacity)
    params = {n: torch.tensor(session.get(n), requires_grad=True) for n in network.parameters}
    twin, compiles = theirs(params.values()), compile_counter.value
    for step in range(STEPS):
        batch = network.batch(step, dtype)
        loss = network.theirs(**{n: torch.tensor(a) for n, a in batch.items()}, **params)
        twin.zero_grad()
        loss.backward()
        twin.step()
        assert session.step(**batch).loss == pytest.approx(loss.item(), rel=TOLERANCE[dtype], abs=TOLERANCE[dtype])
    assert compile_counter.value == compiles, "a partial batch recompiled"
    for name, p in params.items():
        expected = p.detach().numpy()
        worst = np.abs(session.get(name) - expected).max()
        moved = np.abs(expected - network.start(name)).max()
        assert worst <= TOLERANCE[dtype] * np.abs(expected).max(), name
        # 1e-4 of the weight alone would also pass a network that does not learn: what moved must be right too.
        assert worst <= 0.01 * moved, name


# -- the networks ------------------------------------------------------------------------------------------------------


def relu_classifier(x, labels, w1, b1, w2, b2):
    return ws.losses.cross_entropy(ws.relu(x @ w1 + b1) @ w2 + b2, labels)


def relu_classifier_of_torch(x, labels, w1, b1, w2, b2):
    return F.cross_entropy(torch.relu(x @ w1 + b1) @ w2 + b2, labels.long())


CLASSIFIER = Network(
    {"w1": (20, 33), "b1": (33,), "w2": (33, 5), "b2": (5,)},
    {"x": (("batch", 20), "float"), "labels": (("batch",), "labels")},
    relu_classifier,
    relu_classifier_of_torch,
)


def regression(x, y, w1, b1, w2, b2, w3):
    p = ws.gelu(ws.tanh(x @ w1 + b1) @ w2 + b2) @ w3
    return ((p - y) ** 2).mean()


def regression_of_torch(x, y, w1, b1, w2, b2, w3):
    p = F.gelu(torch.tanh(x @ w1 + b1) @ w2 + b2) @ w3
    return ((p - y) ** 2).mean()


REGRESSION = Network(
    {"w1": (12, 40), "b1": (40,), "w2": (40, 17), "b2": (17,), "w3": (17, 3)},
    {"x": (("batch", 12), "float"), "y": (("batch", 3), "float")},
    regression,
    regression_of_torch,
)


def series(x, y, w, u, b, v):
    """The same layers at every time step, and a summary of the whole series added to each."""
    hidden = ws.silu(x @ w + b)  # (batch, time, 19)
    context = hidden.mean(1, keepdims=True) @ u  # (batch, 1, 19)
    return (((hidden + context) @ v - y) ** 2).mean()


def series_of_torch(x, y, w, u, b, v):
    hidden = F.silu(x @ w + b)
    context = hidden.mean(1, keepdim=True) @ u
    return (((hidden + context) @ v - y) ** 2).mean()


SERIES = Network(
    {"w": (7, 19), "u": (19, 19), "b": (19,), "v": (19, 2)},
    {"x": (("batch", "time", 7), "float"), "y": (("batch", "time", 2), "float")},
    series,
    series_of_torch,
    {"batch": 8, "time": 6},
)


def shared(x, y, w, b):
    """One layer used three times, and once transposed."""
    hidden = x
    for _ in range(3):
        hidden = ws.tanh(hidden @ w + b)
    return ws.losses.huber_loss(hidden @ w.T, y)


def shared_of_torch(x, y, w, b):
    hidden = x
    for _ in range(3):
        hidden = torch.tanh(hidden @ w + b)
    return F.huber_loss(hidden @ w.T, y)


SHARED = Network(
    {"w": (18, 18), "b": (18,)}, {"x": (("batch", 18), "float"), "y": (("batch", 18), "float")}, shared, shared_of_torch
)


def normed(x, labels, w1, gain, shift, w2):
    """Layer norm written by hand, weights as torch stores them: (out, in)."""
    z = x @ w1.T
    centred = z - z.mean(-1, keepdims=True)
    z = centred / ((centred**2).mean(-1, keepdims=True) + 1e-5).sqrt() * (1.0 + gain) + shift
    return ws.losses.cross_entropy(ws.relu(z) @ w2.T, labels)


def normed_of_torch(x, labels, w1, gain, shift, w2):
    z = F.layer_norm(x @ w1.T, (24,), 1.0 + gain, shift)
    return F.cross_entropy(torch.relu(z) @ w2.T, labels.long())


NORMED = Network(
    {"w1": (24, 20), "gain": (24,), "shift": (24,), "w2": (5, 24)},
    {"x": (("batch", 20), "float"), "labels": (("batch",), "labels")},
    normed,
    normed_of_torch,
)


def tied(tokens, labels, table, w, b):
    """The embedding is the head too: its gradient is a scatter and a product; every step sees the one before it."""
    x = table[tokens]  # (batch, time, 18)
    x = x + ws.tanh(ws.pad(x[:, :-1], [(0, 0), (1, 0), (0, 0)]) @ w + b)
    return ws.losses.cross_entropy(x @ table.T, labels)


def tied_of_torch(tokens, labels, table, w, b):
    x = table[tokens.long()]
    x = x + torch.tanh(F.pad(x[:, :-1], (0, 0, 1, 0)) @ w + b)
    return F.cross_entropy((x @ table.T).reshape(-1, 5), labels.reshape(-1).long())


TIED = Network(
    {"table": (5, 18), "w": (18, 18), "b": (18,)},
    {"tokens": (("batch", "time"), "labels"), "labels": (("batch", "time"), "labels")},
    tied,
    tied_of_torch,
    {"batch": 8, "time": 6},
)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_classifier(optimizer: str) -> None:
    check(CLASSIFIER, optimizer, "float32")


@pytest.mark.parametrize(("optimizer", "dtype"), [("adam", "float32"), ("momentum", "float64")])
def test_a_regression_with_a_mean_written_by_hand(optimizer: str, dtype: str) -> None:
    check(REGRESSION, optimizer, dtype)


@pytest.mark.parametrize(("optimizer", "dtype"), [("adam", "float32"), ("adam", "float64"), ("sgd", "float32")])
def test_two_symbolic_dimensions(optimizer: str, dtype: str) -> None:
    check(SERIES, optimizer, dtype)


@pytest.mark.parametrize(("optimizer", "dtype"), [("adam", "float32"), ("sgd", "float64")])
def test_shared_weights(optimizer: str, dtype: str) -> None:
    check(SHARED, optimizer, dtype)


@pytest.mark.parametrize(("optimizer", "dtype"), [("momentum", "float32"), ("adam", "float64")])
def test_layer_norm_by_hand_and_transposed_weights(optimizer: str, dtype: str) -> None:
    check(NORMED, optimizer, dtype)


@pytest.mark.parametrize(("optimizer", "dtype"), [("adam", "float32"), ("momentum", "float64")])
def test_an_embedding_tied_to_the_head(optimizer: str, dtype: str) -> None:
    check(TIED, optimizer, dtype)
