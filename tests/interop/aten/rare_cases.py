"""More functions of torch, as in `cases`: what few networks use."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from tests.interop.aten.cases import Case, above, some, whole

L, S = torch.linalg, torch.special


def _symmetric(x: Any) -> Any:
    return x + x.mT


def _without_signs(*factors: Any) -> Any:
    """Eigenvectors are known but for their signs: what does not depend on them is compared."""
    return torch.cat([(f * f).flatten() for f in factors])


def _parts(x: Any, **named: Any) -> Any:
    u, s, v = L.svd(x, full_matrices=False, **named)
    return torch.cat([(u @ v).flatten(), s.flatten(), _without_signs(u, v)])


def _exponential(x: Any) -> Any:
    values, vectors = L.eigh(_symmetric(x) * 0.3)
    return vectors @ torch.diag_embed(values.exp()) @ vectors.mT


def _few_known(x: Any) -> Any:
    y = torch.where(x > 1.0, torch.nan, x)
    values, places = y.nanmedian(1)
    return torch.cat([values, places + 0.0 * values, y.nanmedian()[None]])


def _most_often(x: Any, dim: int) -> Any:
    values, places = torch.mode(torch.floor(x.detach() * 1.5), dim)
    return values * x.mean() + places


def _by_old_names(x: Any, y: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lower = torch.cholesky(x @ x.T + torch.eye(4))
        return torch.triangular_solve(y, lower, upper=False, transpose=True)[0]


def _gammas(x: Any, a: float) -> Any:
    order = torch.full_like(x, a)
    return torch.igamma(order, x * a) + 2.0 * torch.igammac(order, x)


def _by_channel(x: Any) -> Any:
    steps, zeros = torch.tensor([0.125, 0.25, 0.5]), torch.tensor([0, 1, 2], dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(x, steps, zeros, 0, -4, 3)


def _reduced(x: Any, y: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says of itself that it may change
        means = x.index_reduce(0, torch.tensor([0, 2, 0]), y, "mean")
        return means + x.index_reduce(1, torch.tensor([1, 1]), y, "amax", include_self=False)


EIGEN: dict[str, Case] = {
    "eigh": (lambda x: _without_signs(*L.eigh(_symmetric(x))), [some(2, 5, 5)]),
    "eigh upper": (lambda x: L.eigh(x, UPLO="U")[0], [some(4, 4)]),
    "eigvalsh of many rows": (lambda x: L.eigvalsh(_symmetric(x)), [some(17, 17)]),
    "eigvalsh of what is diagonal": (lambda x: L.eigvalsh(torch.diag(x)), [some(4)]),
    "functions of matrices": (_exponential, [some(2, 4, 4)]),
    "svd of tall": (_parts, [some(2, 5, 3)]),
    "svd of wide": (_parts, [some(3, 6)]),
    "svd of square": (lambda x: torch.matmul(*L.svd(x)[::2]), [some(4, 4)]),
    "svdvals": (lambda x: L.svdvals(x), [some(2, 4, 3)]),
    "norms of matrices": (lambda x: L.matrix_norm(x, "nuc") + L.matrix_norm(x, 2) + L.cond(x), [some(4, 3)]),
    "pinv of tall": (L.pinv, [some(2, 5, 3)]),
    "pinv of wide": (lambda x: L.pinv(x, atol=0.01), [some(3, 4)]),
    "pinv of few ranks": (lambda x, y: L.pinv(x @ y, rtol=1e-6), [some(4, 2), some(2, 3)]),
    "lu": (lambda x: torch.cat(L.lu(x)), [some(4, 4)]),
    "lu_factor": (lambda x: sum(t + 0.0 * x for t in L.lu_factor(x)), [some(3, 3)]),
    "lu_solve": (lambda x, y: L.lu_solve(*L.lu_factor(x), y), [some(2, 4, 4), some(2, 4, 3)]),
    "lu_unpack": (lambda x: torch.cat(torch.lu_unpack(*L.lu_factor(x))), [some(5, 5)]),
    "old names": (_by_old_names, [some(4, 4), some(4, 2)]),
}  # fmt: skip

SPECIAL: dict[str, Case] = {
    **{f"Bessel {f.__name__}": (lambda x, f=f: f(x), [some(41, low=-45.0, high=45.0)]) for f in (S.i0e, S.i1e)},
    **{f"Bessel {f.__name__}": (lambda x, f=f: f(x), [some(21, low=-9.0, high=9.0)]) for f in (S.i0, S.i1)},
    "erfcx": (S.erfcx, [some(33, low=-3.0, high=14.0)]),
    "log_ndtr": (S.log_ndtr, [some(33, low=-20.0, high=9.0)]),
    "ndtri": (S.ndtri, [some(21, low=0.01, high=0.97)]),
    "sinh near 0": (lambda x: torch.sinh(x * 1e-6) * 1e6, [some(5)]),
    "polygamma": (lambda x: torch.polygamma(2, x) + torch.polygamma(3, x), [above(3, 4)]),
    "zeta": (lambda x: S.zeta(torch.tensor(2.5, dtype=torch.float64), x.detach()) * x, [above(3, 4)]),
    **{f"igamma {a}": (lambda x, a=a: _gammas(x, a), [above(9)]) for a in (0.3, 2.0, 7.5)},
    "mode": (lambda x: _most_often(x, 1), [some(5, 8)]),
    "mode of columns": (lambda x: _most_often(x, 0), [some(8, 3)]),
    "mode's gradient": (lambda x: torch.mode(x, 1, True)[0], [some(3, 4)]),
    "nanmedian": (_few_known, [some(5, 6)]),
    "index_reduce": (_reduced, [some(3, 2), some(3, 2) + 0.1]),
    "fake_quantize": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.125, 2, -8, 7), [some(20)]),
    "fake_quantize by channel": (_by_channel, [some(3, 5)]),
    "histogram": (lambda x: torch.histc(x.detach(), 4, -2.0, 2.0) * x.sum() + whole(4), [some(9)]),
}  # fmt: skip

FAMILIES = {"eigen": EIGEN, "special": SPECIAL}
