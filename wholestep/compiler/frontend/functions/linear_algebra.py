"""Linear systems, determinants and Cholesky factors of small matrices (..., n, n), with gradients of any order.

They are recorded column by column as other ops, which every device computes and autodiff differentiates; each column
becomes several ops, so that n is at most 32.
"""

from __future__ import annotations

from wholestep.compiler.frontend.functions.primitives import abs, concat, iota, log, sign, sqrt, stop_gradient
from wholestep.compiler.frontend.shape.sort_topk import take_along_axis
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, matmul, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, ShapeError

__all__ = ["cholesky", "det", "inv", "slogdet", "solve", "solve_triangular"]

MOST = 32  # the most rows


def det(a: Operand) -> Tensor:
    """The determinant of each matrix: the product of the pivots of Gauss-Jordan elimination.

    Example: `ws.det([[2.0, 1.0], [0.0, 3.0]])` is 6.
    """
    total, *others = _gauss_jordan(*_square("det", a))[1]
    for pivot in others:
        total = total * pivot
    return total


def slogdet(a: Operand) -> tuple[Tensor, Tensor]:
    """The sign of each matrix's determinant, and the logarithm of its absolute value; the sign has no gradient.

    Example: `sign, size = ws.slogdet(covariance)`.
    """
    pivots = _gauss_jordan(*_square("slogdet", a))[1]
    whole, size = sign(pivots[0]), log(abs(pivots[0]))
    for pivot in pivots[1:]:
        whole, size = whole * sign(pivot), size + log(abs(pivot))
    return stop_gradient(whole), size


def inv(a: Operand) -> Tensor:
    """The inverse of each matrix.  To solve a system, `ws.solve` needs fewer operations.

    Example: `ws.inv([[2.0, 0.0], [0.0, 4.0]])`.
    """
    t, n = _square("inv", a)
    unit = (iota((n, n), 0) == iota((n, n), 1)).astype(t.dtype)
    return _gauss_jordan(t, n, unit.expand(*t.shape))[0]


def solve(a: Operand, b: Operand) -> Tensor:
    """x of a @ x = b, by Gauss-Jordan elimination with partial pivoting.

    Args:
        a: matrices (..., n, n).
        b: (..., n, columns) with the leading axes of a; or vectors, (..., n).

    Example: `ws.solve([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0])` is [0.5, 0.25].
    """
    (t, n), right = _square("solve", a), as_tensor(b)
    is_vector = right.ndim == t.ndim - 1
    columns = right.reshape((*right.shape, 1)) if is_vector else right
    _match_rows("solve", t, columns, together=True)
    solution = _gauss_jordan(t, n, columns)[0]
    return solution.reshape(right.shape) if is_vector else solution


def cholesky(a: Operand, upper: bool = False) -> Tensor:
    """The lower triangular L of each symmetric positive definite matrix a = L·Lᵀ; NaN where a matrix is not.

    Only one triangle of a is read; the gradient is computed as for a symmetric matrix.

    Args:
        upper: read the upper triangle, and return Lᵀ.

    Example: `ws.cholesky([[4.0, 2.0], [2.0, 5.0]])` is [[2, 0], [1, 2]].
    """
    t, n = _square("cholesky", a)
    transposed = t.transpose(-1, -2)
    both = (t + transposed) * 0.5
    rest, columns = both + stop_gradient((transposed if upper else t) - both), []
    for k in range(n):
        below = (iota((n, 1), 0) >= k).astype(t.dtype)
        column = rest[..., k : k + 1] / sqrt(rest[..., k : k + 1, k : k + 1]) * below
        columns.append(column)
        rest = rest - column * column.transpose(-1, -2)
    lower = concat(columns, -1)
    return lower.transpose(-1, -2) if upper else lower


def solve_triangular(a: Operand, b: Operand, upper: bool = False, unit_diagonal: bool = False) -> Tensor:
    """x of a @ x = b for triangular matrices a, of which only the triangle is read.

    Args:
        a: matrices (..., n, n).
        b: (..., n, columns), with the leading axes of a or those that broadcast with them.
        upper: a is upper triangular.
        unit_diagonal: the diagonal of a is 1, and not read.

    Example: `ws.solve_triangular(ws.cholesky(covariance), errors)`.
    """
    (t, n), right = _square("solve_triangular", a), as_tensor(b)
    _match_rows("solve_triangular", t, right)
    solved: list[Tensor] = []
    for k in reversed(range(n)) if upper else range(n):
        value = right[..., k : k + 1, :]
        if solved:
            solution = concat(solved[::-1] if upper else solved, -2)
            value = value - matmul(t[..., k : k + 1, k + 1 :] if upper else t[..., k : k + 1, :k], solution)
        solved.append(value if unit_diagonal else value / t[..., k : k + 1, k : k + 1])
    return concat(solved[::-1] if upper else solved, -2)


def _square(name: str, a: Operand) -> tuple[Tensor, int]:
    t = as_tensor(a)
    n = t.shape[-1] if t.ndim >= 2 else None
    if not isinstance(n, int) or t.shape[-2] != n or not 1 <= n <= MOST:
        fail(
            ShapeError,
            f"{name} takes square matrices (..., n, n) with n from 1 to {MOST}, as every column becomes several ops; "
            f"received {shape_text(t.shape)}. Larger ones: np.linalg.{name.removesuffix('_triangular')} outside of the "
            "step.",
        )
    if not t.dtype.is_float:
        fail(DTypeError, f"{name} takes floats; received {t.dtype}. Cast them: a.astype('float32').")
    return t, n


def _match_rows(name: str, a: Tensor, b: Tensor, together: bool = False) -> None:
    if b.ndim < 2 or b.shape[-2] != a.shape[-1] or (together and b.shape[:-2] != a.shape[:-2]):
        lead = "".join(f"{e}, " for e in a.shape[:-2]) if together else "..., "
        fail(
            ShapeError,
            f"{name}: matrices {shape_text(a.shape)} need right sides ({lead}{a.shape[-1]}, columns); received "
            f"{shape_text(b.shape)}. Expand or transpose them.",
        )


def _gauss_jordan(a: Tensor, n: int, b: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """a⁻¹·b by Gauss-Jordan elimination with partial pivoting; and the signed pivots."""
    whole, pivots = a if b is None else concat([a, b], -1), []
    rows = iota((n,), 0, "int64")
    for k in range(n):
        largest = abs(whole[..., k:, k]).argmax(-1, True).astype("int64") + k
        order = where(rows == k, largest, where(rows == largest, k, rows))
        whole = take_along_axis(whole, order.reshape((*order.shape, 1)).expand(*whole.shape), -2)
        pivot = whole[..., k : k + 1, k : k + 1]
        swapped = where(largest == k, 1.0, -1.0).astype(a.dtype)
        pivots.append(pivot[..., 0, 0] * swapped[..., 0])
        unit = (rows == k).astype(a.dtype).reshape((n, 1))
        whole = whole - (whole[..., k : k + 1] - unit) * (whole[..., k : k + 1, :] / pivot)
    return whole[..., n:] if b is not None else whole, pivots
