"""Activations composed of other functions; those that are a single op are in `primitives`."""

from __future__ import annotations

from wholestep.compiler.frontend.functions.primitives import expm1, silu, tanh
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import ShapeError

__all__ = ["elu", "hardswish", "leaky_relu", "mish", "softplus", "swiglu"]


def leaky_relu(x: Operand, slope: float = 0.01) -> Tensor:
    """x above 0, slope · x below; the gradient at 0 is the slope.  Example: `ws.leaky_relu(-1.0)` is -0.01."""
    t = as_tensor(x)
    return where(t > 0, t, slope * t)


def elu(x: Operand, alpha: float = 1.0) -> Tensor:
    """x above 0, alpha · (eˣ - 1) below (arXiv:1511.07289).  Example: `ws.elu(0.0)` is 0."""
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
        fail(
            ShapeError, f"swiglu splits the last axis into halves; received {shape_text(x.shape)}. Make its size even."
        )
    return silu(x[..., : width // 2]) * x[..., width // 2 :]
