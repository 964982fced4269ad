"""Operators on each element."""

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
from wholestep.interop.onnx.read.table import Array, NodeContext, onnx_op


def _of_one(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def row(x: Tensor) -> Tensor:
        return function(x)

    return row


def _of_two(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def row(x: Tensor, y: Tensor) -> Tensor:
        return function(*alike(x, y))

    return row


def alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Single numbers in the dtype of the tensors that they meet; a file gives them one of their own."""
    strong = [t.dtype for t in tensors if t.graph is not None] or [t.dtype for t in tensors]
    return tuple(t if t.graph is not None or t.dtype == strong[0] else t.astype(strong[0]) for t in tensors)


def number_like(value: object, x: Tensor) -> Tensor:
    """One number as x has them."""
    return as_tensor(x.dtype.numpy.type(value))


def _bisect(a: Tensor, b: Tensor) -> Tensor:
    return (a + b) * 0.5


ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": ws.abs,
    "Exp": ws.exp,
    "Log": ws.log,
    "Sqrt": ws.sqrt,
    "Sin": ws.sin,
    "Cos": ws.cos,
    "Tan": lambda x: ws.sin(x) / ws.cos(x),
    "Sinh": lambda x: (ws.expm1(x) - ws.expm1(-x)) * 0.5,
    "Cosh": lambda x: (ws.exp(x) + ws.exp(-x)) * 0.5,
    "Atan": ws.atan,
    "BitwiseNot": ws.bitwise_not,
    "Asinh": lambda x: ws.sign(x) * ws.log1p(ws.abs(x) + x * x / (1.0 + ws.sqrt(x * x + 1.0))),
    "Acosh": lambda x: ws.log(x + ws.sqrt(x * x - 1.0)),
    "Atanh": lambda x: (ws.log1p(x) - ws.log1p(-x)) * 0.5,
    "Erf": ws.erf,
    "Floor": ws.floor,
    "Ceil": ws.ceil,
    "Round": ws.round,
    "Neg": lambda x: -x,
    "Relu": lambda x: ws.relu(x) if x.dtype.is_float else ws.maximum(x, 0),
    "Sigmoid": ws.sigmoid,
    "Tanh": ws.tanh,
    "Softplus": ws.softplus,
    "Softsign": lambda x: x / (1.0 + ws.abs(x)),
    "Reciprocal": ws.recip,
    "Sign": ws.sign,
    "Identity": lambda x: x,
    "HardSwish": ws.hardswish,
    "Mish": ws.mish,
    "Not": lambda x: ~x,
    "IsNaN": ws.isnan,
}
TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "And": lambda x, y: x & y,
    "Or": lambda x, y: x | y,
    "Xor": ws.logical_xor,
    "BitwiseAnd": ws.bitwise_and,
    "BitwiseOr": ws.bitwise_or,
    "BitwiseXor": ws.bitwise_xor,
    "Equal": lambda x, y: x == y,
    "Less": lambda x, y: x < y,
    "Greater": lambda x, y: x > y,
    "LessOrEqual": lambda x, y: x <= y,
    "GreaterOrEqual": lambda x, y: x >= y,
    "PRelu": lambda x, slope: ws.where(x < 0, x * slope, x),
}
for _name, _function in ONE.items():
    onnx_op(_name)(_of_one(_function))
for _name, _both in TWO.items():
    onnx_op(_name)(_of_two(_both))


@onnx_op("Asin", "Acos")
def inverse(x: Tensor, *, node: NodeContext) -> Tensor:
    # asin(x) = 2·atan(x / (1 + √(1 - x²))), which is finite at the ends too
    angle = ws.atan(x / (1.0 + ws.sqrt((1.0 - x) * (1.0 + x)))) * 2.0
    return angle if node.op == "Asin" else math.pi / 2 - angle


@onnx_op("Where")
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return ws.where(condition, *alike(x, y))


@onnx_op("Div")
def div(x: Tensor, y: Tensor) -> Tensor:
    x, y = alike(x, y)
    if x.dtype.is_float:
        return x / y
    quotient = x.astype("float64") / y.astype("float64")  # whole numbers are divided towards 0
    return ws.trunc(quotient).astype(x.dtype)


@onnx_op("BitShift")
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    return (ws.left_shift if direction == "LEFT" else ws.right_shift)(x, y)


@onnx_op("Mod")
def mod(x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    x, y = alike(x, y)
    if not fmod:
        return ws.mod(x, y)
    rest = ws.mod(ws.abs(x), ws.abs(y))
    return ws.where(x < 0, -rest, rest)


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
onnx_op("Sum")(_of_many(lambda a, b: a + b))
onnx_op("Mean")(_of_many(lambda a, b: a + b, mean=True))


@onnx_op("Clip")
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    # ONNX takes the larger of x and `low`, then the smaller of that and `high`: where low > high the result is high.
    if low is None and high is None:
        return x
    return ws.clip(x, *(None if end is None else end.astype(x.dtype).reshape(()) for end in (low, high)))


@onnx_op("Cast", raw=("x",))
def cast(x: Tensor | Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return _as(_size_or(x), dtype_name(to))


def _size_or(x: Tensor | Array) -> Tensor:
    """One size without a number yet as the float64 that it is in a step; what else is known as a constant."""
    if isinstance(x, np.ndarray) and x.dtype == object and x.size == 1:
        return as_tensor(x.reshape(-1)[0]).reshape(x.shape)
    return tensor_of(x)


@onnx_op("CastLike")
def cast_like(x: Tensor, like: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return _as(x, like.dtype.name)


def _as(x: Tensor, dtype: str) -> Tensor:
    return x != 0 if dtype == "bool" and x.dtype != boolean else x.astype(dtype)


@onnx_op("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return ws.leaky_relu(x, alpha)


@onnx_op("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return ws.elu(x, alpha)


@onnx_op("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return ws.where(x > 0, x, ws.expm1(ws.minimum(x, 0.0) * (1.0 / alpha)) * alpha)


@onnx_op("Selu")
def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return ws.elu(x, alpha) * gamma


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


@onnx_op("Gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return ws.gelu(x, approximate)


@onnx_op("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return _swish(x, alpha)


def _swish(x: Tensor, alpha: float) -> Tensor:
    return ws.silu(x) if alpha == 1 else x * ws.sigmoid(x * alpha)


@onnx_op("SwiGLU")
def swiglu(gate: Tensor, up: Tensor, *, alpha: float = 1.0) -> Tensor:
    return _swish(gate, alpha) * up


@onnx_op("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    if detect_negative and detect_positive:
        return ws.isinf(x)
    if not (detect_negative or detect_positive):
        return x != x if not x.dtype.is_float else ws.isinf(x) & (x != x)
    return x == (math.inf if detect_positive else -math.inf)
