"""Activations composed of other functions; those that are a single op are in `primitives`."""

from __future__ import annotations

from wholestep.compiler.frontend.functions.elementwise import clip
from wholestep.compiler.frontend.functions.primitives import abs, expm1, sigmoid, silu, softmax, stop_gradient, tanh
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import ShapeError

__all__ = [
    "celu", "elu", "glu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish",
    "prelu", "relu6", "selu", "softmin", "softplus", "softshrink", "softsign", "swiglu", "tanhshrink", "threshold",
]  # fmt: skip


def leaky_relu(x: Operand, slope: float = 0.01) -> Tensor:
    """x if x > 0, else slope · x; the gradient at 0 is the slope.  Example: `ws.leaky_relu(-1.0)` is -0.01."""
    t = as_tensor(x)
    return where(t > 0, t, slope * t)


def elu(x: Operand, alpha: float = 1.0) -> Tensor:
    """x if x > 0, else alpha · (eˣ - 1) (arXiv:1511.07289).  Example: `ws.elu(0.0)` is 0."""
    t = as_tensor(x)
    positive = t > 0
    # The inner `where` avoids the overflow of eˣ for large x, which would give 0 · inf in the gradient.
    return where(positive, t, alpha * expm1(where(positive, 0.0, t)))


def softplus(x: Operand) -> Tensor:
    """log(1 + eˣ), finite for every x.  Example: `ws.softplus(0.0)` is log 2."""
    t = as_tensor(x)
    return Tensor(record("softplus", [t.node]), t.graph)


def mish(x: Operand) -> Tensor:
    """x · tanh(softplus(x)) (arXiv:1908.08681).  Example: `ws.mish(0.0)` is 0."""
    t = as_tensor(x)
    return t * tanh(softplus(t))


def hardswish(x: Operand) -> Tensor:
    """x · min(max(x + 3, 0), 6) / 6 (arXiv:1905.02244).  Example: `ws.hardswish(3.0)` is 3."""
    t = as_tensor(x)
    return where(t <= -3, 0.0, where(t >= 3, t, t * (t + 3.0) * (1.0 / 6.0)))


def swiglu(x: Tensor) -> Tensor:
    """silu(a) · b, a and b the two halves of the last axis (arXiv:2002.05202).

    Example: `ws.swiglu(x)` turns (batch, 128) into (batch, 64).
    """
    width = x.shape[-1] if x.ndim else 0
    if not isinstance(width, int) or width % 2 or not width:
        fail(ShapeError, f"swiglu halves the last axis; received {shape_text(x.shape)}. Make its size even.")
    return silu(x[..., : width // 2]) * x[..., width // 2 :]


# -- under PyTorch's names: `ws.nn.functional` ---------------------------------------------------------------------


def logsigmoid(x: Operand) -> Tensor:
    """log sigmoid(x), finite for every x"""
    return -softplus(-as_tensor(x))


def relu6(x: Operand) -> Tensor:
    """x, limited to the range [0, 6]."""
    return hardtanh(x, 0.0, 6.0)


def hardtanh(x: Operand, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """x, limited to the range between two numbers; the gradient at the limits is 0."""
    t = as_tensor(x)
    inside = (t > min_val) & (t < max_val)
    return where(inside, t, stop_gradient(clip(t, min_val, max_val)))


def hardsigmoid(x: Operand) -> Tensor:
    """x / 6 + ½, limited to the range [0, 1]."""
    return hardtanh(as_tensor(x) * (1.0 / 6.0) + 0.5, 0.0, 1.0)


_ALPHA, _SCALE = 1.6732632423543772, 1.0507009873554805  # constants of selu, from its paper


def selu(x: Operand) -> Tensor:
    """scale · x if x > 0, else scale · alpha · (eˣ - 1) (arXiv:1706.02515)."""
    return _SCALE * elu(x, _ALPHA)


def celu(x: Operand, alpha: float = 1.0) -> Tensor:
    """x if x > 0, else alpha · (e^(x/alpha) - 1)."""
    t = as_tensor(x)
    return where(t > 0, t, alpha * expm1(where(t > 0, 0.0, t) * (1.0 / alpha)))


def glu(x: Tensor, axis: int = -1) -> Tensor:
    """a · sigmoid(b), a and b the halves of an axis (arXiv:1612.08083)"""
    (position,) = x._axes(axis)
    length = x.shape[position]
    if not isinstance(length, int) or length % 2:
        fail(ShapeError, f"glu halves axis {axis} of {shape_text(x.shape)}; make its size even.")
    first, second = (slice(None, length // 2), slice(length // 2, None))
    before = (slice(None),) * position
    return x[(*before, first)] * sigmoid(x[(*before, second)])


def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x if x > 0, else weight · x; the weight is one number, or one for each channel of axis 1."""
    many = x.ndim > 1 and weight.ndim == 1 and weight.shape[0] != 1
    slope = weight.reshape((weight.shape[0], *[1] * (x.ndim - 2))) if many else weight.reshape((1,) * x.ndim)
    return where(x > 0, x, slope * x)


def softsign(x: Operand) -> Tensor:
    """x / (1 + |x|)"""
    t = as_tensor(x)
    return t / (1.0 + abs(t))


def softmin(x: Operand, axis: int = -1) -> Tensor:
    """softmax of -x"""
    return softmax(-as_tensor(x), axis)


def tanhshrink(x: Operand) -> Tensor:
    """x - tanh x"""
    return as_tensor(x) - tanh(x)


def softshrink(x: Operand, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd; 0 where |x| is at most lambd."""
    t = as_tensor(x)
    return where(t > lambd, t - lambd, where(t < -lambd, t + lambd, 0.0))


def hardshrink(x: Operand, lambd: float = 0.5) -> Tensor:
    """x, or 0 where |x| is at most lambd."""
    t = as_tensor(x)
    return where(abs(t) <= lambd, 0.0, t)


def threshold(x: Operand, threshold: float, value: float) -> Tensor:
    """x if x is above the threshold, else a value."""
    t = as_tensor(x)
    return where(t <= threshold, value, t)
