"""Lines that are written alike for torch and here: `t` is the package, the rest its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_RNG = np.random.default_rng(5)


@dataclass(frozen=True)
class Case:
    line: Callable[..., Any]
    arrays: tuple[Array, ...]
    slope: bool = True  # False: the result has no gradient, its value alone is compared


def normal(*shape: int) -> Array:
    return _RNG.normal(size=shape)


def case(line: Callable[..., Any], *arrays: Array, slope: bool = True) -> Case:
    return Case(line, arrays, slope)


X, Y, CUBE = normal(4, 6), normal(4, 6), normal(2, 3, 4)
SQUARE, ROW = normal(5, 5), normal(6)
POSITIVE = np.abs(normal(4, 6)) + 0.2
HALVES = np.array([[-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], [-0.2, 1.7, -1.7, 0.0, 3.2, -3.0]])
BITS = normal(4, 6) > 0
INTS = _RNG.integers(0, 5, (4, 6)).astype(np.int32)
ZEROS = np.where(BITS, normal(4, 6), 0.0)
ZEROS[2] = 0.0

COMPOSED = {
    "clip": case(lambda t, x: t.clip(x, -0.5, 0.8), X),
    "clamp, below": case(lambda t, x: t.clamp(x, min=0.1), X),
    "clamp, above": case(lambda t, x: t.clamp(x, max=0.1), X),
    "clamp_min and clamp_max": case(lambda t, x: t.clamp_min(x, 0.1) * t.clamp_max(x, 0.4), X),
    "pow": case(lambda t, x: t.pow(x, 2.5) + t.pow(x, 3), POSITIVE),
    "square": case(lambda t, x: t.square(x), X),
    "rsqrt": case(lambda t, x: t.rsqrt(x), POSITIVE),
    "log10": case(lambda t, x: t.log10(x), POSITIVE),
    "reciprocal": case(lambda t, x: t.reciprocal(x), POSITIVE),
    "tan, sinh, cosh": case(lambda t, x: t.tan(x) + t.sinh(x) * t.cosh(x), X),
    "erfc, logit": case(lambda t, x: t.erfc(x) + t.logit(t.sigmoid(x)) + t.logit(x, eps=0.1), POSITIVE),
    "logaddexp, hypot": case(lambda t, x, y: t.logaddexp(x, y) + t.hypot(x, y), X, Y),
    "xlogy": case(lambda t, x, y: t.xlogy(x, y), ZEROS, POSITIVE),
    "lerp": case(lambda t, x, y: t.lerp(x, y, 0.3), X, Y),
    "masked_fill": case(lambda t, x, m: t.masked_fill(x, m, 2.0), X, BITS),
    "degrees": case(lambda t, x: t.deg2rad(x) + t.rad2deg(x), X),
    "addcmul, addcdiv": case(lambda t, x, y: t.addcmul(x, x, y, value=0.5) + t.addcdiv(x, y, t.exp(x), value=2), X, Y),
    "add, sub, mul, div": case(
        lambda t, x, y: t.div(t.mul(t.add(x, y, alpha=2), t.sub(x, y, alpha=3)), t.exp(y)), X, Y
    ),
    "neg, absolute": case(lambda t, x: t.neg(x) + t.negative(x) * t.absolute(x), X),
    "detach": case(lambda t, x: t.detach(x) * x, X),
    "ceil": case(lambda t, x: t.ceil(x), HALVES, slope=False),
    "trunc and fix": case(lambda t, x: t.trunc(x) + t.fix(x), HALVES, slope=False),
    "round": case(lambda t, x: t.round(x), HALVES, slope=False),
    "floor_divide": case(lambda t, x, y: t.floor_divide(x, y), 3 * X, POSITIVE, slope=False),
    "div, rounded": case(
        lambda t, x, y: t.div(x, y, rounding_mode="floor") + t.div(x, y, rounding_mode="trunc"), 3 * X, Y, slope=False
    ),
    "remainder, fmod, frac": case(lambda t, x, y: t.remainder(x, y) + t.fmod(x, y) + t.frac(x), 3 * X, Y, slope=False),
    "heaviside": case(lambda t, x, y: t.heaviside(x, y), ZEROS, Y, slope=False),
    "comparisons": case(
        lambda t, x, y: t.logical_or(t.logical_and(t.lt(x, y), t.ge(x, -0.5)), t.logical_not(t.gt(y, x))), X, Y,
        slope=False,
    ),
    "logical_xor": case(lambda t, x, y: t.logical_xor(x > 0, y > 0), X, Y, slope=False),
    "eq, ne, le": case(lambda t, x: t.logical_xor(t.eq(x, 2), t.ne(x, 3)) | t.le(x, 1), INTS, slope=False),
    "isnan, isinf, isfinite": case(
        lambda t, x: t.isnan(x) | (t.isinf(x) & t.logical_not(t.isfinite(x))),
        np.array([1.0, np.nan, np.inf, -np.inf]), slope=False,
    ),
    "nan_to_num": case(
        lambda t, x: t.nan_to_num(x, nan=3.0, posinf=4.0, neginf=-5.0), np.array([1.0, np.nan, np.inf, -np.inf]),
        slope=False,
    ),
    # reductions
    "var": case(lambda t, x: t.var(x), X),
    "var of an axis": case(lambda t, x: t.var(x, dim=1, keepdim=True) * x, X),
    "var, by position": case(lambda t, x: t.var(x, 0, False), X),
    "var of two axes": case(lambda t, x: t.var(x, dim=(0, 2), correction=0), CUBE),
    "std": case(lambda t, x: t.std(x, dim=-1) + t.std(x, dim=-1, unbiased=False), CUBE),
    "var_mean and std_mean": case(lambda t, x: t.var_mean(x, dim=1)[0] * t.std_mean(x, dim=1)[1], X),
    "norm": case(lambda t, x: t.norm(x), X),
    "norm of rows": case(lambda t, x: t.norm(x, dim=1, keepdim=True) * x, X),
    "norm of nothing": case(lambda t, x: t.norm(x, dim=1) + t.norm(x, p=3, dim=1), ZEROS),
    "norms": case(lambda t, x: t.norm(x, p=1, dim=1) + t.norm(x, p=3, dim=1) + t.norm(x, float("inf"), 1), X),
    "dist and cdist": case(lambda t, x, y: t.cdist(x, y) + t.dist(x, y, p=2), X, normal(3, 6)[:, :6][:1]),
    "cosine_similarity": case(lambda t, x, y: t.cosine_similarity(x, y, dim=1), X, Y),
    "cosine_similarity of columns": case(lambda t, x, y: t.cosine_similarity(x, y, 0), X, Y),
    "sum, mean": case(lambda t, x: t.sum(x, dim=1) + t.mean(x, dim=(1,)) + t.sum(x) + t.mean(x), X),
    "amax, amin": case(lambda t, x: t.amax(x, dim=1, keepdim=True) * t.amin(x, dim=0), X),
    "max, min": case(lambda t, x, y: t.max(x) + t.min(x) + t.max(x, y) * t.min(x, y), X, Y),
    "argmin, argmax": case(lambda t, x: t.argmin(x, dim=1) + 10 * t.argmax(x, dim=1), X, slope=False),
    "argmin of integers": case(lambda t, x: t.argmin(x, 1, keepdim=True), INTS, slope=False),
    "any, all": case(lambda t, x: t.any(x, dim=1) & t.logical_not(t.all(x, dim=1)), BITS, slope=False),
    "count_nonzero": case(lambda t, x: t.count_nonzero(x, dim=1), ZEROS, slope=False),
    # made of one number
    "zeros, ones, full": case(
        lambda t, x: x * t.ones(4, 6, dtype=t.double) + t.zeros((4, 1), dtype=t.float64)
        + t.full((6,), fill_value=0.5, dtype=t.double, device="cpu"),
        X,
    ),
    "alike": case(lambda t, x: x * t.full_like(x, 0.5) + t.ones_like(x) + t.zeros_like(x), X),
    "eye": case(lambda t, x: x * t.eye(5, dtype=t.double) + t.eye(5, 5, dtype=t.double), SQUARE),
    "tril, triu": case(lambda t, x: t.tril(x) * 2 + t.triu(x, 1) * 3 + t.tril(x, -2) + t.triu(x, diagonal=-1), SQUARE),
    "tril of rows": case(lambda t, x: t.tril(x, 1), CUBE),
    "linspace": case(lambda t, x: x * t.linspace(-1.0, 1.0, 6, dtype=t.double), X),
    # axes
    "squeeze": case(lambda t, x: t.squeeze(x, 1) + t.squeeze(x).reshape(4, 1), normal(4, 1, 1)),
    "unsqueeze": case(lambda t, x: t.unsqueeze(x, 1) * t.unsqueeze(x, -1), ROW),
    "flatten": case(lambda t, x: t.flatten(x, 1) * 2, CUBE),
    "flatten, dims": case(lambda t, x: t.flatten(x, start_dim=0, end_dim=1) + t.flatten(x)[0], CUBE),
    "unflatten": case(lambda t, x: t.unflatten(x, 1, (2, -1)) * 2, X),
    "transpose, permute": case(lambda t, x: t.transpose(x, 1, 2).sum(1) + t.permute(x, (0, 2, 1)).sum(1), CUBE),
    "transpose, named": case(lambda t, x: t.transpose(x, dim0=0, dim1=1) * 2, X),
    "swapaxes": case(lambda t, x: t.swapaxes(x, 0, 1) * t.swapdims(x, 0, 1), X),
    "movedim": case(lambda t, x: t.movedim(x, 0, -1) * 2, CUBE),
    "movedim of two": case(lambda t, x: t.movedim(x, (0, 1), (2, 0)) * t.moveaxis(x, (0, 1), (2, 0)), CUBE),
    "chunk": case(lambda t, x: t.chunk(x, 3, dim=1)[1] * t.chunk(x, 4, 1)[0], X),
    "unbind": case(lambda t, x: t.unbind(x, dim=1)[2] * t.unbind(x, 1)[0], CUBE),
    "tile": case(lambda t, x: t.tile(x, (2, 1, 3)) * 2, CUBE),
    "roll": case(lambda t, x: t.roll(x, 2, 1) * t.roll(x, -1, dims=0) + t.roll(x, 3), X),
    "roll of two": case(lambda t, x: t.roll(x, (1, 2), (0, 2)), CUBE),
    "reshape, ravel": case(lambda t, x: t.reshape(x, (6, 4)).sum() * t.ravel(x), X),
    "cat, concatenate": case(
        lambda t, x, y: t.cat([x, y], dim=1).sum(1) + t.cat((x, y), 1).sum(1) * t.concatenate([x, y], dim=1).sum(1),
        X, Y,
    ),
    "stack, hstack, vstack": case(
        lambda t, x, y: t.stack([x, y], dim=1).sum(1) + t.hstack([x, y])[:, :6] * t.vstack([x, y])[:4], X, Y
    ),
    "index_select, select, narrow": case(
        lambda t, x: t.select(x, 1, 2) * t.narrow(x, 1, 1, 3).sum(1), X
    ),
    "repeat_interleave": case(lambda t, x: t.repeat_interleave(x, 3, dim=1) * 2, X),
    "diagonal, trace": case(lambda t, x: t.diagonal(x) * t.trace(x) + t.diag_embed(x[0]).sum(0), SQUARE),
    "t": case(lambda t, x: t.t(x) * 2 + t.broadcast_to(x[0, 0], (6, 4)), X),
    # products
    "mm, mv, bmm": case(
        lambda t, x, y, c: t.mm(x, t.t(y)) * t.mv(x, y[0]) + t.bmm(c, c.transpose(1, 2)).sum(), X, Y, CUBE
    ),
    "dot, outer, inner": case(
        lambda t, x, y: t.dot(x[0], y[1]) + t.outer(x[0], y[0])[:4, :4] + t.inner(x, y), X, Y
    ),
    "addmm, baddbmm": case(
        lambda t, x, y, c: t.addmm(x[:, :4], x, t.t(y), beta=0.5, alpha=2)
        + t.baddbmm(c[:, :, :3], c, c.transpose(1, 2), beta=0.5).sum(),
        X, Y, CUBE,
    ),
    "tensordot": case(lambda t, x, y: t.tensordot(x, y, dims=([1], [1])) + t.tensordot(x, y, dims=2), X, Y),
    # einsum
    "einsum, product": case(lambda t, x, y: t.einsum("ij,kj->ik", x, y), X, Y),
    "einsum, stack": case(lambda t, x, y: t.einsum("bij,bkj->bik", x, y), CUBE, normal(2, 5, 4)),
    "einsum, implicit": case(lambda t, x, y: t.einsum("ij,jk", x, y), X, normal(6, 3)),
    "einsum, sums": case(lambda t, x: t.einsum("ijk->j", x), CUBE),
    "einsum, transposed": case(lambda t, x: t.einsum("ijk->kij", x) * 2, CUBE),
    "einsum, outer": case(lambda t, x, y: t.einsum("i,j->ij", x, y), ROW, normal(3)),
    "einsum, diagonal": case(lambda t, x: t.einsum("ii->i", x) * t.einsum("ii", x), SQUARE),
    "einsum, dots": case(lambda t, x, y: t.einsum("...ij,...jk->...ik", x, y), CUBE, normal(4, 3)),
    "einsum, three": case(lambda t, x, y, z: t.einsum("bi,oij,bj->bo", x, y, z), X, normal(3, 6, 5), normal(4, 5)),
    "einsum, all at once": case(lambda t, x, y: t.einsum("ij,ij->", [x, y]), X, Y),
    "einsum, broadcast": case(lambda t, x, y: t.einsum("bij,bjk->bik", x, y), normal(1, 3, 4), normal(2, 4, 2)),
}  # fmt: skip
