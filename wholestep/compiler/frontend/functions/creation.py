"""Constant tensors, ranges, and triangular parts of matrices."""

from __future__ import annotations

from wholestep.compiler.frontend.functions.primitives import arange, iota
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail, located
from wholestep.compiler.ir.types import Extent, as_dtype, as_shape, boolean, shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = [
    "constant", "eye", "full", "full_like", "linspace", "ones", "ones_like", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip


def constant(value: object, dtype: object = None) -> Tensor:
    """A number or an array as part of the program.  Example: `ws.constant([1.0, 2.0])`."""
    tensor = as_tensor(value)  # type: ignore[arg-type]
    return tensor if dtype is None else tensor.astype(dtype)


def full(shape: object, value: float, dtype: object = "float32") -> Tensor:
    """A tensor filled with one number.  Example: `ws.full((2, 3), 0.5)`."""
    with located():
        extents, kind = as_shape(shape), as_dtype(dtype)
    number = as_tensor(kind.numpy.type(value))
    return number.expand(extents) if extents else number


def zeros(*shape: object, dtype: object = "float32") -> Tensor:
    """Zeros of a shape.  Example: `ws.zeros("batch", 3)` or `ws.zeros((2, 3))`."""
    return full(_shape(shape), 0, dtype)


def ones(*shape: object, dtype: object = "float32") -> Tensor:
    """Ones of a shape.  Example: `ws.ones(2, 3)`."""
    return full(_shape(shape), 1, dtype)


def _shape(arguments: tuple[object, ...]) -> object:
    return arguments[0] if len(arguments) == 1 and not isinstance(arguments[0], int | str) else arguments


def full_like(x: Tensor, value: float, dtype: object = None) -> Tensor:
    """One number in the shape of x, and in its dtype unless given.  Example: `ws.full_like(x, 0.5)`."""
    return full(x.shape, value, x.dtype if dtype is None else dtype)


def zeros_like(x: Tensor, dtype: object = None) -> Tensor:
    """Zeros in the shape of x, and in its dtype unless given.  Example: `ws.zeros_like(x)`."""
    return full_like(x, 0, dtype)


def ones_like(x: Tensor, dtype: object = None) -> Tensor:
    """Ones in the shape of x, and in its dtype unless given.  Example: `ws.ones_like(x)`."""
    return full_like(x, 1, dtype)


def eye(n: Extent | str, m: Extent | str | None = None, dtype: object = "float32") -> Tensor:
    """1 on the diagonal of an (n, m) matrix, square unless m is given, 0 elsewhere.  Example: `ws.eye(3)`."""
    shape = (n, n if m is None else m)
    return (iota(shape, 0) == iota(shape, 1)).astype(dtype)


def tril(x: Operand, diagonal: int = 0) -> Tensor:
    """The matrices on the last two axes, 0 above a diagonal.  Example: `ws.tril(ws.ones(3, 3))` is a causal mask."""
    return _triangle("tril", x, diagonal, below=True)


def triu(x: Operand, diagonal: int = 0) -> Tensor:
    """The matrices on the last two axes, 0 below a diagonal.  Example: `ws.triu(scores, 1)`."""
    return _triangle("triu", x, diagonal, below=False)


def _triangle(op: str, x: Operand, diagonal: int, below: bool) -> Tensor:
    t = as_tensor(x)
    if t.ndim < 2:
        fail(ShapeError, f"{op} needs matrices on the last two axes; received {shape_text(t.shape)}.")
    rows, columns = (iota(t.shape[-2:], axis) for axis in (0, 1))
    inside = columns <= rows + diagonal if below else columns >= rows + diagonal
    if t.dtype == boolean:
        return t & inside
    return where(inside, t, 0)


def linspace(start: float, stop: float, steps: int, dtype: object = "float32") -> Tensor:
    """`steps` numbers from start to stop, both included.  Example: `ws.linspace(0.0, 1.0, 5)` is [0, ¼, ½, ¾, 1]."""
    if not isinstance(steps, int) or steps < 1:
        fail(OptionError, f"linspace: steps must be an integer of at least 1; received {steps!r}.")
    width = 0.0 if steps == 1 else (stop - start) / (steps - 1)
    return (arange(steps, "float64") * width + start).astype(dtype)
