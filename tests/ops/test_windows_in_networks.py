"""Convolutions and pools with ops that are not batch-first: recurrent layers, scans, transposes, sums along the batch.

Each case is written once, in words that both packages have; many share a step.  The batch is symbolic, so that steps in
memory depend on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wholestep as ws
from tests.support.compilers import QUICK

Array = np.ndarray[Any, Any]
ROWS = 5


class Ours:
    conv2d, conv1d, tanh, relu, max_pool2d, attention = (
        ws.conv2d,
        ws.conv1d,
        ws.tanh,
        ws.relu,
        ws.max_pool2d,
        ws.attention,
    )
    layer_norm = staticmethod(lambda x: ws.layer_norm(x))
    cumsum = staticmethod(lambda x, axis: ws.cumsum(x, axis))
    cat = staticmethod(lambda xs, axis: ws.concat(xs, axis))

    @staticmethod
    def recurrent(x: Any, u: Any) -> Any:
        """h = tanh(x[t] + h u) over the first axis."""

        def cell(h: Any, now: Any) -> tuple[Any, Any]:
            h = ws.tanh(now + h @ u)
            return h, h

        return ws.scan(cell, x[0] * 0.0, x)[1]


class Torchs:
    conv2d, conv1d, tanh, relu, max_pool2d = F.conv2d, F.conv1d, torch.tanh, F.relu, F.max_pool2d
    attention = staticmethod(F.scaled_dot_product_attention)
    layer_norm = staticmethod(lambda x: F.layer_norm(x, x.shape[-1:]))
    cumsum = staticmethod(lambda x, axis: x.cumsum(axis))
    cat = staticmethod(lambda xs, axis: torch.cat(xs, axis))

    @staticmethod
    def recurrent(x: Any, u: Any) -> Any:
        h, out = x[0] * 0.0, []
        for now in x:
            h = torch.tanh(now + h @ u)
            out.append(h)
        return torch.stack(out)


def _time_first(x: Any) -> Any:
    return x.reshape(-1, 6, 12).permute(1, 0, 2)


def _pixels_first(x: Any, channels: int) -> Any:
    return x.reshape(-1, channels, x.shape[2] * x.shape[3]).permute(2, 0, 1)


# x is (batch, 6, 4, 3); weights are made of the shapes named here
Case = tuple[Callable[..., Any], dict[str, tuple[int, ...]]]
CASES: dict[str, Case] = {
    "flat, turned, back, then a convolution": (
        lambda o, x, w: o.conv2d(o.tanh(x.reshape(-1, 72).permute(1, 0)).permute(1, 0).reshape(-1, 6, 4, 3), w),
        {"w": (5, 6, 1, 1)},
    ),
    "a recurrent layer, then a convolution": (
        lambda o, x, u, w: o.conv1d(o.recurrent(_time_first(x), u).permute(1, 2, 0), w, padding=1),
        {"u": (12, 12), "w": (7, 12, 3)},
    ),
    "a convolution, then a recurrent layer": (
        lambda o, x, w, u: o.recurrent(_pixels_first(o.conv2d(x, w, padding=1), 5), u),
        {"w": (5, 6, 3, 3), "u": (5, 5)},
    ),
    "a convolution of tiles, then a recurrent layer": (
        lambda o, x, w, u: o.recurrent(_pixels_first(o.conv2d(o.cat([x, x, x], 1), w, padding=1), 17), u),
        {"w": (17, 18, 3, 3), "u": (17, 17)},
    ),
    "a pool, then a recurrent layer": (
        lambda o, x, u: o.recurrent(_pixels_first(o.max_pool2d(x, 2), 6), u),
        {"u": (6, 6)},
    ),
    "a recurrent layer, then a pool": (
        lambda o, x, u: o.max_pool2d(o.recurrent(_time_first(x), u).permute(1, 0, 2).reshape(-1, 6, 4, 3), 2, 1),
        {"u": (12, 12)},
    ),
    "a convolution and a pool, then a recurrent layer": (
        lambda o, x, w, u: o.recurrent(_pixels_first(o.max_pool2d(o.conv2d(x, w, padding=1), 2), 5), u),
        {"w": (5, 6, 3, 3), "u": (5, 5)},
    ),
    "sums along the batch, then a convolution": (
        lambda o, x, w: o.conv2d(o.cumsum(x, 0), w),
        {"w": (5, 6, 2, 3)},
    ),
    "a convolution, then sums along the batch": (
        lambda o, x, w: o.cumsum(o.conv2d(x, w, padding=1), 0),
        {"w": (5, 6, 3, 3)},
    ),
    "a weight made of the batch": (
        lambda o, x, w: o.conv2d(o.tanh(x), (o.tanh(x) * w).permute(1, 2, 3, 0).sum(-1).reshape(3, 6, 2, 2)),
        {"w": (6, 4, 3)},
    ),
    "attention, turned": (
        lambda o, x, w: o.attention(x, x, x).permute(0, 1, 3, 2) @ w,
        {"w": (4, 5)},
    ),
    "attention, turned, into a recurrent layer": (
        lambda o, x, u: o.recurrent(o.attention(x[:, 0], x[:, 1], x[:, 2]).permute(2, 0, 1), u),
        {"u": (4, 4)},
    ),
    "attention of what is turned": (
        lambda o, x, w: o.attention(x.permute(0, 1, 3, 2), x.permute(0, 1, 3, 2), (x * w).permute(0, 1, 3, 2)),
        {"w": (6, 4, 3)},
    ),
    "attention, then a convolution over time": (
        lambda o, x, w: o.conv1d(o.attention(x[:, 0], x[:, 1], x[:, 2]).permute(0, 2, 1), w),
        {"w": (5, 3, 2)},
    ),
    "a norm, flat, then a product": (
        lambda o, x, w, v: o.layer_norm(x.reshape(-1, 4, 18) @ w).reshape(-1, 64) @ v,
        {"w": (18, 16), "v": (64, 3)},
    ),
    "a norm of 8, flat, then a product": (
        lambda o, x, w, v: o.layer_norm(x.reshape(-1, 4, 18) @ w).reshape(-1, 32) @ v,
        {"w": (18, 8), "v": (32, 9)},
    ),
    "a pool of 1": (lambda o, x, w: o.max_pool2d(o.conv2d(x, w), 1), {"w": (5, 6, 2, 2)}),
    "a pool of 1 with steps": (lambda o, x, w: o.max_pool2d(o.conv2d(x, w, padding=1), 1, 2), {"w": (5, 6, 3, 3)}),
}  # fmt: skip


def values(name: str) -> dict[str, Array]:
    rng = np.random.default_rng(sum(map(ord, name)))
    return {n: rng.normal(size=shape) / 3 for n, shape in CASES[name][1].items()}


X = np.random.default_rng(0).normal(size=(ROWS, 6, 4, 3))


@functools.cache
def session(threads: int) -> ws.Session:
    """All cases in one step at lr 1: what a step changes is the gradient."""
    g, terms = ws.Graph(), []
    x = g.input("x", ("batch", 6, 4, 3), "float64")
    for i, (name, (case, shapes)) in enumerate(CASES.items()):
        start = values(name)
        one = g.parameter(f"{i}/one", (6, 4, 3), init=1.0, dtype="float64")
        weights = [g.parameter(f"{i}/{n}", shapes[n], init=start[n], dtype="float64") for n in shapes]
        y = case(Ours, x * one, *weights)
        y.keep(name)
        terms.append((ws.tanh(y) * y).sum())
    g.set_outputs({"loss": functools.reduce(ws.Tensor.__add__, terms)})
    # A refused plan would hide which values are wrong.
    options = ws.CompileOptions(verify=False, compiler=QUICK)
    return ws.build_session(g, optimizer=ws.SGD(lr=1.0), batch_size=ROWS, threads=threads, options=options)


@functools.cache
def stepped(rows: int, threads: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Values, and gradients under the names of the parameters."""
    s = session(threads)
    before = s.state_dict()
    out, after = s.step({"x": X[:rows]}).outputs, s.state_dict()
    s.load_state_dict(before)
    return {n: out[n] for n in CASES}, {n: before[n] - after[n] for n in before}


