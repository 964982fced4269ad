"""Elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.ir.types import boolean
from wholestep.interop.onnx.read.reading import dtype_name
from wholestep.interop.onnx.read.sizes import tensor_of
from wholestep.interop.onnx.read.table import Array, onnx_op
from wholestep.interop.torch import functions as t
from wholestep.nn import functional as nnf


def _of_one(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def row(x: Tensor) -> Tensor:
        return function(x)

    return row


def _of_two(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def row(x: Tensor, y: Tensor) -> Tensor:
        return function(*alike(x, y))

    return row


def alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert scalars to the dtype of the tensors that they are combined with; files store them in another dtype."""
    strong = [t.dtype for t in tensors if t.graph is not None] or [t.dtype for t in tensors]
    return tuple(t if t.graph is not None or t.dtype == strong[0] else t.astype(strong[0]) for t in tensors)


ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": ws.abs,
    "Exp": ws.exp,
    "Log": ws.log,
    "Sqrt": ws.sqrt,
    "Sin": ws.sin,
    "Cos": ws.cos,
    "Tan": t.tan,
    "Sinh": t.sinh,
    "Cosh": t.cosh,
    "Atan": ws.atan,
    "BitwiseNot": ws.bitwise_not,
    "Asin": ws.asin,
    "Acos": ws.acos,
    "Asinh": ws.asinh,
    "Acosh": ws.acosh,
    "Atanh": ws.atanh,
    "Erf": ws.erf,
    "Floor": ws.floor,
    "Ceil": ws.ceil,
    "Round": ws.round,
    "Neg": t.neg,
    "Relu": lambda x: ws.relu(x) if x.dtype.is_float else ws.maximum(x, 0),
    "Sigmoid": ws.sigmoid,
    "Tanh": ws.tanh,
    "Softplus": ws.softplus,
    "Softsign": nnf.softsign,
    "Reciprocal": ws.recip,
    "Sign": ws.sign,
    "Identity": t.identity,
    "HardSwish": ws.hardswish,
    "Mish": ws.mish,
    "Not": t.logical_not,
    "IsNaN": ws.isnan,
}
TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": t.add,
    "Sub": t.sub,
    "Mul": t.mul,
    "And": t.logical_and,
    "Or": t.logical_or,
    "Xor": ws.logical_xor,
    "BitwiseAnd": ws.bitwise_and,
    "BitwiseOr": ws.bitwise_or,
    "BitwiseXor": ws.bitwise_xor,
    "Equal": t.eq,
    "Less": t.lt,
    "Greater": t.gt,
    "LessOrEqual": t.le,
    "GreaterOrEqual": t.ge,
    "PRelu": lambda x, slope: ws.where(x < 0, x * slope, x),
}
for _name, _function in ONE.items():
    onnx_op(_name)(_of_one(_function))
for _name, _both in TWO.items():
    onnx_op(_name)(_of_two(_both))


@onnx_op("Where")
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return ws.where(condition, *alike(x, y))


@onnx_op("Div")
def div(x: Tensor, y: Tensor) -> Tensor:
    x, y = alike(x, y)
    return t.div(x, y, None if x.dtype.is_float else "trunc")


@onnx_op("BitShift")
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    return (ws.left_shift if direction == "LEFT" else ws.right_shift)(x, y)


@onnx_op("Mod")
def mod(x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    x, y = alike(x, y)
    return t.fmod(x, y) if fmod else ws.mod(x, y)


@onnx_op("Pow", raw=("y",))
def power(x: Tensor, y: Tensor | Array) -> Tensor:
    if isinstance(y, np.ndarray) and y.size == 1 and y.ndim <= x.ndim and x.dtype.is_float:
        return x ** float(y.reshape(-1)[0])
    exponent = as_tensor(y)
    if not x.dtype.is_float:
        return ws.round(x.astype("float64") ** exponent.astype("float64")).astype(x.dtype)
    return x ** exponent.astype(x.dtype)


def _of_many(function: Callable[[Tensor, Tensor], Tensor], mean: bool = False) -> Callable[..., Tensor]:
    def row(first: Tensor, *rest: Tensor) -> Tensor:
        total = reduce(function, alike(first, *rest))
        return total * (1.0 / (1 + len(rest))) if mean else total

    return row


onnx_op("Max")(_of_many(ws.maximum))
onnx_op("Min")(_of_many(ws.minimum))
onnx_op("Sum")(_of_many(t.add))
onnx_op("Mean")(_of_many(t.add, mean=True))


@onnx_op("Clip")
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    # ONNX computes min(max(x, low), high): where low > high the result is high.
    if low is None and high is None:
        return x
    return ws.clip(x, *(None if end is None else end.astype(x.dtype).reshape(()) for end in (low, high)))


@onnx_op("Cast", raw=("x",))
def cast(x: Tensor | Array, *, to: int) -> Tensor:
    return _as(_size_or(x), dtype_name(to))


def _size_or(x: Tensor | Array) -> Tensor:
    """A symbolic size as the float64 that it is in a step; any other value as a constant."""
    if isinstance(x, np.ndarray) and x.dtype == object and x.size == 1:
        return as_tensor(x.reshape(-1)[0]).reshape(x.shape)
    return tensor_of(x)


@onnx_op("CastLike")
def cast_like(x: Tensor, like: Tensor) -> Tensor:
    return _as(x, like.dtype.name)


def _as(x: Tensor, dtype: str) -> Tensor:
    return x != 0 if dtype == "bool" and x.dtype != boolean else x.astype(dtype)


def _of_slope(function: Callable[[Tensor, float], Tensor], default: float) -> Callable[..., Tensor]:
    def row(x: Tensor, *, alpha: float = default) -> Tensor:
        return function(x, alpha)

    return row


for _name, _activation, _default in (("LeakyRelu", ws.leaky_relu, 0.01), ("Elu", ws.elu, 1.0), ("Celu", nnf.celu, 1.0)):
    onnx_op(_name)(_of_slope(_activation, _default))


@onnx_op("Selu")
def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return ws.elu(x, alpha) * gamma


@onnx_op("Gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return ws.gelu(x, approximate)


@onnx_op("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return ws.where(x > alpha, x, 0.0)


@onnx_op("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return ws.minimum(ws.maximum(x * alpha + beta, 0.0), 1.0)


@onnx_op("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    kind, y = x.dtype, x if x.dtype.is_float else x.astype("float64")
    return ws.where(y < -lambd, y + bias, ws.where(y > lambd, y - bias, 0.0)).astype(kind)


@onnx_op("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return ws.silu(x) if alpha == 1 else x * ws.sigmoid(x * alpha)


@onnx_op("SwiGLU")
def swiglu(gate: Tensor, up: Tensor, *, alpha: float = 1.0) -> Tensor:
    return (ws.silu(gate) if alpha == 1 else gate * ws.sigmoid(gate * alpha)) * up


@onnx_op("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    if detect_negative and detect_positive:
        return ws.isinf(x)
    if not (detect_negative or detect_positive):
        return x != x if not x.dtype.is_float else ws.isinf(x) & (x != x)
    return x == (math.inf if detect_positive else -math.inf)
