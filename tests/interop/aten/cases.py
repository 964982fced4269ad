"""Functions of torch, each with separate tensors: the op that a row of the table records is compared with torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Case = tuple[Callable[..., Any], list[Any]]


def some(*shape: int, low: float = -2.0, high: float = 2.0) -> Any:
    """Numbers of a shape, all different, none near a whole number: no gradient is taken at an edge."""
    count = math.prod(shape)
    spread = torch.linspace(low, high, count + 2, dtype=torch.float64)[1:-1] + 0.0137
    return spread[torch.randperm(count, generator=torch.Generator().manual_seed(count))].reshape(shape)


def above(*shape: int) -> Any:
    return some(*shape, low=0.3, high=3.0)


def whole(*shape: int, low: int = 0, high: int = 6) -> Any:
    """Whole numbers that are known while importing."""
    return (torch.arange(math.prod(shape)) * 7 + 2).remainder(high - low).reshape(shape) + low


def counted(x: Any) -> Any:
    """Whole numbers that are not: they depend on what is given."""
    return torch.floor(x.detach() * 3.0).long()


def _with_cholesky(a: Any, b: Any) -> Any:
    """Solved, and inverted, by both triangles."""
    both = [(torch.linalg.cholesky(a, upper=u), u) for u in (False, True)]
    return sum(torch.cholesky_solve(b, t, upper=u) + torch.cholesky_inverse(t, upper=u)[..., :2] for t, u in both)


X, Y, M = (3, 4), (4,), (2, 3, 4)
A = torch.ops.aten

POINTWISE: dict[str, Case] = {
    **{f"unary {f.__name__}": (f, [some(*X)]) for f in (
        torch.exp, torch.exp2, torch.expm1, torch.sin, torch.cos, torch.tan, torch.tanh, torch.sinh, torch.cosh,
        torch.asinh, torch.atan, torch.erf, torch.erfc, torch.abs, torch.neg, torch.square, torch.sinc, torch.sign, torch.floor,
        torch.ceil, torch.trunc, torch.frac, torch.round, torch.reciprocal, torch.deg2rad, torch.relu, torch.sigmoid,
    )},
    **{f"positive {f.__name__}": (f, [above(*X)]) for f in (
        torch.log, torch.log2, torch.log10, torch.log1p, torch.sqrt, torch.rsqrt, torch.special.entr,
    )},
    "acosh": (torch.acosh, [above(*X) + 1.0]),
    "asin, acos": (lambda x: torch.asin(x) * 2.0 + torch.acos(x) * x + torch.erfinv(x), [some(*X, low=-0.9, high=0.9)]),
    "hardsigmoid to the last digit": (lambda x: F.hardsigmoid(x) * 1e4, [some(*X)]),
    "atan2": (torch.atan2, [some(*X), some(*Y)]),
    "gamma": (lambda x: torch.lgamma(x) + torch.digamma(x), [above(*X)]),
    "bits of whole": (lambda x: (counted(x) & 3) + (counted(x) | 4) + (counted(x) ^ 1) + ~counted(x) + (counted(x) >> 1) + (counted(x) << 2) + x, [some(*X)]),
    "atanh": (torch.atanh, [some(*X, low=-0.9, high=0.9)]),
    "logit": (lambda x: torch.logit(x, 0.1), [some(*X, low=0.02, high=0.96)]),
    "ndtr": (torch.special.ndtr, [some(*X)]),
    "round decimals": (lambda x: torch.round(x, decimals=1), [some(*X)]),
    "add alpha": (lambda x, y: torch.add(x, y, alpha=3), [some(*X), some(*Y)]),
    "add scalar": (lambda x: x + 2, [some(*X)]),
    "sub alpha": (lambda x, y: torch.sub(x, y, alpha=0.5), [some(*X), some(*Y)]),
    "rsub": (lambda x: torch.rsub(x, 1.5, alpha=2), [some(*X)]),
    "mul": (lambda x, y: x * y, [some(*X), some(3, 1)]),
    "div": (lambda x, y: x / y, [some(*X), above(*Y)]),
    "div floor": (lambda x, y: torch.div(x, y, rounding_mode="floor") + x, [some(*X), above(*Y)]),
    "div trunc": (lambda x: torch.div(x, 0.7, rounding_mode="trunc") + x, [some(*X)]),
    "floor_divide of whole": (lambda x: torch.floor_divide(counted(x), 2).double() + x, [some(3)]),
    "div trunc of whole": (lambda x: torch.div(counted(x), 2, rounding_mode="trunc").double() + x, [some(3)]),
    "remainder": (lambda x: torch.remainder(x, 0.7), [some(*X)]),
    "remainder of tensors": (lambda x, y: torch.remainder(x, y), [some(*X), above(*X)]),
    "remainder of whole": (lambda x: torch.remainder(counted(x), 3).double() + x, [some(4)]),
    "fmod": (lambda x: torch.fmod(x, 0.7), [some(*X)]),
    "fmod of whole": (lambda x: torch.fmod(counted(x), 3).double() + x, [some(4)]),
    "maximum": (torch.maximum, [some(*X), some(*Y)]),
    "minimum": (torch.minimum, [some(*X), some(*Y)]),
    "fmax": (torch.fmax, [some(*X), some(*Y)]),
    "hypot": (torch.hypot, [some(*X), some(*Y)]),
    "logaddexp": (torch.logaddexp, [some(*X), some(*Y)]),
    "logaddexp2": (torch.logaddexp2, [some(*X), some(*Y)]),
    "xlogy": (torch.xlogy, [some(*X), above(*Y)]),
    "xlogy at 0": (torch.xlogy, [torch.zeros(X, dtype=torch.float64), above(*Y)]),
    "copysign": (lambda x, y: torch.copysign(x, y), [some(*X), some(*Y)]),
    "heaviside": (lambda x, y: torch.heaviside(x.detach(), y.detach()) + x, [some(*X), some(*Y)]),
    **{f"pow {p}": (lambda x, p=p: torch.pow(x, p), [some(*X)]) for p in (0, 1, 2, 3, 4, 5, -1, -2)},
    **{f"pow {p}": (lambda x, p=p: torch.pow(x, p), [above(*X)]) for p in (0.5, -0.5, 1.7, -0.3)},
    "pow of whole": (lambda x: torch.pow(counted(x), 3).double() + x, [some(4)]),
    "pow scalar": (lambda x: torch.pow(2.5, x), [some(*X)]),
    "pow tensors": (torch.pow, [above(*X), some(*X)]),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.5), [some(*X), some(*X), some(*Y)]),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), [some(*X), some(*X), above(*Y)]),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), [some(*X), some(*X)]),
    "lerp tensor": (torch.lerp, [some(*X), some(*X), some(*X)]),
    "clamp": (lambda x: torch.clamp(x, -0.5, 0.7), [some(*X)]),
    "clamp min": (lambda x: torch.clamp(x, min=0.2), [some(*X)]),
    "clamp tensors": (lambda x, y: torch.clamp(x, max=y), [some(*X), some(*X)]),
    "nan_to_num": (lambda x: torch.nan_to_num(x / torch.tensor([1.0, 0, 1, 1], dtype=torch.float64), posinf=9.0, neginf=-9.0), [some(*X)]),
    "comparisons": (lambda x, y: ((x < y) | (x >= 0.5)).double() * x + (x != y).double() * (x <= 0).double(), [some(*X), some(*Y)]),
    "comparison of whole": (lambda x: (counted(x) > 2).double() * x + (counted(x) == 2.0) * x, [some(4)]),
    "logic": (lambda x: (torch.logical_xor(x > 0, x < 1) & ~(x > 1.5)).double() * x, [some(*X)]),
    "bits of conditions": (lambda x: torch.bitwise_and(x > 0, x < 1).double() * x + torch.bitwise_not(x > 0) * x, [some(*X)]),
    "isnan, isinf": (lambda x: torch.isnan(x) * 2.0 + torch.isinf(x) * 1.0 + torch.isfinite(x) * x, [some(*X)]),
    "where": (lambda x, y: torch.where(x > 0, x, y), [some(*X), some(*Y)]),
    "where scalar": (lambda x: torch.where(x > 0, x, -1.5), [some(*X)]),
    "masked_fill": (lambda x: x.masked_fill(whole(*X) > 3, -4.0), [some(*X)]),
    "cast": (lambda x: x.to(torch.int64).double() + x.bool().double() + x.to(torch.int32).double() * x, [some(*X)]),
    "type promotion": (lambda x: x * 2 + counted(x) + True, [some(*X)]),
    "in place": (lambda x: (x * 1.0).add_(1.0).mul_(x).clamp_(-1.0, 1.0).relu_(), [some(*X)]),
    "into a slice": (lambda x: _into(x), [some(*X)]),
    "detach": (lambda x: x.detach() * x, [some(*X)]),
    "no grad": (lambda x: _no_grad(x), [some(*X)]),
}  # fmt: skip


def _into(x: Any) -> Any:
    y = torch.zeros(3, 4, dtype=torch.float64)
    y[:, 1] = x[:, 0]
    y[0] = x[1] * 2.0
    y[1:, ::2] += x[1:, ::2]
    return y * x


def _no_grad(x: Any) -> Any:
    with torch.no_grad():
        scale = (x * x).sum()
    return x * scale


ACTIVATIONS: dict[str, Case] = {
    **{f"activation {f.__name__}": (f, [some(*X) * 2.0]) for f in (
        F.silu, F.mish, F.gelu, F.softplus, F.logsigmoid, F.leaky_relu, F.elu, F.celu, F.selu, F.relu6, F.hardtanh,
        F.hardsigmoid, F.hardswish, F.hardshrink, F.softshrink, F.softsign, F.tanhshrink, F.glu,
    )},
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), [some(*X)]),
    "softplus beta": (lambda x: F.softplus(x, beta=2.0, threshold=1.0), [some(*X)]),
    "elu alpha": (lambda x: F.elu(x, alpha=0.5), [some(*X)]),
    "threshold": (lambda x: F.threshold(x, 0.3, -1.0), [some(*X)]),
    "prelu": (F.prelu, [some(2, 3, 4), some(3)]),
    "glu axis": (lambda x: F.glu(x, 0), [some(4, 3)]),
    "softmax": (lambda x: F.softmax(x, 0), [some(*X)]),
    "log_softmax": (lambda x: F.log_softmax(x, -1), [some(*X)]),
    "softmin": (lambda x: F.softmin(x, 1), [some(*X)]),
}  # fmt: skip

REDUCTIONS: dict[str, Case] = {
    "sum": (torch.sum, [some(*M)]),
    "sum axes": (lambda x: torch.sum(x, (0, -1), keepdim=True), [some(*M)]),
    "sum of whole": (lambda x: counted(x).sum() * x.sum(0), [some(*X)]),
    "mean": (lambda x: x.mean((1, 2)), [some(*M)]),
    "mean all": (lambda x: x.mean(), [some(*M)]),
    "amax": (lambda x: x.amax((0, 2)), [some(*M)]),
    "amin": (lambda x: x.amin(1, keepdim=True), [some(*M)]),
    "max": (torch.max, [some(*M)]),
    "min": (torch.min, [some(*M)]),
    "max along": (lambda x: torch.max(x, 1)[0] + torch.max(x, 1)[1], [some(*M)]),
    "min along": (lambda x: torch.min(x, -1, keepdim=True)[0], [some(*M)]),
    "max of equal ones": (lambda x: torch.max(torch.relu(x - 5.0) + 0.0 * x, 1)[0] + x.sum(), [some(*X)]),
    "aminmax": (lambda x: torch.aminmax(x, dim=1)[0] * torch.aminmax(x, dim=1)[1], [some(*X)]),
    "argmax": (lambda x: x.argmax(1).double() + x.argmin(1) + x.argmax() + x[:, 0], [some(*X)]),
    "var": (lambda x: x.var((0, 1)), [some(*M)]),
    "var correction": (lambda x: torch.var(x, 1, correction=0, keepdim=True), [some(*M)]),
    "var biased": (lambda x: torch.var(x, 1, unbiased=False), [some(*M)]),
    "std": (lambda x: x.std(), [some(*M)]),
    "var keepdim": (lambda x: A.var.dim(x, [1], False, True) + A.std.dim(x, [0, 2], True, True), [some(*M)]),
    "var_mean keepdim": (lambda x: sum(A.var_mean.dim(x, [1], True, True)), [some(*M)]),
    "var_mean": (lambda x: sum(torch.var_mean(x, 1)), [some(*M)]),
    "std_mean": (lambda x: sum(torch.std_mean(x, (0, 2))), [some(*M)]),
    **{f"norm {p}": (lambda x, p=p: torch.linalg.vector_norm(x, p, dim=1), [some(*X)]) for p in (0, 1, 2, 3, 2.5, math.inf, -math.inf)},
    "norm of nothing": (lambda x: torch.linalg.vector_norm(x * 0.0, 2, dim=1), [some(*X)]),
    "normalize": (lambda x: F.normalize(x, dim=1), [some(*X)]),
    "cosine_similarity": (lambda x, y: F.cosine_similarity(x, y, dim=1), [some(*X), some(*X) * 2.0]),
    "any, all": (lambda x: (x > 0).any(1).double() + (x > -5).all() + (x > 0).all(0).sum() + x[:, 0], [some(*X)]),
    "prod": (lambda x: x.prod(1), [some(*M)]),
    "prod all": (lambda x: x.prod(), [some(*X)]),
    "logsumexp": (lambda x: torch.logsumexp(x, (0, 2)), [some(*M)]),
    "logsumexp one": (lambda x: torch.logsumexp(x, 1, keepdim=True), [some(*M)]),
    "count_nonzero": (lambda x: torch.count_nonzero(x > 0, dim=1) + x[:, 0], [some(*X)]),
    "nansum, nanmean": (lambda x: torch.nansum(x, 1) + torch.nanmean(x, 1), [some(*X)]),
    "trace": (torch.trace, [some(*X)]),
    "cumsum": (lambda x: x.cumsum(1), [some(*M)]),
    "cumprod": (lambda x: x.cumprod(-1), [above(*X)]),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 1), [some(*X)]),
    "cummax": (lambda x: torch.cummax(x, 1)[0] + torch.cummax(x, 1)[1], [some(*X)]),
    "cummin": (lambda x: torch.cummin(x, 0)[0], [some(*X)]),
    "topk": (lambda x: torch.topk(x, 2, 1)[0] + torch.topk(x, 2, 1)[1], [some(*X)]),
    "topk smallest": (lambda x: torch.topk(x, 2, 0, largest=False)[0], [some(*X)]),
    "sort": (lambda x: torch.sort(x, 1, descending=True)[0] * 2.0 + torch.sort(x)[1], [some(*X)]),
    "argsort": (lambda x: torch.argsort(x, dim=0) + x, [some(*X)]),
    "kthvalue": (lambda x: torch.kthvalue(x, 2, 1)[0], [some(*X)]),
    "median": (lambda x: torch.median(x, 1)[0] + torch.median(x), [some(3, 5)]),
    "bucketize": (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)) + x, [some(*X)]),
    "searchsorted": (lambda x: torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64), x, right=True) + x, [some(*X)]),
    "histc": (lambda x: torch.histc(x.detach(), 4, -2.0, 2.0) + x.sum(), [some(*X)]),
    "isin": (lambda x: torch.isin(counted(x), torch.tensor([1, 3])).double() + x, [some(4)]),
}  # fmt: skip

MOVEMENT: dict[str, Case] = {
    "stacks": (lambda x, y: torch.hstack([x, x]).sum() + torch.vstack([x, y]) + torch.dstack([x, x]).sum() + torch.column_stack([x, x])[:, :4].sum(), [some(*X), some(*Y)]),
    "view": (lambda x: x.view(6, -1), [some(*M)]),
    "squeeze": (lambda x: x[None].squeeze(0).unsqueeze(-1).flatten(1), [some(*M)]),
    "expand": (lambda x: x[:, None].expand(-1, 2, -1), [some(*X)]),
    "permute": (lambda x: x.permute(2, 0, -2), [some(*M)]),
    "transpose": (lambda x: x.transpose(-1, 0).mT, [some(*M)]),
    "movedim": (lambda x: x.movedim(0, -1), [some(*M)]),
    "slice": (lambda x: x[1:, :-1, ::2], [some(3, 4, 5)]),
    "select": (lambda x: x[:, -1] * x[0, 1], [some(*M)]),
    "narrow": (lambda x: x.narrow(1, 1, 2), [some(*M)]),
    "cat": (lambda x, y: torch.cat([x, y, torch.zeros(0)], -1), [some(3, 2), some(3, 3)]),
    "stack": (lambda x, y: torch.stack([x, y], -1), [some(*X), some(*X)]),
    "split": (lambda x: x.split(2, 1)[0] * x.split([1, 2, 1], 1)[1], [some(*X)]),
    "chunk": (lambda x: x.chunk(3, 1)[0] * x.tensor_split(2, 1)[0], [some(*X)]),
    "unbind": (lambda x: x.unbind(1)[2], [some(*M)]),
    "repeat": (lambda x: x.repeat(2, 1, 3), [some(*X)]),
    "tile": (lambda x: torch.tile(x, (2,)), [some(*X)]),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), [some(*X)]),
    "flip": (lambda x: x.flip(0, -1), [some(*M)]),
    "rot90": (lambda x: torch.rot90(x, 1, (0, 1)) * 2.0 + torch.rot90(x, 3, (0, 1)), [some(3, 3)]),
    "roll": (lambda x: x.roll((1, -2), (0, 2)), [some(*M)]),
    "roll all": (lambda x: x.roll(3), [some(*M)]),
    "unfold": (lambda x: x.unfold(1, 3, 2), [some(2, 7)]),
    "diagonal": (lambda x: x.diagonal(1, 0, 2), [some(3, 2, 4)]),
    "diag_embed": (lambda x: torch.diag_embed(x, 1), [some(2, 3)]),
    "diag": (lambda x: torch.diag(x), [some(3)]),
    "tril, triu": (lambda x: x.tril(1) * 2.0 + x.triu(-1), [some(*M)]),
    "as_strided": (lambda x: x.as_strided((2, 2), (1, 3), 1), [some(*X)]),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), [some(1, 8, 2, 3)]),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), [some(1, 2, 4, 6)]),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), [some(1, 4, 2, 2)]),
    "meshgrid": (lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="xy")), [some(2), some(3)]),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1), value=0.5), [some(*X)]),
    "pad below 0": (lambda x: F.pad(x, (-1, 2)), [some(*X)]),
    "pad reflect": (lambda x: F.pad(x, (1, 2), mode="reflect"), [some(2, 3, 4)]),
    "pad replicate": (lambda x: F.pad(x, (1, 2, 1, 1), mode="replicate"), [some(1, 2, 3, 4)]),
    "pad circular": (lambda x: F.pad(x, (1, 2), mode="circular"), [some(2, 3, 4)]),
    "im2col": (lambda x: F.unfold(x, (2, 3), padding=1, stride=2), [some(2, 3, 4, 5)]),
    "col2im": (lambda x: F.fold(x, (4, 5), (2, 3), padding=1, stride=2), [some(2, 18, 9)]),
    "full, arange": (lambda x: x + torch.full_like(x, 2.0) + torch.arange(4) + x.new_zeros(4) + torch.ones_like(x), [some(*X)]),
    "linspace": (lambda x: x * torch.linspace(0, 1, 4), [some(*X)]),
}  # fmt: skip

INDEXING: dict[str, Case] = {
    "embedding": (lambda w: F.embedding(whole(2, 3), w), [some(6, 4)]),
    "embedding padding": (lambda w: F.embedding(whole(2, 3), w, padding_idx=2), [some(6, 4)]),
    "embedding bag of data": (lambda w, x: F.embedding_bag(whole(7), w, torch.cat([counted(x * 0.0), counted(x).clamp(1, 6)])), [some(6, 4), above(1)]),
    "embedding bag mean": (lambda w, x: F.embedding_bag(whole(7), w, torch.tensor([0, 2, 2]), mode="mean", padding_idx=3) * x, [some(6, 4), above(1)]),
    "embedding bag max": (lambda w: F.embedding_bag(whole(7), w, torch.tensor([0, 2, 2]), mode="max"), [some(6, 4)]),
    "embedding bag weights": (lambda w, s: F.embedding_bag(whole(7), w, torch.tensor([0, 4]), per_sample_weights=s, mode="sum"), [some(6, 4), some(7)]),
    "masked select": (lambda x: torch.masked_select(x, torch.eye(3, 4) > 0), [some(*X)]),
    "put a row at a mask": (lambda x, v: A.index_put(x, [counted(x)[..., 0] > 0], v) + A.index_put(x, [None, counted(x)[0] > 0], v[0]), [some(*M), some(4)]),
    "embedding bag": (lambda w: F.embedding_bag(whole(2, 3), w, mode="mean"), [some(6, 4)]),
    "index_select": (lambda x: x.index_select(1, torch.tensor([2, 0, 2])), [some(*X)]),
    "index": (lambda x: x[torch.tensor([1, -1])], [some(*X)]),
    "index pairs": (lambda x: x[:, torch.tensor([0, 2]), torch.tensor([1, -2])], [some(*M)]),
    "index apart": (lambda x: x[torch.tensor([0, 1]), :, torch.tensor([3, 1])], [some(*M)]),
    "index broadcast": (lambda x: x[torch.tensor([[0], [1]]), torch.tensor([2, 0])], [some(*M)]),
    "index by mask": (lambda x: x[torch.tensor([True, False, True])], [some(*X)]),
    "index computed": (lambda x: x[x[:, 0].argsort()], [some(*X)]),
    "gather": (lambda x: x.gather(1, whole(3, 2, high=4)), [some(*X)]),
    "gather smaller": (lambda x: x.gather(0, whole(2, 3, high=3)), [some(*X)]),
    "take_along_dim": (lambda x: torch.take_along_dim(x, x.argmax(1, keepdim=True), 1), [some(*X)]),
    "take": (lambda x: torch.take(x, torch.tensor([[0, -1], [5, 2]])), [some(*X)]),
    "one_hot": (lambda x: F.one_hot(whole(3), 6).double() * x.sum(), [some(3)]),
    "index_put": (lambda x, v: x.index_put((torch.tensor([0, 2]),), v), [some(*X), some(2, 4)]),
    "index_put accumulate": (lambda x, v: x.index_put((torch.tensor([0, 0]), torch.tensor([1, 1])), v, accumulate=True), [some(*X), some(2)]),
    "index_put mask": (lambda x: x.index_put((x > 0,), torch.tensor(7.0, dtype=torch.float64)), [some(*X)]),
    "scatter": (lambda x, v: x.scatter(1, torch.tensor([[0, 2], [1, 3], [2, 0]]), v), [some(*X), some(3, 2)]),
    "scatter value": (lambda x: x.scatter(0, torch.tensor([[0, 2, 1, 0]]), 1.5), [some(*X)]),
    "scatter_add": (lambda x, v: x.scatter_add(1, whole(3, 2, high=4), v), [some(*X), some(3, 2)]),
    **{f"scatter_reduce {how}": (lambda x, v, how=how: x.scatter_reduce(1, torch.tensor([[0, 0, 2], [1, 3, 3], [2, 2, 2]]), v, how), [some(*X), some(3, 3) * 1.1]) for how in ("sum", "mean", "amax", "amin", "prod")},
    "index_add": (lambda x, v: x.index_add(0, torch.tensor([0, 0]), v, alpha=2), [some(*X), some(2, 4)]),
    "index_copy": (lambda x, v: x.index_copy(1, torch.tensor([3, 0]), v), [some(*X), some(3, 2)]),
    "index_fill": (lambda x: x.index_fill(1, torch.tensor([3, 0]), -1.0), [some(*X)]),
    "slice_scatter": (lambda x, v: torch.slice_scatter(x, v, 1, 0, 4, 2), [some(*X), some(3, 2)]),
    "select_scatter": (lambda x, v: torch.select_scatter(x, v, 1, -1), [some(*X), some(3)]),
    "diagonal_scatter": (lambda x, v: torch.diagonal_scatter(x, v, 1), [some(*X), some(3)]),
    "masked_scatter": (lambda x, v: x.masked_scatter(x > 0, v), [some(*X), some(12)]),
}  # fmt: skip

PRODUCTS: dict[str, Case] = {
    "mm": (torch.mm, [some(3, 4), some(4, 2)]),
    "bmm": (torch.bmm, [some(2, 3, 4), some(2, 4, 2)]),
    "matmul": (torch.matmul, [some(2, 1, 3, 4), some(5, 4, 2)]),
    "mv, dot": (lambda x, y: torch.mv(x, y).sum() + torch.dot(y, y), [some(3, 4), some(4)]),
    "addmm": (lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2), [some(2), some(3, 4), some(4, 2)]),
    "baddbmm": (lambda c, x, y: torch.baddbmm(c, x, y, alpha=2), [some(2, 3, 2), some(2, 3, 4), some(2, 4, 2)]),
    "outer": (torch.outer, [some(3), some(4)]),
    "linear": (F.linear, [some(2, 3, 4), some(5, 4), some(5)]),
    "bilinear": (F.bilinear, [some(3, 2), some(3, 4), some(5, 2, 4), some(5)]),
    "einsum": (lambda x, y: torch.einsum("bij,bjk->bki", x, y), [some(2, 3, 4), some(2, 4, 2)]),
    "tensordot": (lambda x, y: torch.tensordot(x, y, 1), [some(3, 4), some(4, 2)]),
    "cross": (lambda x, y: torch.linalg.cross(x, y), [some(2, 3), some(2, 3) * 2.0]),
    "cdist": (lambda x, y: torch.cdist(x, y) + torch.cdist(x, y, 1.0), [some(3, 4), some(2, 4)]),
    "det": (lambda x: torch.linalg.det(x) + torch.slogdet(x)[1], [some(2, 3, 3)]),
    "inverse": (lambda x, y: torch.linalg.inv(x) + torch.linalg.solve(x, y), [some(2, 3, 3), some(2, 3, 3)]),
    "solve": (lambda x, y: torch.linalg.solve(x, y[0, 0]) + torch.linalg.solve(x, y, left=False).sum(-2), [some(2, 3, 3), some(2, 4, 3)]),
    "cholesky solved": (lambda x, y: _with_cholesky(x @ x.mT + torch.eye(3, dtype=x.dtype), y), [some(2, 3, 3), some(2, 3, 2)]),
    "matrix_exp": (torch.linalg.matrix_exp, [some(2, 3, 3)]),
    "householder": (torch.linalg.householder_product, [some(2, 4, 3), above(2, 2)]),
    "qr": (lambda x: torch.cat([torch.linalg.qr(x)[0], torch.linalg.qr(x)[1] * 2.0], -2), [some(2, 4, 3)]),
    "qr square": (lambda x: torch.linalg.qr(x)[0] * x + torch.linalg.qr(x)[1], [some(2, 3, 3)]),
    "lstm with projections": (lambda x, h, c, *w: torch.cat([t.flatten() for t in torch.lstm(x, (h, c), w, True, 1, 0.0, True, True, True)]),
                              [some(2, 5, 3), some(2, 2, 2), some(2, 2, 4), *[some(*s) for _ in range(2) for s in ((16, 3), (16, 2), (16,), (16,), (2, 4))]]),
    "cholesky": (lambda x: sum(torch.linalg.cholesky(x @ x.mT + torch.eye(3, dtype=x.dtype), upper=u) for u in (False, True)), [some(2, 3, 3)]),
    "triangles": (lambda x, y: torch.linalg.solve_triangular(x, y, upper=True) + torch.linalg.solve_triangular(x, y, upper=False, left=False, unitriangular=True), [some(2, 3, 3), some(2, 3, 3)]),
    "distances": (lambda x, y: torch.cdist(x, y, p=3.0).sum() + torch.dist(x, y, 1) + F.pdist(x).sum(), [some(*X), some(*X) * 0.7]),
    "inner": (lambda x, y: torch.inner(x, y).sum(-1) + torch.inner(x[0], y).sum(-1, keepdim=True), [some(3, 3), some(3, 3)]),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [some(2, 2, 3, 4), some(2, 2, 3, 4), some(2, 2, 3, 4)]),
    "attention mask": (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3), [some(1, 2, 3, 4), some(1, 2, 5, 4), some(1, 2, 5, 4), some(3, 5)]),
    "attention bool": (lambda q: F.scaled_dot_product_attention(q, q, q, torch.ones(3, 3).tril(-1).bool()), [some(1, 2, 3, 4)]),
    "attention of one query": (lambda q, k: F.scaled_dot_product_attention(q, k, k), [some(1, 2, 3, 4), some(3, 2, 5, 4)]),
    "attention groups": (lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), [some(1, 4, 3, 2), some(1, 2, 3, 2)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (3, 4), w, b, 1e-3), [some(2, 3, 4), some(3, 4), some(3, 4)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), [some(3, 4), some(4)]),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [some(2, 4, 3), some(4), some(4)]),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [some(2, 3, 4, 2), some(3), some(3)]),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), [some(4, 3, 2), some(3), some(3)]),
    "local_response_norm": (lambda x: F.local_response_norm(x, 3), [some(2, 4, 3)]),
    "weight_norm": (lambda v, g: torch._weight_norm(v, g, 0), [some(3, 4), above(3, 1)]),
}  # fmt: skip

WINDOWS: dict[str, Case] = {
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1), [some(2, 3, 7), some(4, 3, 3), some(4)]),
    "conv1d dilated": (lambda x, w: F.conv1d(x, w, dilation=2, groups=3), [some(2, 3, 7), some(3, 1, 3)]),
    "conv1d same": (lambda x, w: F.conv1d(x, w, padding="same"), [some(2, 3, 6), some(2, 3, 3)]),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2)), [some(2, 3, 5, 6), some(4, 3, 3, 2), some(4)]),
    "conv2d groups": (lambda x, w: F.conv2d(x, w, groups=2, dilation=2), [some(2, 4, 6, 6), some(4, 2, 2, 2)]),
    "conv2d one image": (lambda x, w: F.conv2d(x, w), [some(3, 5, 5), some(2, 3, 2, 2)]),
    "conv3d": (lambda x, w, b: F.conv3d(x, w, b, stride=(1, 2, 1), padding=1), [some(1, 2, 3, 4, 4), some(3, 2, 2, 3, 2), some(3)]),
    "conv_transpose1d": (lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2, padding=1, output_padding=1), [some(2, 3, 5), some(3, 2, 4), some(2)]),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, groups=2), [some(1, 4, 3, 4), some(4, 2, 3, 3)]),
    "conv_transpose3d": (lambda x, w: F.conv_transpose3d(x, w, stride=2), [some(1, 2, 2, 2, 3), some(2, 2, 2, 2, 2)]),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 2, 1), [some(1, 2, 7)]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), [some(1, 2, 6, 7)]),
    "max_pool2d dilated": (lambda x: F.max_pool2d(x, 2, 1, 0, 2), [some(1, 2, 5, 6)]),
    "avg_pool2d of a window beyond the image": (lambda x: F.avg_pool2d(x, 4000, ceil_mode=True), [some(1, 2, 3, 5)]),
    "max_unpool2d of windows that overlap": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 3, 2, return_indices=True), 3, 2), [some(1, 2, 5, 7)]),
    "max_pool2d indices": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), [some(1, 2, 4, 6)]),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), [some(1, 2, 2, 4, 4)]),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), [some(1, 2, 7)]),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), [some(1, 2, 6, 7)]),
    "avg_pool2d ceil": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), [some(1, 2, 6, 7)]),
    "avg_pool2d divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), [some(1, 2, 4, 6)]),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, (1, 2, 2)), [some(1, 2, 2, 4, 4)]),
    "lp_pool2d": (lambda x: F.lp_pool2d(x, 2.0, 2), [above(1, 2, 4, 4)]),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 3), [some(1, 2, 7)]),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), [some(1, 2, 7, 5)]),
    "adaptive_avg_pool2d 1": (lambda x: F.adaptive_avg_pool2d(x, 1), [some(1, 2, 7, 5)]),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, (1, 2, 2)), [some(1, 2, 2, 5, 4)]),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), [some(1, 2, 7, 5)]),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 3), [some(1, 2, 7)]),
    **{f"interpolate {mode} {by}": (lambda x, mode=mode, by=by: F.interpolate(x, **by, mode=mode), [some(1, 2, 3, 4)])
       for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area") for by in ({"scale_factor": 2}, {"size": (5, 3)})},
    "interpolate corners": (lambda x: F.interpolate(x, size=(5, 7), mode="bilinear", align_corners=True), [some(1, 2, 3, 4)]),
    "interpolate 1.7": (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), [some(1, 2, 3, 4)]),
    "interpolate smooth": (lambda x: F.interpolate(x, size=(2, 3), mode="bilinear", antialias=True), [some(1, 2, 5, 6)]),
    "interpolate signal": (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), [some(1, 2, 4)]),
    "interpolate volume": (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), [some(1, 1, 2, 3, 2)]),
    **{f"grid_sample {pad} {corners}": (lambda x, g, pad=pad, corners=corners: F.grid_sample(x, g, padding_mode=pad, align_corners=corners), [some(1, 2, 4, 5), some(1, 3, 3, 2, low=-1.3, high=1.3)])
       for pad in ("zeros", "border", "reflection") for corners in (True, False)},
    "grid_sample nearest": (lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=False), [some(1, 2, 4, 5), some(1, 3, 3, 2, low=-0.9, high=0.9)]),
    "affine_grid": (lambda t: F.affine_grid(t, (1, 1, 3, 4), align_corners=False), [some(1, 2, 3)]),
    "fft": (lambda x: torch.fft.rfft(x).abs(), [some(2, 6)]),
    "fft back": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.tensor([1.0, 2j, 0.5, 1.0]), n=6), [some(2, 6)]),
    "fft 2": (lambda x: torch.fft.fftn(x, dim=(-2, -1), norm="ortho").real, [some(2, 3, 4)]),
    "fft back 2": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=(3, 5)), [some(2, 3, 5)]),
    "complex": (lambda x: torch.view_as_real(torch.view_as_complex(x) * torch.polar(torch.ones(3, dtype=torch.float64), torch.arange(3.0, dtype=torch.float64))), [some(2, 3, 2)]),
    **{f"complex {f}": (lambda x, y, f=f: torch.view_as_real(getattr(torch.complex(x, y), f)()), [some(*X), above(*X)])
       for f in ("log", "sqrt", "reciprocal", "sgn", "sin", "cos", "sinh", "cosh", "tanh")},
    "complex powers": (lambda x, y: (torch.complex(x, y) ** 3 + torch.complex(x, y) ** -2 + torch.complex(x, y) ** 0.7).imag, [some(*X), above(*X)]),
    "angles": (lambda x, y: torch.complex(x, y).angle() + torch.complex(x, y).conj().imag + torch.angle(x) * x, [some(*X), above(*X)]),
}  # fmt: skip

FAMILIES = {
    "pointwise": {**POINTWISE, **ACTIVATIONS}, "reductions": REDUCTIONS, "movement": {**MOVEMENT, **INDEXING},
    "products": PRODUCTS, "windows": WINDOWS,
}  # fmt: skip