@pytest.mark.parametrize("rows", [ROWS, 2])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_torchs(name: str, rows: int) -> None:
    case, _ = CASES[name]
    number = list(CASES).index(name)
    given = {n: torch.tensor(v, requires_grad=True) for n, v in {"one": np.ones(X.shape[1:]), **values(name)}.items()}
    one, *weights = given.values()
    y = case(Torchs, torch.tensor(X[:rows]) * one, *weights)
    (torch.tanh(y) * y).sum().backward()
    for threads in (1, 2):
        out, gradients = stepped(rows, threads)
        np.testing.assert_allclose(out[name], y.detach().numpy(), rtol=0, atol=1e-11)
        for n, t in given.items():
            assert t.grad is not None
            scale = max(1.0, float(t.grad.abs().max()))
            np.testing.assert_allclose(
                gradients[f"{number}/{n}"], t.grad.numpy(), rtol=0, atol=1e-11 * scale, err_msg=n
            )


# -- as people write them ----------------------------------------------------------------------------------------------


class BeforeLSTM(ws.nn.Module):
    def __init__(self) -> None:
        self.conv, self.lstm, self.head = ws.nn.Conv2d(2, 5, 3), ws.nn.LSTM(5, 4, batch_first=True), ws.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        h = self.conv(x)
        return self.head(self.lstm(h.reshape(h.shape[0], 5, -1).permute(0, 2, 1))[0][:, -1])


