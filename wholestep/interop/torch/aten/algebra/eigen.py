"""Eigenvalues and singular values of small matrices by Jacobi rotations, with torch's gradients.

Signs of eigenvectors are arbitrary: results that depend on them differ from torch's, others are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.control.custom_gradient import custom_gradient_outputs, upstream_gradient
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row

MOST = 64  # the most rows: a sweep has one round per row
SWEEPS = 14  # rotations converge quadratically: ten sweeps are exact to float64 for 64 rows
SIZES = f"matrices of more than {MOST} rows and columns"


def _pairings(n: int) -> Any:
    """Rounds in which every two rows are paired once, as matrices (rounds, n, n): row i has a 1 at its partner."""
    seats = n + n % 2
    pairings = np.zeros((max(seats - 1, 1), n, n))
    ring = list(range(1, seats))
    for k in range(seats - 1):
        order = [0, *ring[k:], *ring[:k]]
        for a, b in zip(order[: seats // 2], reversed(order[seats // 2 :])):
            if max(a, b) < n:
                pairings[k, a, b] = pairings[k, b, a] = 1.0
    return pairings


def _turns(gram: Tensor, meets: Tensor, n: int) -> Tensor:
    """The rotations, as one matrix, that zero the elements of all pairs; rows without a partner are unchanged."""
    unit = ws.eye(n, dtype=gram.dtype)
    diagonal = (gram * unit).sum(-1)
    across = (gram * meets).sum(-1)
    other = (meets * diagonal.reshape((*diagonal.shape[:-1], 1, n))).sum(-1)
    stays = across == 0.0
    slope = (other - diagonal) / (2.0 * ws.where(stays, 1.0, across))
    first = (meets * (ws.iota((n, n), 1) > ws.iota((n, n), 0)).astype(gram.dtype)).sum(-1) > 0.0
    side = ws.where(slope > 0.0, 1.0, ws.where(slope < 0.0, -1.0, ws.where(first, 1.0, -1.0)))
    size = ws.abs(slope)
    # where the square of a slope overflows, the root is the slope itself
    large = size > 1e18
    root = ws.sqrt(1.0 + ws.where(large, 0.0, size) * ws.where(large, 0.0, size))
    tangent = ws.where(stays, 0.0, side / (size + ws.where(large, size, root)))
    cosine = 1.0 / ws.sqrt(1.0 + tangent * tangent)
    sine = (tangent * cosine).reshape((*diagonal.shape, 1))
    return cosine.reshape((*diagonal.shape, 1)) * unit + sine * meets


def _swept(r: AtenRecorder, start: tuple[Tensor, Tensor], n: int, step: Any) -> tuple[Tensor, Tensor]:
    rounds = np.tile(_pairings(n), (SWEEPS, 1, 1)).astype(start[0].dtype.name)
    return ws.scan(lambda carry, meets: (step(carry, meets), ()), start, r.graph.constant(rounds))[0]


def _transpose(x: Tensor) -> Tensor:
    return x.transpose(-1, -2)


def _columns(x: Tensor, order: Tensor) -> Tensor:
    return ws.take_along_axis(x, order.reshape((*order.shape[:-1], 1, order.shape[-1])).expand(*x.shape), -1)


def _matrix_size(r: AtenRecorder, x: Tensor) -> tuple[int, int]:
    m, n = (r.fixed(e, "the size of its matrices") for e in x.shape[-2:])
    if max(m, n) > MOST:
        r.refuse(f"takes matrices of {m} rows and {n} columns, {MOST} at most")
    return m, n


def eigen(r: AtenRecorder, symmetric: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues in increasing order, and eigenvectors as columns, of symmetric matrices."""
    unit = ws.eye(n, dtype=symmetric.dtype).expand(*symmetric.shape)

    def step(carry: tuple[Tensor, Tensor], meets: Tensor) -> tuple[Tensor, Tensor]:
        matrix, vectors = carry
        turn = _turns(matrix, meets, n)
        return ws.matmul(_transpose(turn), ws.matmul(matrix, turn)), ws.matmul(vectors, turn)

    matrix, vectors = _swept(r, (symmetric, unit), n, step)
    values = (matrix * ws.eye(n, dtype=symmetric.dtype)).sum(-1)
    order = ws.argsort(values, -1)
    return ws.take_along_axis(values, order, -1), _columns(vectors, order)


