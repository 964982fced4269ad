"""Tensors created from sizes alone, and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row


def full(r: AtenRecorder, value: Any) -> Any:
    """A constant tensor; if its size is known, a torch tensor, so that constants computed from it stay constants."""
    import torch

    if isinstance(value, Tensor):
        return r.tensor(value, r.dtype).expand(*r.shape) if r.shape else r.tensor(value, r.dtype)
    if isinstance(value, torch.Tensor):
        value = value.item()
    shape = r.shape
    if all(isinstance(e, int) for e in shape) and isinstance(value, bool | int | float):
        return torch.full(shape, value, dtype=r.result.dtype)
    return r.tensor(r.operand(value)).astype(r.dtype).expand(*shape)


row(
    "zeros_like", "zeros", "new_zeros", "empty_like", "empty", "new_empty", "empty_strided", "new_empty_strided",
    "empty_permuted",
)(lambda r, *_, **__: full(r, 0))  # fmt: skip
row("ones_like", "ones", "new_ones")(lambda r, *_, **__: full(r, 1))
row("full_like", "full", "fill")(lambda r, _, value, **__: full(r, value))
row("new_full")(lambda r, _, __, value, **___: full(r, value))
row("scalar_tensor")(lambda r, value, **_: r.tensor(value, r.dtype))


@row("arange")
def _arange(r: AtenRecorder, *args: Any, **_: Any) -> Tensor:
    numbers = [a for a in args if not isinstance(a, str)]
    start, step = (0, 1) if len(numbers) == 1 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
    whole = ws.arange(r.shape[0], dtype="int64").astype(r.dtype)
    whole = whole if step == 1 else whole * r.operand(step)
    return whole if isinstance(start, int) and start == 0 else whole + r.operand(start)


@row("linspace")
def _linspace(r: AtenRecorder, start: Any, end: Any, *_: Any, **__: Any) -> Tensor:
    steps = r.fixed(r.shape[0], "the number of steps")
    shares = r.graph.constant(np.linspace(0.0, 1.0, steps, dtype=r.dtype))
    first = r.tensor(start, r.dtype)
    return first + (r.tensor(end, r.dtype) - first) * shares


@row("eye")
def _eye(r: AtenRecorder, *_: Any, **__: Any) -> Tensor:
    rows, columns = r.shape
    return ws.eye(rows, columns, r.dtype)


# -- random numbers: each site draws its own, by the path of its module -----------------------------------------------


def _dtype(r: AtenRecorder) -> str:
    return "float64" if r.dtype == "float64" else "float32"


def _uniform(r: AtenRecorder) -> Tensor:
    return ws.random_uniform(r.graph, r.shape, dtype=_dtype(r)).astype(r.dtype)


def _normal(r: AtenRecorder) -> Tensor:
    return ws.random_normal(r.graph, r.shape, dtype=_dtype(r)).astype(r.dtype)


@row("native_dropout")
def _native_dropout(r: AtenRecorder, x: Any, p: float, train: Any = True) -> tuple[Any, Any]:
    if any(u.args[1] == 1 for u in r.node.users):
        r.refuse("gives its mask, which is not computed here")
    return (_drop(r, r.tensor(x), float(p)) if train is not False else r.tensor(x)), None


def _drop(r: AtenRecorder, x: Tensor, p: float) -> Tensor:
    """Dropout that `eval()` does not switch off, F.dropout(x, p) without `training=`: `predict` drops elements too."""
    if r.mode == "train":
        return ws.dropout(x, p)
    draw = ws.random_uniform(r.graph, x.shape)
    return ws.where(draw >= p, x / (1.0 - p) if p < 1.0 else x, 0.0)


@row("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", whole=False)
def _dropout(r: AtenRecorder, x: Any, p: float, train: bool) -> Tensor:
    if train and str(r.node.target) != "aten.dropout.default":
        r.refuse("drops in another way than element by element")
    return _drop(r, r.tensor(x), float(p)) if train else r.tensor(x)


@row("rand", "rand_like", "uniform", refuses="bounds of `uniform` that depend on the data")
def _rand(r: AtenRecorder, *args: Any, **named: Any) -> Any:
    numbers = [a for a in args if isinstance(a, int | float)] if "uniform" in str(r.node.target) else []
    low, high = numbers if len(numbers) == 2 else (0.0, 1.0)
    low, high = named.get("from", low), named.get("to", high)
    draw = _uniform(r)
    return draw if (low, high) == (0.0, 1.0) else draw * float(high - low) + float(low)


@row("randn", "randn_like", "normal_functional")
def _randn(r: AtenRecorder, *args: Any, **_: Any) -> Any:
    numbers = [a for a in args if isinstance(a, int | float)] if "normal" in str(r.node.target) else []
    mean, std = numbers if len(numbers) == 2 else (0.0, 1.0)
    return _normal(r) * float(std) + float(mean) if numbers else _normal(r)


@row("normal")
def _normals(r: AtenRecorder, mean: Any = 0.0, std: Any = 1.0, *_: Any, **__: Any) -> Any:
    return _normal(r) * r.operand(std) + r.operand(mean)


@row("bernoulli", refuses="nothing")
def _bernoulli(r: AtenRecorder, x: Any, p: Any = None, **_: Any) -> Any:
    if isinstance(p, int | float) and float(p) in (0.0, 1.0):
        return full(r, float(p))
    draw = ws.random_uniform(r.graph, r.shape, dtype=_dtype(r))
    return (draw < (r.tensor(x, _dtype(r)) if p is None else r.operand(p, _dtype(r)))).astype(r.dtype)


@row("exponential")
def _exponential(r: AtenRecorder, x: Any, rate: float = 1.0, **_: Any) -> Any:
    return ws.log1p(-_uniform(r)) * (-1.0 / float(rate))


@row("randint", "randint_like")
def _randint(r: AtenRecorder, *args: Any, **_: Any) -> Any:
    numbers = [a for a in args if isinstance(a, int)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    return ws.random_integers(r.graph, r.shape, low, high, "int64").astype(r.dtype)


@row("randperm")
def _randperm(r: AtenRecorder, *_: Any, **__: Any) -> Any:
    return ws.argsort(ws.random_uniform(r.graph, r.shape)).astype(r.dtype)


@row("multinomial", refuses="several draws without replacement")
def _multinomial(r: AtenRecorder, x: Any, count: int, replacement: bool = False, **_: Any) -> Any:
    if count != 1:
        r.refuse("draws several at once")
    chances = r.tensor(x)
    noise = ws.random_uniform(r.graph, chances.shape, dtype=_dtype(r))
    score = ws.log(chances) - ws.log(-ws.log(noise + 1e-20) + 1e-20)
    return score.argmax(-1, keepdims=True).astype("int64")


@row("rrelu_with_noise_functional", "rrelu_with_noise")
def _rrelu(
    r: AtenRecorder, x: Any, noise: Any, low: float = 0.125, high: float = 1 / 3, training: bool = False, *_: Any
) -> Any:
    t = r.tensor(x)
    slope = _uniform(r) * float(high - low) + float(low) if training else (float(low) + float(high)) / 2.0
    out = ws.where(t >= 0.0, t, t * slope)
    return (out, None) if isinstance(r.meta, tuple | list) else out