class TorchBeforeLSTM(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lstm = torch.nn.Conv2d(2, 5, 3), torch.nn.LSTM(5, 4, batch_first=True)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        h = self.conv(x)
        return self.head(self.lstm(h.reshape(h.shape[0], 5, -1).permute(0, 2, 1))[0][:, -1])


def _stack(nn: Any, layers: Callable[[Any], list[Any]]) -> Any:
    return nn.Sequential(*layers(nn))


NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[int, ...]]] = {
    "a convolution before an LSTM": (BeforeLSTM, TorchBeforeLSTM, (2, 5, 4)),
    **{
        name: (functools.partial(_stack, ws.nn, layers), functools.partial(_stack, torch.nn, layers), shape)
        for name, layers, shape in (
            (
                "a norm before flatten",
                lambda nn: [nn.Linear(2, 16), nn.LayerNorm(16), nn.Flatten(), nn.Linear(64, 2)],
                (4, 2),
            ),
            (
                "a pool of 1",
                lambda nn: [nn.Conv2d(2, 5, 2), nn.MaxPool2d(1), nn.ReLU(), nn.Flatten(), nn.Linear(30, 2)],
                (2, 3, 4),
            ),
        )
    },
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_train_as_torchs_do(name: str) -> None:
    make, make_torch, shape = NETWORKS[name]
    model, twin = make(), make_torch()
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(7, *shape)).astype("float32"), rng.normal(size=(7, 2)).astype("float32")
    twin.load_state_dict({n: torch.tensor(np.asarray(v)) for n, v in model.state_dict().items()})
    ws.fit(model, (x, y), loss="mse", optimizer=ws.SGD(lr=0.1), batch_size=4, epochs=3, shuffle=False, progress=False)
    descent = torch.optim.SGD(twin.parameters(), 0.1)
    for _ in range(3):
        for rows in (slice(0, 4), slice(4, 7)):
            descent.zero_grad()
            F.mse_loss(twin(torch.tensor(x[rows])), torch.tensor(y[rows])).backward()
            descent.step()
    for n, v in twin.state_dict().items():
        np.testing.assert_allclose(np.asarray(model.state_dict()[n]), v.numpy(), rtol=0, atol=2e-6, err_msg=n)