@row("_linalg_eigh", refuses=SIZES)
def _eigh(r: AtenRecorder, a: Any, uplo: str = "L", compute_v: bool = True) -> tuple[Any, Any]:
    x = r.tensor(a)
    n, _ = _matrix_size(r, x)
    triangle = ws.iota((n, n), 0) >= ws.iota((n, n), 1) if uplo == "L" else ws.iota((n, n), 0) <= ws.iota((n, n), 1)
    fixed = ws.stop_gradient(x)
    values, vectors = map(ws.stop_gradient, eigen(r, ws.where(triangle, fixed, _transpose(fixed)), n))
    arriving = [upstream_gradient(values, 0), upstream_gradient(vectors, 1)][: 2 if compute_v else 1]
    inner = arriving[0].reshape((*values.shape, 1)) * ws.eye(n, dtype=x.dtype)
    if compute_v:
        inner = inner + ws.matmul(_transpose(vectors), arriving[1]) * _apart(values, n)
    slope = ws.matmul(vectors, ws.matmul(inner, _transpose(vectors)))
    outputs = custom_gradient_outputs("eigh", [values, vectors][: len(arriving)], arriving, [(x, slope)])
    return outputs[0], outputs[1] if compute_v else None


def _apart(values: Tensor, n: int) -> Tensor:
    """1 / (λj - λi) at i, j; 0 on the diagonal."""
    unit = ws.eye(n, dtype=values.dtype)
    return (1.0 - unit) / (values.reshape((*values.shape[:-1], 1, n)) - values.reshape((*values.shape, 1)) + unit)


