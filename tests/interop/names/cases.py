"""Lines of code that are the same for torch and here: `t` is the package, the other names are tensors."""

from __future__ import annotations

import math
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
INNER = np.tanh(X) * 0.99
WHOLE = _RNG.integers(-20, 20, (4, 6)).astype(np.int32)
ORDERS = np.stack([_RNG.permutation(6) for _ in range(4)]).astype(np.int32)
PLACES = np.array([2, 0, 3], np.int32)
LONG = normal(4, 600)

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
    "sinh, far": case(lambda t, x: t.arctan(t.sinh(1e3 * x)), X, slope=False),
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
    "arcs": case(lambda t, x: t.asin(x) * t.acos(x) + t.arctan(x) + t.atanh(x) + t.asinh(3 * x), INNER),
    "acosh, sinc": case(lambda t, x: t.acosh(1 + x) + t.sinc(3 * x), POSITIVE),
    "asinh, acosh, far": case(lambda t, x: t.asinh(1e10 * x) + t.acosh(1e10 * t.abs(x)), INNER),
    "sinc at 0": case(lambda t, x: t.sinc(x), ZEROS, slope=False),
    "atan2": case(lambda t, x, y: t.atan2(x, y) + t.arctan2(x[0], y), X, Y),
    "erfinv": case(lambda t, x: t.erfinv(x) + t.erfinv(t.sign(x) * (1 - 1e-3 * t.abs(x))), INNER),
    "erfinv at the ends": case(lambda t, x: t.erfinv(x), np.array([0.0, 1.0, -1.0]), slope=False),
    "lgamma": case(lambda t, x: t.lgamma(4 * x) + t.lgamma(x) + t.lgamma(100 * x), POSITIVE),
    "lgamma, negative": case(lambda t, x: t.lgamma(-4 * x - 0.05), INNER**2),
    "digamma": case(lambda t, x: t.digamma(9 * x) * t.digamma(x - 3.03), INNER**2 + 0.05, slope=False),
    # whole numbers
    "bits": case(
        lambda t, x, y: t.bitwise_and(x, y) + 3 * t.bitwise_or(x, y) - t.bitwise_xor(x, y) * t.bitwise_not(x),
        WHOLE, INTS, slope=False,
    ),
    "bits by operators": case(lambda t, x, y: (x & y) + 3 * (x | y) - (x ^ y) * ~x + (5 & x), WHOLE, INTS, slope=False),
    "bits of truths": case(
        lambda t, x: t.bitwise_not(x) ^ t.bitwise_or(x, t.bitwise_and(x, ~x)), BITS, slope=False
    ),
    "shifts": case(
        lambda t, x, y: t.bitwise_left_shift(x, y) + t.bitwise_right_shift(x, y) + (x << 2) + (x >> y) + (1 << y),
        WHOLE, INTS, slope=False,
    ),
    "quotients of integers": case(
        lambda t, x, y: t.floor_divide(x, y + 1) + 10 * (x // (y - 7)) + 100 * t.div(x, y + 1, rounding_mode="trunc")
        + 1000 * t.div(x, 3, rounding_mode="floor") + 7 // (y + 1),
        WHOLE, INTS, slope=False,
    ),
    # elements put elsewhere
    "scatter": case(lambda t, x, i, y: t.scatter(x, 1, i[:, :3], y[:, :3]), X, ORDERS, Y),
    "scatter, number": case(lambda t, x, i: t.scatter(x, 0, i[:1, :4] % 4, 2.5) * x, X, ORDERS),
    **{
        f"scatter_reduce, {how}, {own}": case(
            lambda t, x, i, y, how=how, own=own: t.scatter_reduce(x, 1, i % 4, y, how, include_self=own), X, ORDERS, Y
        )
        for how in ("sum", "mean", "prod", "amax", "amin")
        for own in (True, False)
    },
    "scatter_reduce of integers": case(
        lambda t, x, i: t.scatter_reduce(x, 1, i % 4, x + 1, "amax") + t.scatter_reduce(x, 1, i % 4, x, "prod"), WHOLE,
        ORDERS, slope=False,
    ),
    "scatter of a long axis": case(
        lambda t, x, y: t.scatter_reduce(x, 1, t.arange(1, 13, 4).reshape(1, 3) * 47, y[:1, :3], "mean")[:, ::47],
        LONG, Y,
    ),
    "index_add, index_copy": case(
        lambda t, x, y, i: t.index_add(x, 1, i, y[:, :3], alpha=2) * t.index_copy(x, 0, i, y[:3]), X, Y, PLACES
    ),
    "index_fill": case(lambda t, x, i: t.index_fill(x, 1, i, 3.0) * t.index_fill(x, 0, i, -1.0), X, PLACES),
    "index_put": case(
        lambda t, x, y, i: t.index_put(x, (i,), y[:3]) * t.index_put(x, (i, i + 1), y[0, :3]), X, Y, PLACES
    ),
    "index_put, accumulated": case(
        lambda t, x, y, i: t.index_put(x, (i, i * 0 + 1), y[0, :3], accumulate=True)
        + t.index_put(x, (i * 0 - 1,), y[:3], accumulate=True),
        X, Y, PLACES,
    ),
    "index_put by a mask": case(lambda t, x, m: t.index_put(x, (m,), x[0, 0] * 0 + 2.0), X, BITS, slope=False),
    "masked_scatter": case(lambda t, x, m, y: t.masked_scatter(x, m, y) * x, X, BITS, Y),
    "slice_scatter": case(
        lambda t, x, y: t.slice_scatter(x, y[:, :2], dim=1, start=1, end=3) * t.slice_scatter(x, y[:2], 0, 0, 4, 2),
        X, Y,
    ),
    "select_scatter": case(lambda t, x, y: t.select_scatter(x, y[0], 0, 2) * t.select_scatter(x, y[:, 1], 1, -1), X, Y),
    "indices of several axes": case(
        lambda t, x, i: x[i, i, i] * x[i % 2, :, i].sum(1) + x[:, i, i].sum()
        + x[i.reshape(3, 1) % 2, i][:, :, 0].sum(1),
        CUBE, PLACES % 2,
    ),
    # along an axis
    "prod": case(lambda t, x: t.prod(x, dim=1, keepdim=True) * x + t.prod(x) + t.prod(x, 0), ZEROS),
    "prod of integers": case(lambda t, x: t.prod(x[:, :4] + 1, 1), INTS, slope=False),
    "cumprod": case(lambda t, x: t.cumprod(x, dim=1), ZEROS),
    "cumsum of blocks": case(lambda t, x: t.cumsum(x, dim=1)[:, ::13] + t.cumsum(x, 1)[:, 40:80], LONG[:, :520]),
    "cumsum of integers": case(lambda t, x: t.cumsum(x, 0), WHOLE, slope=False),
    "cummax, cummin": case(lambda t, x: t.cummax(x, 1)[0] * t.cummin(x, dim=0)[0], X),
    "cummax of equal ones": case(lambda t, x: t.cummax(x, 1)[1] * 7 + t.cummin(x, 1)[1], INTS, slope=False),
    "logcumsumexp": case(lambda t, x: t.logcumsumexp(x, dim=1), X),
    "topk, the smallest": case(lambda t, x: t.topk(x, 3, dim=1, largest=False)[0] * t.topk(x, 2, 0)[0].sum(), X),
    "topk of infinities": case(
        lambda t, x: t.topk(t.where(x > 0.5, x, -math.inf), 65, 1)[1].sum(1), LONG[:, :65], slope=False
    ),
    "take_along, the first ones": case(lambda t, x, i: t.take_along_dim(x[:2], i[:2, :3], 1), X, ORDERS),
    # counting, windows
    "histc": case(
        lambda t, x: t.histc(x, 5) + 10 * t.histc(x, 5, -1, 1) + 100 * t.histc(x, bins=5, min=0, max=2), X, slope=False
    ),
    "bincount": case(lambda t, x: t.bincount(x.reshape(-1), minlength=9), INTS, slope=False),
    "bucketize, searchsorted": case(
        lambda t, x, e: t.bucketize(x, e[0]) + 10 * t.bucketize(x, e[0], right=True) + 100 * t.searchsorted(e, x)
        + 1000 * t.searchsorted(e, x, right=True),
        INTS, np.sort(INTS, 1), slope=False,
    ),
    "windows": case(lambda t, x: x.unfold(1, 3, 2) * 2 + x.unfold(-1, 2, 2)[:, :2, :1], X),
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
    "arange": case(
        lambda t, x: t.arange(6) * t.arange(1, 12, 2) + t.arange(start=6, end=0, step=-1), X, slope=False
    ),
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


IMAGES, LABELS, TOKENS = normal(2, 3, 6, 6), _RNG.integers(0, 6, 4).astype(np.int32), INTS % 4
WEIGHT, SCORES = normal(5, 6), 1.0 / (1.0 + np.exp(-normal(4, 6)))
MAPS, MAP_LABELS = normal(2, 4, 3, 3), _RNG.integers(0, 4, (2, 3, 3)).astype(np.int32)
SIGNS = np.sign(normal(4))

GRID, VOLUMES = 1.3 * np.tanh(normal(2, 3, 4, 2)), normal(2, 2, 5, 3, 4)

FUNCTIONAL = {
    **{
        f"F.grid_sample, {mode}, {padding}, {corners}": case(
            lambda F, x, g, how=(mode, padding, corners): F.grid_sample(x, g, *how), IMAGES, GRID,
        )
        for mode, padding, corners in (
            ("bilinear", "zeros", False), ("bilinear", "border", True), ("bilinear", "reflection", False),
            ("bilinear", "reflection", True), ("bicubic", "zeros", False), ("bicubic", "border", True),
            ("bicubic", "reflection", False),
        )
    },
    "F.grid_sample, nearest": case(
        lambda F, x: F.grid_sample(
            x, F.affine_grid(x[:, :2, :1, :3].mean(2), (2, 3, 5, 4), False), "nearest", "zeros", False
        ),
        IMAGES, slope=False,
    ),
    "F.grid_sample of volumes": case(
        lambda F, x, t: F.grid_sample(x, F.affine_grid(t, x.shape, align_corners=True), align_corners=True), VOLUMES,
        normal(2, 3, 4) * 0.4,
    ),
    "F.interpolate, nearest": case(
        lambda F, x: F.interpolate(x, (9, 4), mode="nearest-exact") + F.interpolate(x, (9, 4), mode="nearest"), IMAGES
    ),
    "F.affine_grid": case(lambda F, t: F.affine_grid(t, (2, 3, 5, 4), align_corners=False), normal(2, 2, 3)),
    "F.unfold": case(lambda F, x: F.unfold(x, (3, 2), dilation=2, padding=(1, 0), stride=(1, 2)) * 2, IMAGES),
    "F.fold": case(
        lambda F, x: F.fold(x, (6, 7), kernel_size=(3, 2), padding=(1, 0), stride=(2, 1)), normal(2, 12, 18)
    ),
    "F.fold, more": case(lambda F, x: F.fold(x, (6, 8), (3, 3), 1, 0, (2, 3)) * 2, normal(2, 9, 4)),
    "F.local_response_norm": case(
        lambda F, x: F.local_response_norm(x, 3, alpha=0.5) + F.local_response_norm(x, 2, 1.0, 0.5, 2.0), IMAGES
    ),
    "F.max_pool2d, dilated": case(
        lambda F, x: F.max_pool2d(x, 2, 1, dilation=2) + F.max_pool2d(x, (2, 3), 1, (1, 1), (2, 1))[:, :, 1:5, 1:5],
        IMAGES,
    ),
    "F.max_pool2d_with_indices": case(
        lambda F, x: F.max_pool2d_with_indices(x, 3, 2, 1)[1] + F.max_pool2d(x, 2, 2, 0, 2, True, True)[1],
        IMAGES, slope=False,
    ),
    "F.adaptive pools of volumes": case(
        lambda F, x: F.adaptive_avg_pool3d(x, (2, 1, 3)) + F.adaptive_max_pool3d(x, (2, 2, 3))[:, :, :, :1], VOLUMES
    ),
    "F.linear": case(lambda F, x, w, b: F.linear(x, w, b), X, WEIGHT, normal(5)),
    "F.relu": case(lambda F, x: F.relu(x, inplace=False) + F.relu6(4 * x), X),
    "F.leaky_relu": case(lambda F, x: F.leaky_relu(x, 0.2) + F.leaky_relu(x, negative_slope=0.1), X),
    "F.elu, selu, celu": case(lambda F, x: F.elu(x, alpha=0.7) + F.selu(x) + F.celu(x, 0.5), X),
    "F.gelu": case(lambda F, x: F.gelu(x) + F.gelu(x, approximate="tanh"), X),
    "F.silu, mish, hardswish": case(lambda F, x: F.silu(x) + F.mish(x) + F.hardswish(3 * x), X),
    "F.softplus": case(lambda F, x: F.softplus(x, beta=2.0) + F.softplus(10 * x, threshold=5), X),
    "F.logsigmoid": case(lambda F, x: F.logsigmoid(x) + F.sigmoid(x) + F.tanh(x), X),
    "F.hardtanh": case(lambda F, x: F.hardtanh(x, -0.5, 0.5) + F.hardtanh(x, min_val=0.1), X),
    "F.hardsigmoid": case(lambda F, x: F.hardsigmoid(4 * x), X, slope=False),  # torch has 1/6 in float32 in its slope
    "F.softsign, tanhshrink": case(lambda F, x: F.softsign(x) + F.tanhshrink(x), X),
    "F.softshrink, hardshrink": case(lambda F, x: F.softshrink(x, 0.3) + F.hardshrink(x) + F.threshold(x, 0.1, 2.0), X),
    "F.glu": case(lambda F, x: F.glu(x) * F.glu(x, dim=1), X),
    "F.prelu": case(lambda F, x, w: F.prelu(x, w), MAPS, np.array([0.1, 0.2, 0.3, 0.4])),
    "F.softmax": case(lambda F, x: F.softmax(x, dim=1) + F.log_softmax(x, dim=0) + F.softmin(x, dim=1), X),
    "F.normalize": case(lambda F, x: F.normalize(x) + F.normalize(x, p=1.0, dim=0), X),
    "F.cosine_similarity": case(lambda F, x, y: F.cosine_similarity(x, y) + F.pairwise_distance(x, y), X, Y),
    "F.layer_norm": case(lambda F, x, w: F.layer_norm(x, (6,), weight=w) + F.rms_norm(x, (6,), eps=1e-6), X, ROW),
    "F.group_norm": case(lambda F, x: F.group_norm(x, num_groups=3), IMAGES),
    "F.dropout": case(lambda F, x: F.dropout(x, 0.5, training=False) + F.dropout(x, p=0.0), X),
    "F.embedding": case(lambda F, i, w: F.embedding(i, w), TOKENS, normal(4, 3)),
    "F.embedding, padded": case(lambda F, i, w: F.embedding(i, w, padding_idx=1), TOKENS, normal(4, 3)),
    "F.one_hot": case(lambda F, i: F.one_hot(i, num_classes=4), TOKENS, slope=False),
    "F.pad": case(lambda F, x: F.pad(x, (1, 2)) + F.pad(x, (2, 1), mode="constant", value=1.5), X),
    "F.pad of images": case(lambda F, x: F.pad(x, (1, 0, 2, 1), mode="reflect") + F.pad(x, (1, 0, 2, 1)), IMAGES),
    "F.conv2d": case(lambda F, x, w, b: F.conv2d(x, w, b, stride=2, padding=1), IMAGES, normal(4, 3, 3, 3), normal(4)),
    "F.max_pool2d": case(lambda F, x: F.max_pool2d(x, 2) + F.max_pool2d(x, kernel_size=2, stride=2), IMAGES),
    "F.avg_pool2d": case(lambda F, x: F.avg_pool2d(x, kernel_size=3, stride=1, padding=1), IMAGES),
    "F.adaptive_avg_pool2d": case(lambda F, x: F.adaptive_avg_pool2d(x, 2), IMAGES),
    "F.interpolate": case(lambda F, x: F.interpolate(x, scale_factor=2), IMAGES),
    "F.pixel_shuffle": case(lambda F, x: F.pixel_shuffle(x, upscale_factor=2), MAPS),
    "F.attention": case(
        lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        + F.scaled_dot_product_attention(q, k, v, scale=0.3),
        normal(2, 5, 4), normal(2, 5, 4), normal(2, 5, 4),
    ),
    "F.cross_entropy": case(
        lambda F, x, i: F.cross_entropy(x, i) + F.cross_entropy(x, i, label_smoothing=0.1, reduction="sum"), X, LABELS
    ),
    "F.cross_entropy, weights": case(
        lambda F, x, i, w: F.cross_entropy(x, i, weight=w.detach()) + F.cross_entropy(x, i, ignore_index=2) + w.sum(),
        X, LABELS,
        POSITIVE[0],
    ),
    "F.cross_entropy of images": case(lambda F, x, i: F.cross_entropy(x, i), MAPS, MAP_LABELS),
    "F.nll_loss": case(lambda F, x, i: F.nll_loss(F.log_softmax(x, dim=1), i), X, LABELS),
    "F.binary_cross_entropy": case(
        lambda F, x, y: F.binary_cross_entropy(F.sigmoid(x), y) + F.binary_cross_entropy_with_logits(x, y), X, SCORES
    ),
    "F.binary_cross_entropy, weights": case(
        lambda F, x, y, w: F.binary_cross_entropy_with_logits(x, y, weight=w.detach())
        + F.binary_cross_entropy(F.sigmoid(x), y, weight=w.detach(), reduction="sum") + w.sum(),
        X, SCORES, POSITIVE,
    ),
    "F.mse_loss, l1_loss": case(lambda F, x, y: F.mse_loss(x, y) + F.l1_loss(x, y, reduction="sum"), X, Y),
    "F.huber_loss": case(lambda F, x, y: F.huber_loss(x, y, delta=0.5) + F.smooth_l1_loss(x, y, beta=0.5), X, Y),
    "F.margin_ranking_loss": case(
        lambda F, x, y, s: F.margin_ranking_loss(x, y, s, margin=0.3) + 0.0 * s.sum(), X[0, :4], Y[0, :4], SIGNS
    ),
    "F.triplet_margin_loss": case(lambda F, a, p, n: F.triplet_margin_loss(a, p, n, margin=0.5), X, Y, normal(4, 6)),
}  # fmt: skip

METHODS = {
    "x.view": case(lambda t, x: x.view(-1, 3).sum(1) * x.view((8, 3)).sum(1), X),
    "x.size, dim, numel": case(lambda t, x: x.reshape(x.size(1), x.size()[0]) * (x.dim() + x.numel()), X),
    "x.float, double": case(lambda t, x: x.double() + x.to(t.double) + x.type(t.float64) + x.to(x), X),
    "x.long, int, bool": case(lambda t, x: (4 * x).long() + (4 * x).int().long() + x.bool().long(), X, slope=False),
    "x.flatten, unsqueeze": case(lambda t, x: x.flatten(1).unsqueeze(1).squeeze(1) * x.unsqueeze(-1).sum(), CUBE),
    "x.softmax": case(lambda t, x: x.softmax(1) + x.log_softmax(dim=-1) + x.sigmoid() + x.tanh() + x.relu(), X),
    "x.clamp, pow": case(lambda t, x: x.clamp(-0.5, 0.5) * x.pow(2) + x.clamp(min=0.0) + x.square(), X),
    "x.masked_fill": case(lambda t, x, m: x.masked_fill(m, -2.0) + x.where(m, x * 2), X, BITS),
    "x.norm, std, var": case(lambda t, x: x.norm(dim=1) + x.std(1) + x.var(dim=1, unbiased=False) + x.norm(2, 1), X),
    "x.mT": case(lambda t, x: x.mT @ x + x.t() @ x + x.T.mm(x), X),
    "x.chunk, split": case(lambda t, x: x.chunk(2, dim=1)[0] + x.split(3, dim=1)[1] + x.unbind(1)[0].unsqueeze(1), X),
    "x.repeat": case(lambda t, x: x.repeat(2, 3) * 2 + x.tile(2, 3), X),
    "x.contiguous, clone, detach": case(lambda t, x: x.contiguous().clone() * x.detach(), X),
    "x.swapaxes": case(lambda t, x: x.swapaxes(0, 1) + x.movedim(0, 1) + x.permute(1, 0) * x.transpose(0, 1), X),
    "x.sum, mean": case(lambda t, x: x.sum(dim=1, keepdim=True) + x.mean(dim=1) + x.amax(dim=1, keepdim=True), X),
    "x.argmax, argmin": case(lambda t, x: x.argmax(dim=1) + 7 * x.argmin(dim=1, keepdim=False), X, slope=False),
    "x.eq, gt": case(lambda t, x, y: x.gt(y).logical_or(x.eq(y)).logical_not(), X, Y, slope=False),
    "x.expand": case(lambda t, x: x.expand(3, -1, -1) * 2 + x.unsqueeze(0).expand_as(t.stack([x, x, x])), X),
    "x.new_zeros": case(lambda t, x: x.new_ones(4, 6) * x + x.new_zeros((4, 6)) + x.new_full((6,), 2.0), X),
    "x.gather": case(lambda t, x, i: x.gather(1, i) * x.gather(dim=1, index=i), X, INTS),
    "x.bmm, matmul": case(lambda t, x: x.bmm(x.transpose(1, 2)) + x.matmul(x.mT), CUBE),
    "x.log1p, exp": case(lambda t, x: x.abs().log1p() + x.exp().log() + x.sin() + x.abs().sqrt() + x.neg(), X),
    "x.cumsum, flip": case(lambda t, x: x.cumsum(dim=1) + x.flip(1) + x.roll(1, 1) + x.tril() + x.triu(1), X),
    "x.add, sub, mul, div": case(lambda t, x, y: x.add(y).sub(x).mul(y).div(y.exp()), X, Y),
    "x // y": case(lambda t, x, y: x // y, 3 * X, POSITIVE, slope=False),
    "x.lerp, addcmul": case(lambda t, x, y: x.lerp(y, 0.3) + x.addcmul(x, y) + x.logsumexp(dim=1, keepdim=True), X, Y),
    "len": case(lambda t, x: x * len(x), X),
    "topk, sort": case(lambda t, x: x.topk(2, dim=1)[0] + t.take_along_dim(x, t.argsort(x, dim=1), 1)[:, :2], X),
}  # fmt: skip
