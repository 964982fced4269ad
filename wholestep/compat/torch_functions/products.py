"""Functions of PyTorch's that multiply along axes, and distances."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compat.arguments import take_their_words
from wholestep.compiler.frontend.functions import statistics
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, product, shape_text
from wholestep.errors import ShapeError

__all__ = [
    "addmm", "baddbmm", "bmm", "cdist", "dist", "dot", "inner", "outer", "tensordot",
]  # fmt: skip


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
    """Σ over the last axes of both"""
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
    """Σ over the last `dims` axes of a and the first of b, or over the axes that are named."""
    t, u = as_tensor(a), as_tensor(b)
    left, right = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    gone, met = ([x._axes(axis)[0] for axis in axes] for x, axes in ((t, left), (u, right)))
    rows, columns = ([d for d in range(x.ndim) if d not in used] for x, used in ((t, gone), (u, met)))
    k: Extent = product(t.shape[d] for d in gone)
    flat = t.permute([*rows, *gone]).reshape((-1, k)) @ u.permute([*met, *columns]).reshape((k, -1))
    return flat.reshape((*(t.shape[d] for d in rows), *(u.shape[d] for d in columns)))


def cdist(x: Operand, y: Operand, p: float = 2.0) -> Tensor:
    """The distance of every row of x from every row of y."""
    t, u = as_tensor(x), as_tensor(y)
    pairs = t.reshape((*t.shape[:-1], 1, t.shape[-1])) - u.reshape((*u.shape[:-2], 1, *u.shape[-2:]))
    return statistics.norm(pairs, p, -1)


def dist(x: Operand, y: Operand, p: float = 2) -> Tensor:
    """‖x - y‖ₚ"""
    return statistics.norm(as_tensor(x) - y, p)


take_their_words(globals(), __all__)
