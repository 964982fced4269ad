"""ATen's linear systems, determinants and triangular factors: rows over `ws.solve` and others; QR and LU, column by
column.
"""

from __future__ import annotations

from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.functions.linear_algebra import MOST
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row

REFUSES = f"matrices of more than {MOST} rows"


def _square(r: AtenRecorder, x: Any) -> tuple[Tensor, int]:
    t = r.tensor(x)
    n = r.fixed(t.shape[-1], "the size of its matrices")
    if n > MOST:
        r.refuse(f"takes matrices of {n} rows; they are computed column by column, {MOST} at most")
    return t, n


def _identity(like: Tensor, n: int) -> Tensor:
    return (ws.iota((n, n), 0) == ws.iota((n, n), 1)).astype(like.dtype)


@row("_linalg_det", refuses=REFUSES)
def _det(r: AtenRecorder, x: Any) -> tuple[Any, ...]:
    return ws.det(_square(r, x)[0]), None, None


@row("_linalg_slogdet", refuses=REFUSES)
def _slogdet(r: AtenRecorder, x: Any) -> tuple[Any, ...]:
    return *ws.slogdet(_square(r, x)[0]), None, None


@row("linalg_inv_ex", refuses=REFUSES)
def _inv(r: AtenRecorder, x: Any, **_: Any) -> tuple[Any, ...]:
    return ws.inv(_square(r, x)[0]), None


@row("_linalg_solve_ex", refuses=REFUSES)
def _solve(r: AtenRecorder, x: Any, y: Any, *, left: bool = True, **_: Any) -> tuple[Any, ...]:
    (a, n), b = _square(r, x), r.tensor(y)
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    b = b.reshape((*b.shape, 1)) if is_vector else b
    a, b = (a, b) if left else (a.transpose(-1, -2), b.transpose(-1, -2))
    lead = r.shape[: r.result.ndim - (1 if is_vector else 2)]
    solution = ws.solve(a.expand(*lead, n, n), b.expand(*lead, *b.shape[-2:]))
    solution = solution if left else solution.transpose(-1, -2)
    return solution.reshape(r.shape), None, None, None


@row("cholesky", refuses=REFUSES)
def _lower(r: AtenRecorder, x: Any, upper: bool = False) -> Tensor:
    return ws.cholesky(_square(r, x)[0], upper)


@row("linalg_cholesky_ex", refuses=REFUSES)
def _cholesky(r: AtenRecorder, x: Any, *, upper: bool = False, **_: Any) -> tuple[Any, ...]:
    return ws.cholesky(_square(r, x)[0], upper), None