def singular(r: AtenRecorder, matrix: Tensor, m: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The SVD (U, decreasing S, V) of matrices with at most as many columns as rows, by orthogonalizing columns."""
    unit = ws.eye(n, dtype=matrix.dtype).expand(*matrix.shape[:-2], n, n)

    def step(carry: tuple[Tensor, Tensor], meets: Tensor) -> tuple[Tensor, Tensor]:
        columns, vectors = carry
        turn = _turns(ws.matmul(_transpose(columns), columns), meets, n)
        return ws.matmul(columns, turn), ws.matmul(vectors, turn)

    columns, vectors = _swept(r, (matrix, unit), n, step)
    values = ws.sqrt((columns * columns).sum(-2))
    order = ws.argsort(values, -1, descending=True)
    values, columns, vectors = ws.take_along_axis(values, order, -1), _columns(columns, order), _columns(vectors, order)
    flat = values.reshape((*values.shape[:-1], 1, n))
    return columns / ws.where(flat == 0.0, 1.0, flat), values, vectors


@row("_linalg_svd", refuses=f"{SIZES}; full bases of matrices that are not square")
def _svd(
    r: AtenRecorder, a: Any, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None
) -> tuple[Any, Any, Any]:
    x = r.tensor(a)
    m, n = _matrix_size(r, x)
    if compute_uv and full_matrices and m != n:
        r.refuse(f"asks for full bases of matrices of {m} rows and {n} columns: say full_matrices=False")
    factors = singular(r, ws.stop_gradient(x if m >= n else _transpose(x)), max(m, n), min(m, n))
    left, values, right = map(ws.stop_gradient, factors if m >= n else factors[::-1])
    if not compute_uv:
        arriving = [upstream_gradient(values, 0)]
        slope = ws.matmul(left * arriving[0].reshape((*values.shape[:-1], 1, -1)), _transpose(right))
        return None, custom_gradient_outputs("svdvals", [values], arriving, [(x, slope)])[0], None
    outputs = [left, values, _transpose(right)]
    arriving = [upstream_gradient(t, i) for i, t in enumerate(outputs)]
    return tuple(custom_gradient_outputs("svd", outputs, arriving, [(x, _svd_slope(left, values, right, arriving))]))  # type: ignore[return-value]


def _svd_slope(left: Tensor, values: Tensor, right: Tensor, arriving: list[Tensor]) -> Tensor:
    """The gradients of U, S and V: rotations within the space that U and V span, and the parts orthogonal to it."""
    k = int(values.shape[-1])
    unit = ws.eye(k, dtype=values.dtype)
    flat, upright = values.reshape((*values.shape[:-1], 1, k)), values.reshape((*values.shape, 1))
    gap = (1.0 - unit) / (flat * flat - upright * upright + unit)  # 1 / (σj² - σi²)
    by_left, by_right = ws.matmul(_transpose(left), arriving[0]), ws.matmul(_transpose(right), _transpose(arriving[2]))
    inner = (by_left - _transpose(by_left)) * gap * flat + upright * ((by_right - _transpose(by_right)) * gap)
    inner = inner + arriving[1].reshape((*values.shape, 1)) * unit
    slope = ws.matmul(left, ws.matmul(inner, _transpose(right)))
    if left.shape[-2] != k:
        slope = slope + ws.matmul((arriving[0] - ws.matmul(left, by_left)) / flat, _transpose(right))
    if right.shape[-2] != k:
        outside = (_transpose(arriving[2]) - ws.matmul(right, by_right)) / flat
        slope = slope + ws.matmul(left, _transpose(outside))
    return slope


@row("linalg_pinv.atol_rtol_tensor", "linalg_pinv.atol_rtol_float", refuses=f"{SIZES}; hermitian=True")
def _pinv(r: AtenRecorder, a: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Tensor:
    if hermitian:
        r.refuse("takes a matrix as hermitian; leave hermitian out, the result is the same")
    x = r.tensor(a)
    m, n = _matrix_size(r, x)
    factors = singular(r, ws.stop_gradient(x if m >= n else _transpose(x)), max(m, n), min(m, n))
    left, values, right = factors if m >= n else factors[::-1]
    least = 0.0 if atol is None else r.tensor(atol, x.dtype.name)
    part = max(m, n) * float(np.finfo(x.dtype.name).eps) if atol is None and rtol is None else rtol
    largest = values.max(-1, True)
    bound = largest * (r.tensor(part, x.dtype.name) if part is not None else 0.0)
    bound = ws.maximum(bound, least) if atol is not None else bound
    is_large = values > bound
    inverse = ws.where(is_large, 1.0 / ws.where(is_large, values, 1.0), 0.0)
    whole = ws.stop_gradient(ws.matmul(right * inverse.reshape((*values.shape[:-1], 1, -1)), _transpose(left)))
    arriving = upstream_gradient(whole, 0)
    fixed, back = ws.stop_gradient(x), _transpose(arriving)
    transposed = _transpose(whole)
    # dP = -P dA P + P Pᵀ dAᵀ (1 - A P) + (1 - P A) dAᵀ Pᵀ P
    beside = ws.eye(m, dtype=x.dtype) - ws.matmul(fixed, whole)
    ahead = ws.eye(n, dtype=x.dtype) - ws.matmul(whole, fixed)
    slope = ws.matmul(beside, ws.matmul(back, ws.matmul(whole, transposed)))
    slope = slope + ws.matmul(ws.matmul(transposed, whole), ws.matmul(back, ahead))
    slope = slope - ws.matmul(transposed, ws.matmul(arriving, transposed))
    return custom_gradient_outputs("pinv", [whole], [arriving], [(x, slope)])[0]
