"""Systems of equations, determinants, triangles: small matrices, column by column."""

from __future__ import annotations

from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.importers.aten.record import Recorder
from wholestep.importers.aten.table import row

MOST = 32  # rows: every column is a few ops of its own
REFUSES = f"matrices of more than {MOST} rows"


def _square(r: Recorder, x: Any) -> tuple[Tensor, int]:
    t = r.tensor(x)
    n = r.fixed(t.shape[-1], "the size of its matrices")
    if n > MOST:
        r.refuse(f"takes matrices of {n} rows; they are computed column by column, {MOST} at most")
    return t, n


def _solved(a: Tensor, n: int, b: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """What a's inverse makes of b, by elimination with the largest pivot of each column; and the signed pivots."""
    whole, pivots = a if b is None else ws.concat([a, b], -1), []
    rows = ws.iota((n,), 0, "int64")
    for k in range(n):
        largest = ws.abs(whole[..., k:, k]).argmax(-1, True).astype("int64") + k
        order = ws.where(rows == k, largest, ws.where(rows == largest, k, rows))
        whole = ws.take_along_axis(whole, order.reshape((*order.shape, 1)).expand(*whole.shape), -2)
        pivot = whole[..., k : k + 1, k : k + 1]
        sign = ws.where(largest == k, 1.0, -1.0).astype(a.dtype)
        pivots.append(pivot[..., 0, 0] * sign[..., 0])
        unit = (rows == k).astype(a.dtype).reshape((n, 1))
        whole = whole - (whole[..., k : k + 1] - unit) * (whole[..., k : k + 1, :] / pivot)
    return whole[..., n:] if b is not None else whole, pivots


@row("_linalg_det", refuses=REFUSES)
def _det(r: Recorder, x: Any) -> tuple[Any, ...]:
    total, *others = _solved(*_square(r, x))[1]
    for pivot in others:
        total = total * pivot
    return total, None, None


@row("_linalg_slogdet", refuses=REFUSES)
def _slogdet(r: Recorder, x: Any) -> tuple[Any, ...]:
    pivots = _solved(*_square(r, x))[1]
    sign, size = ws.sign(pivots[0]), ws.log(ws.abs(pivots[0]))
    for pivot in pivots[1:]:
        sign, size = sign * ws.sign(pivot), size + ws.log(ws.abs(pivot))
    return ws.stop_gradient(sign), size, None, None


@row("linalg_inv_ex", refuses=REFUSES)
def _inv(r: Recorder, x: Any, **_: Any) -> tuple[Any, ...]:
    a, n = _square(r, x)
    unit = (ws.iota((n, n), 0) == ws.iota((n, n), 1)).astype(a.dtype)
    return _solved(a, n, unit.expand(*a.shape))[0], None


@row("_linalg_solve_ex", refuses=REFUSES)
def _solve(r: Recorder, x: Any, y: Any, *, left: bool = True, **_: Any) -> tuple[Any, ...]:
    (a, n), b = _square(r, x), r.tensor(y)
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    b = b.reshape((*b.shape, 1)) if is_vector else b
    a, b = (a, b) if left else (a.transpose(-1, -2), b.transpose(-1, -2))
    lead = r.shape[: r.result.ndim - (1 if is_vector else 2)]
    found = _solved(a.expand(*lead, n, n), n, b.expand(*lead, *b.shape[-2:]))[0]
    found = found if left else found.transpose(-1, -2)
    return found.reshape(r.shape), None, None, None


@row("linalg_cholesky_ex", refuses=REFUSES)
def _cholesky(r: Recorder, x: Any, *, upper: bool = False, **_: Any) -> tuple[Any, ...]:
    a, n = _square(r, x)
    turned = a.transpose(-1, -2)
    both = (a + turned) * 0.5  # torch's gradient is that of a symmetric matrix
    rest, columns = both + ws.stop_gradient((turned if upper else a) - both), []
    for k in range(n):
        below = (ws.iota((n, 1), 0) >= k).astype(a.dtype)
        column = rest[..., k : k + 1] / ws.sqrt(rest[..., k : k + 1, k : k + 1]) * below
        columns.append(column)
        rest = rest - column * column.transpose(-1, -2)
    lower = ws.concat(columns, -1)
    return lower.transpose(-1, -2) if upper else lower, None


@row("linalg_solve_triangular", refuses=REFUSES)
def _solve_triangular(
    r: Recorder, x: Any, y: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    (a, n), b = _square(r, x), r.tensor(y)
    if not left:
        a, b, upper = a.transpose(-1, -2), b.transpose(-1, -2), not upper
    found: list[Tensor] = []
    for k in reversed(range(n)) if upper else range(n):
        value = b[..., k : k + 1, :]
        if found:
            known = ws.concat(found[::-1] if upper else found, -2)
            value = value - ws.matmul(a[..., k : k + 1, k + 1 :] if upper else a[..., k : k + 1, :k], known)
        found.append(value if unitriangular else value / a[..., k : k + 1, k : k + 1])
    whole = ws.concat(found[::-1] if upper else found, -2)
    return (whole if left else whole.transpose(-1, -2)).expand(*r.shape)
