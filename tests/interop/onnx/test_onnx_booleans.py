"""Booleans in exported files: onnxruntime has no Where and no order of them, and other operators must load too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as runtime
import pytest
import torch

import wholestep as ws

X = np.random.default_rng(0).normal(size=(4, 6)).astype("f4")

EXPRESSIONS: dict[str, Callable[[ws.Tensor, ws.Tensor], Any]] = {
    "where": lambda m, n: ws.where(m, n, ~m),
    "where, a constant": lambda m, n: ws.where(m, True, n),
    "where, one row": lambda m, n: ws.where(m, n[:1], n),
    "less": lambda m, n: m < n,
    "less_equal": lambda m, n: m <= n,
    "less, one row": lambda m, n: m[:1] < n,
    "equal": lambda m, n: m == n,
    "not_equal": lambda m, n: m != n,
    "and": lambda m, n: m & n,
    "or": lambda m, n: m | n,
    "xor": lambda m, n: m ^ n,
    "not": lambda m, n: ~m,
    "reshape": lambda m, n: m.reshape(m.shape[0], 2, 3),
    "permute": lambda m, n: m.reshape(m.shape[0], 2, 3).transpose(1, 2),
    "slice": lambda m, n: m[:, 1:5:2],
    "flip": lambda m, n: ws.flip(m, 1),
    "concatenate": lambda m, n: ws.concatenate([m, n], 1),
    "stack": lambda m, n: ws.stack([m, n], 1),
    "pad": lambda m, n: ws.pad(m, ((0, 0), (1, 2))),
    "roll": lambda m, n: ws.roll(m, 1, 1),
    "repeat": lambda m, n: ws.repeat(m, 2, 1),
    "tile": lambda m, n: ws.tile(m, (1, 2)),
    "take": lambda m, n: ws.take(m, ws.arange(3), 1),
    "any": lambda m, n: ws.any(m, 1),
    "all": lambda m, n: ws.all(m, 1),
    "tril": lambda m, n: ws.tril(m),
    "expand": lambda m, n: ws.broadcast_to(m[:, :1], m.shape),
    "split": lambda m, n: ws.split(m, 2, 1)[1],
    **{f"cast, {t}": lambda m, n, t=t: m.astype(t) for t in ("int32", "int64", "uint8", "float32", "float64")},
}


class Masks(ws.nn.Module):
    def __init__(self, expression: Callable[[ws.Tensor, ws.Tensor], Any]) -> None:
        self.expression = expression

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        out: ws.Tensor = self.expression(x > 0.0, x > 0.5)
        return out


def in_onnxruntime(path: Path, x: np.ndarray[Any, Any]) -> Any:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_onnxruntime_loads_and_computes_every_expression_of_booleans(tmp_path: Path, name: str) -> None:
    net = Masks(EXPRESSIONS[name])
    ws.export_onnx(net, tmp_path / "net.onnx", example=X)
    np.testing.assert_array_equal(in_onnxruntime(tmp_path / "net.onnx", X), net.predict(X, device="reference"))
    back = ws.from_onnx(tmp_path / "net.onnx").predict(X, device="reference")
    np.testing.assert_array_equal(back, net.predict(X, device="reference"))


class WritesIntoAMask(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        mask = x > 0
        mask[0] = True
        return torch.where(mask, x, -x)


def test_a_mask_that_a_torch_module_writes_into_loads_in_onnxruntime(tmp_path: Path) -> None:
    module = WritesIntoAMask()
    ws.export_onnx(ws.from_torch(module, torch.from_numpy(X)), tmp_path / "net.onnx", example=X)
    np.testing.assert_array_equal(in_onnxruntime(tmp_path / "net.onnx", X), module(torch.from_numpy(X)).numpy())
