"""PyTorch's reductions, matrix products and distances."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.frontend.functions import primitives, statistics
from wholestep.compiler.frontend.tensor import Axes, Operand, Tensor, as_tensor, pointwise
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, product, shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = [
    "addmm", "amax", "amin", "argmax", "baddbmm", "bmm", "cdist", "dist", "dot", "inner", "is_floating_point", "max",
    "mean", "min", "numel", "outer", "std_mean", "sum", "tensordot", "var_mean",
]  # fmt: skip


def sum(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`x.sum(axis)`"""
    return as_tensor(x).sum(axis, keepdims)


def mean(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`x.mean(axis)`"""
    return as_tensor(x).mean(axis, keepdims)


def amax(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`x.max(axis)`"""
    return as_tensor(x).max(axis, keepdims)


def amin(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`x.min(axis)`"""
    return as_tensor(x).min(axis, keepdims)


_PAIR = "in PyTorch that is a pair of values and indices; write ws.amax(x, axis) and ws.argmax(x, axis)"


def max(x: Operand, y: Operand | None = None) -> Tensor:
    """The maximum of x, or the elementwise maximum of x and y; along an axis it is `ws.amax`."""
    if isinstance(y, int):
        fail(OptionError, f"max(x, {y!r}): {_PAIR}.")
    return as_tensor(x).max() if y is None else pointwise("maximum", x, y)


def min(x: Operand, y: Operand | None = None) -> Tensor:
    """The minimum of x, or the elementwise minimum of x and y; along an axis it is `ws.amin`."""
    if isinstance(y, int):
        fail(OptionError, f"min(x, {y!r}): {_PAIR.replace('max', 'min')}.")
    return as_tensor(x).min() if y is None else pointwise("minimum", x, y)


def argmax(x: Operand, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """`x.argmax(axis)`"""
    return as_tensor(x).argmax(axis, keepdims)


def var_mean(x: Operand, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """The variance and the mean."""
    return statistics.var(x, axis, correction, keepdims), as_tensor(x).mean(axis, keepdims)


def std_mean(x: Operand, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean."""
    return statistics.std(x, axis, correction, keepdims), as_tensor(x).mean(axis, keepdims)


def logsumexp_over(x: Tensor, axes: Sequence[int], keepdims: bool = False) -> Tensor:
    """log Σ eˣ over several axes, which are merged into one."""
    if len(axes) == 1:
        return primitives.logsumexp(x, axes[0], keepdims)
    others = [d for d in range(x.ndim) if d not in axes]
    merged = x.permute([*others, *axes]).reshape((*(x.shape[d] for d in others), -1))
    shape = tuple(1 if d in axes else e for d, e in enumerate(x.shape) if keepdims or d not in axes)
    return primitives.logsumexp(merged, -1).reshape(shape)


def numel(x: Tensor) -> Extent:
    """The number of elements: an integer, or an expression of symbolic sizes."""
    return x.node.type.elements


def is_floating_point(x: Tensor) -> bool:
    """Is the dtype of x a float type?"""
    return x.dtype.is_float


# -- products and distances -------------------------------------------------------------------------------------------


def _ranks(op: str, a: Operand, b: Operand, left: int, right: int) -> tuple[Tensor, Tensor]:
    t, u = as_tensor(a), as_tensor(b)
    if (t.ndim, u.ndim) != (left, right):
        fail(
            ShapeError,
            f"{op} takes {left} and {right} axes; received {shape_text(t.shape)} and {shape_text(u.shape)}. "
            "`a @ b` takes any.",
        )
    return t, u


def bmm(x: Operand, mat2: Operand) -> Tensor:
    """A stack of products: (b, n, m) @ (b, m, p)"""
    a, b = _ranks("bmm", x, mat2, 3, 3)
    return a @ b


def dot(x: Operand, y: Operand) -> Tensor:
    """Σ x · y of two vectors"""
    a, b = _ranks("dot", x, y, 1, 1)
    return a @ b


def outer(x: Operand, vec2: Operand) -> Tensor:
    """x[i] · vec2[j] of two vectors"""
    a, b = _ranks("outer", x, vec2, 1, 1)
    return a.reshape((a.shape[0], 1)) * b


def inner(x: Operand, y: Operand) -> Tensor:
    """The sum of products over the last axes of both."""
    t, u = as_tensor(x), as_tensor(y)
    if not t.ndim or not u.ndim:
        return t * u
    return tensordot(t, u, ([-1], [-1]))


def addmm(x: Operand, mat1: Operand, mat2: Operand, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · x + alpha · (mat1 @ mat2)"""
    a, b = _ranks("addmm", mat1, mat2, 2, 2)
    return as_tensor(x) * beta + (a @ b) * alpha


def baddbmm(x: Operand, batch1: Operand, batch2: Operand, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · x + alpha · (batch1 @ batch2)"""
    return as_tensor(x) * beta + bmm(batch1, batch2) * alpha


def tensordot(a: Operand, b: Operand, dims: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sum of products over the last `dims` axes of a and the first ones of b, or over given axes."""
    t, u = as_tensor(a), as_tensor(b)
    left, right = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    gone, met = ([x._axes(axis)[0] for axis in axes] for x, axes in ((t, left), (u, right)))
    rows, columns = ([d for d in range(x.ndim) if d not in used] for x, used in ((t, gone), (u, met)))
    k: Extent = product(t.shape[d] for d in gone)
    flat = t.permute([*rows, *gone]).reshape((-1, k)) @ u.permute([*met, *columns]).reshape((k, -1))
    return flat.reshape((*(t.shape[d] for d in rows), *(u.shape[d] for d in columns)))


def cdist(x: Operand, y: Operand, p: float = 2.0) -> Tensor:
    """The p-norm distance between every row of x and every row of y."""
    t, u = as_tensor(x), as_tensor(y)
    pairs = t.reshape((*t.shape[:-1], 1, t.shape[-1])) - u.reshape((*u.shape[:-2], 1, *u.shape[-2:]))
    return statistics.norm(pairs, p, -1)


def dist(x: Operand, y: Operand, p: float = 2) -> Tensor:
    """‖x - y‖ₚ"""
    return statistics.norm(as_tensor(x) - y, p)
