"""Convolutions of every number of groups and channels against torch, many in one step: values and gradients."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wholestep as ws
from tests.support.compilers import QUICK

# A refused plan would hide which values are wrong.
NOT_MASKED = ws.CompileOptions(verify=False, compiler=QUICK)


@dataclass(frozen=True)
class Conv:
    """`groups` groups of `channels` channels, each giving `outputs`."""

    groups: int
    channels: int
    outputs: int
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    padding: int = 0
    size: tuple[int, int] = (4, 3)

    @property
    def options(self) -> dict[str, int]:
        return {"groups": self.groups, "stride": self.stride, "dilation": self.dilation, "padding": self.padding}


TABLE = {
    "float64": [
        *(Conv(2, c, 1 + (7 * c) % 47) for c in (3, 16, 17, 31, 47)),
        *(Conv(2, c, 1 + (11 * c) % 40, 3, padding=1) for c in (15, 18)),
        Conv(3, 17, 18, 3, 2, padding=1, size=(5, 6)),
        Conv(2, 5, 19, 3, dilation=2, padding=2),
        *(Conv(g, 1, m, 3, padding=1) for g, m in ((3, 2), (5, 17))),
        *(Conv(g, 1, 1, 3, 1 + g % 2, padding=1) for g in (3, 9, 40)),
    ],
    "float32": [*(Conv(2, c, c) for c in (18, 20, 24, 32)), Conv(16, 1, 1, 3, padding=1)],
}


@functools.cache
def values(c: Conv, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(c.groups * 1000 + c.channels)
    x = rng.normal(size=(rows, c.groups * c.channels, *c.size))
    return x, rng.normal(size=(c.groups * c.outputs, c.channels, c.kernel, c.kernel))


@functools.cache
def session(dtype: str) -> ws.Session:
    """The table as one step; inputs are multiplied by a parameter, so that they have a gradient."""
    g = ws.Graph()
    total = None
    for i, c in enumerate(TABLE[dtype]):
        x, w = values(c, 3)
        one = g.parameter(f"one{i}", x.shape[1:], init=1.0, dtype=dtype)
        weight = g.parameter(f"w{i}", w.shape, init=w, dtype=dtype)
        y = ws.conv2d(g.input(f"x{i}", ("batch", *x.shape[1:]), dtype) * one, weight, **c.options)
        y.keep(f"y{i}")
        term = (ws.tanh(y) * y).sum()
        total = term if total is None else total + term
    g.set_outputs({"loss": total})
    return ws.build_session(g, optimizer=ws.SGD(lr=1.0), batch_size=3, threads=2, options=NOT_MASKED)


@pytest.mark.parametrize("rows", [3, 1])
@pytest.mark.parametrize("dtype", TABLE)
def test_every_group_of_a_convolution_is_torchs(dtype: str, rows: int) -> None:
    s, close = session(dtype), 1e-11 if dtype == "float64" else 1e-4
    before = s.state_dict()
    given = {f"x{i}": values(c, 3)[0][:rows].astype(dtype) for i, c in enumerate(TABLE[dtype])}
    out, after = s.step(given).outputs, s.state_dict()
    s.load_state_dict(before)
    for i, c in enumerate(TABLE[dtype]):
        x, w = (torch.tensor(v) for v in values(c, 3))
        one = torch.ones_like(x[0]).requires_grad_()
        y = F.conv2d(x[:rows] * one, w.requires_grad_(), **c.options)
        (torch.tanh(y) * y).sum().backward()
        wanted = {f"one{i}": one.grad, f"w{i}": w.grad}
        found = {n: before[n] - after[n] for n in wanted}
        for part, want in {**wanted, f"y{i}": y.detach()}.items():
            scale = max(1.0, float(want.abs().max()))
            np.testing.assert_allclose(
                {**found, f"y{i}": out[f"y{i}"]}[part], want.numpy(), rtol=0, atol=close * scale, err_msg=f"{part}: {c}"
            )