@row("linalg_solve_triangular", refuses=REFUSES)
def _solve_triangular(
    r: AtenRecorder, x: Any, y: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    (a, _), b = _square(r, x), r.tensor(y)
    if left:
        return ws.solve_triangular(a, b, upper, unitriangular).expand(*r.shape)
    turned = ws.solve_triangular(a.transpose(-1, -2), b.transpose(-1, -2), not upper, unitriangular)
    return turned.transpose(-1, -2).expand(*r.shape)


@row("triangular_solve", refuses=REFUSES)
def _triangular_solve(
    r: AtenRecorder, y: Any, x: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Any, ...]:
    a = _transpose_if(r, x, transpose)
    return _solve_triangular(r, a, y, upper=upper != transpose, unitriangular=unitriangular), r.tensor(x)


@row("cholesky_solve", refuses=REFUSES)
def _cholesky_solve(r: AtenRecorder, y: Any, x: Any, upper: bool = False) -> Tensor:
    half = _solve_triangular(r, _transpose_if(r, x, upper), y, upper=False)
    return _solve_triangular(r, _transpose_if(r, x, not upper), half, upper=True)


@row("cholesky_inverse", refuses=REFUSES)
def _cholesky_inverse(r: AtenRecorder, x: Any, upper: bool = False) -> Tensor:
    a, n = _square(r, x)
    unit = _identity(a, n)
    return _cholesky_solve(r, unit.expand(*a.shape), a, upper)


def _transpose_if(r: AtenRecorder, x: Any, turn: bool) -> Tensor:
    t = r.tensor(x)
    return t.transpose(-1, -2) if turn else t


HALVINGS, TERMS = 10, 14  # for a norm of 256: (256 / 2**10)**15 / 15! is below float64's precision


@row("linalg_matrix_exp")
def _matrix_exp(r: AtenRecorder, x: Any) -> Tensor:
    """The matrix exponential by scaling and squaring: exact to rounding for norms up to some hundreds."""
    a = r.tensor(x)
    n = r.fixed(a.shape[-1], "the size of its matrices")
    unit = _identity(a, n)
    part, total = a * 0.5**HALVINGS, unit
    for k in range(TERMS, 0, -1):
        total = unit + ws.matmul(part, total) * (1.0 / k) if k < TERMS else unit + part * (1.0 / k)
    for _ in range(HALVINGS):
        total = ws.matmul(total, total)
    return total


@row("linalg_householder_product", "orgqr", refuses=REFUSES)
def _householder_product(r: AtenRecorder, x: Any, scales: Any) -> Tensor:
    t, tau = r.tensor(x), r.tensor(scales)
    m, n = (r.fixed(e, "the size of its matrices") for e in t.shape[-2:])
    count = r.fixed(tau.shape[-1], "the number of reflections")
    if n > MOST:
        r.refuse(f"takes matrices of {n} columns; they are computed column by column, {MOST} at most")
    product = _identity(t, m)[:, :n].expand(*t.shape)
    rows = ws.iota((m,), 0)
    for k in reversed(range(count)):
        v = ws.where(rows == k, 1.0, ws.where(rows > k, t[..., k], 0.0))
        along = ws.matmul(v.reshape((*v.shape[:-1], 1, m)), product)
        product = product - tau[..., k : k + 1].reshape((*tau.shape[:-1], 1, 1)) * v.reshape((*v.shape, 1)) * along
    return product


@row("linalg_qr", refuses="more columns than rows, and whole bases of fewer columns")
def _qr(r: AtenRecorder, x: Any, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """The QR decomposition by Householder reflections, with LAPACK's signs."""
    t = r.tensor(x)
    m, n = (r.fixed(e, "the size of its matrices") for e in t.shape[-2:])
    if n > min(m, MOST) or (mode != "reduced" and m != n) or mode == "r":
        r.refuse(f"takes matrices of {m} rows and {n} columns, mode {mode!r}")
    rows, above, base = ws.iota((m,), 0), t, _identity(t, m).expand(*t.shape[:-2], m, m)
    for k in range(min(n, m - 1)):
        column = ws.where(rows >= k, above[..., k], 0.0)
        head = column[..., k : k + 1]
        below = (column * column).sum(-1, True) - head * head
        done = ws.where(rows > k, ws.abs(column), 0.0).max(-1, True) == 0.0
        size = ws.sqrt(ws.where(done, 1.0, below + head * head))
        v = ws.where(rows == k, column + ws.where(head < 0.0, -size, size), column)
        scale = ws.where(done, 0.0, 2.0 / ws.where(done, 1.0, (v * v).sum(-1, True)))
        upright, flat = v.reshape((*v.shape, 1)), v.reshape((*v.shape[:-1], 1, m))
        factor = scale.reshape((*scale.shape, 1))
        above = above - factor * upright * ws.matmul(flat, above)
        base = base - factor * ws.matmul(base, upright) * flat
    triangle = above[..., :n, :] * (ws.iota((n, n), 1) >= ws.iota((n, n), 0)).astype(t.dtype)
    return base[..., :n], triangle


def _lu_decompose(a: Tensor, n: int) -> tuple[Tensor, list[Tensor]]:
    """LU with pivoting: L below the diagonal and U above, and the row with which each row was swapped."""
    whole, pivots = a, []
    rows, columns = ws.iota((n,), 0, "int64"), ws.iota((n,), 0)
    for k in range(n):
        largest = ws.abs(ws.stop_gradient(whole)[..., k:, k]).argmax(-1, True).astype("int64") + k
        pivots.append(largest)
        whole = _swap_rows(whole, rows, k, largest)
        factors = ws.where(rows > k, whole[..., k] / whole[..., k : k + 1, k], 0.0)
        upright = factors.reshape((*factors.shape, 1))
        after = whole - upright * whole[..., k : k + 1, :]
        whole = ws.where(columns > k, after, ws.where((columns == k) & (rows > k).reshape((n, 1)), upright, whole))
    return whole, pivots


def _swap_rows(x: Tensor, rows: Tensor, k: int, other: Tensor) -> Tensor:
    order = ws.where(rows == k, other, ws.where(rows == other, k, rows))
    return ws.take_along_axis(x, order.reshape((*order.shape, 1)).expand(*x.shape), -2)


@row("linalg_lu_factor_ex", "_lu_with_info", refuses=f"{REFUSES}; matrices that are not square; pivot=False")
def _lu_factor(r: AtenRecorder, x: Any, *, pivot: bool = True, **_: Any) -> tuple[Any, ...]:
    a, n = _factor_matrix(r, x, pivot)
    whole, pivots = _lu_decompose(a, n)
    return whole, (ws.concat(pivots, -1) + 1).astype("int32"), None


@row("linalg_lu", refuses=f"{REFUSES}; matrices that are not square; pivot=False")
def _lu(r: AtenRecorder, x: Any, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    a, n = _factor_matrix(r, x, pivot)
    whole, pivots = _lu_decompose(a, n)
    return _unpack_lu(whole, pivots, n)


def _factor_matrix(r: AtenRecorder, x: Any, pivot: bool) -> tuple[Tensor, int]:
    a, n = _square(r, x)
    if a.shape[-2] != n or not pivot:
        r.refuse(f"takes matrices of {a.shape[-2]} rows and {n} columns, pivot={pivot}")
    return a, n


def _unpack_lu(whole: Tensor, pivots: list[Tensor], n: int) -> tuple[Tensor, Tensor, Tensor]:
    unit = _identity(whole, n)
    below = (ws.iota((n, n), 0) > ws.iota((n, n), 1)).astype(whole.dtype)
    order, rows = unit.expand(*whole.shape), ws.iota((n,), 0, "int64")
    for k, other in enumerate(pivots):
        order = _swap_rows(order, rows, k, other)
    return order.transpose(-1, -2), whole * below + unit, whole * (1.0 - below)


@row("lu_unpack", refuses=REFUSES)
def _lu_unpack(
    r: AtenRecorder, x: Any, pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    (a, n), p = _square(r, x), r.tensor(pivots, "int64") - 1
    return _unpack_lu(a, [p[..., k : k + 1] for k in range(n)], n)


@row("linalg_lu_solve", refuses=f"{REFUSES}; adjoint=True")
def _lu_solve(r: AtenRecorder, x: Any, pivots: Any, y: Any, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if adjoint or not left:
        r.refuse("solves from the other side, or for the adjoint: transpose the matrices instead")
    order, lower, upper = _lu_unpack(r, x, pivots)
    half = _solve_triangular(r, lower, ws.matmul(order.transpose(-1, -2), r.tensor(y)), upper=False)
    return _solve_triangular(r, upper, half, upper=True)
