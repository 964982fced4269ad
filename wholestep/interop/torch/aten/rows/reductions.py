"""Sums, means, extremes and other reductions."""

from __future__ import annotations

import math
from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir.types import product
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.rows.logic import truth
from wholestep.interop.torch.aten.table import row


def axes_of(x: Tensor, dims: Any) -> tuple[int, ...]:
    """Axes as torch names them: none given are all of them."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return tuple(range(x.ndim))
    given = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(d % x.ndim if x.ndim else 0 for d in given)) if x.ndim else ()


@row("sum")
def _sum(r: AtenRecorder, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None, **_: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    return t.sum(axes_of(t, dim), keepdim)


@row("nansum")
def _nansum(r: AtenRecorder, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    return ws.where(ws.isnan(t), 0.0, t).sum(axes_of(t, dim), keepdim)


@row("mean")
def _mean(r: AtenRecorder, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None, **_: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    return t.mean(axes_of(t, dim), keepdim)


@row("nanmean")
def _nanmean(r: AtenRecorder, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    bad, axes = ws.isnan(t), axes_of(t, dim)
    return ws.where(bad, 0.0, t).sum(axes, keepdim) / (~bad).astype(r.dtype).sum(axes, keepdim)


@row("amax")
def _amax(r: AtenRecorder, x: Any, dim: Any = (), keepdim: bool = False) -> Tensor:
    t = r.tensor(x)
    return t.max(axes_of(t, dim), keepdim)


@row("amin")
def _amin(r: AtenRecorder, x: Any, dim: Any = (), keepdim: bool = False) -> Tensor:
    t = r.tensor(x)
    return t.min(axes_of(t, dim), keepdim)


@row("aminmax")
def _aminmax(r: AtenRecorder, x: Any, dim: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _amin(r, x, dim, keepdim), _amax(r, x, dim, keepdim)


@row("max.default")
def _max(r: AtenRecorder, x: Any) -> Tensor:
    return r.tensor(x).max()


@row("min.default")
def _min(r: AtenRecorder, x: Any) -> Tensor:
    return r.tensor(x).min()


def _extreme_with_index(r: AtenRecorder, x: Any, dim: int, keepdim: bool, least: bool) -> tuple[Tensor, Tensor]:
    """The value at the first extreme, to which all of its gradient goes, and its index."""
    t = r.tensor(x)
    if t.dtype.name == "bool":
        values, index = _extreme_with_index(r, t.astype("int32"), dim, keepdim, least)
        return values != 0, index
    if t.ndim == 0:
        return t, ws.zeros_like(t, "int64")
    at = dim % t.ndim
    index = (ws.argmin if least else _argmax_of)(t, at, True)
    value = ws.take_along_axis(t, index, at)
    shape = t.shape[:at] + t.shape[at + 1 :]
    index = index.astype("int64")
    return (value, index) if keepdim else (value.reshape(shape), index.reshape(shape))


def _argmax_of(x: Tensor, axis: int | None, keepdims: bool = False) -> Tensor:
    return x.argmax(axis, keepdims)


@row("max.dim")
def _max_dim(r: AtenRecorder, x: Any, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _extreme_with_index(r, x, dim, keepdim, least=False)


@row("min.dim")
def _min_dim(r: AtenRecorder, x: Any, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _extreme_with_index(r, x, dim, keepdim, least=True)


@row("argmax")
def _argmax(r: AtenRecorder, x: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _index(r, x, dim, keepdim, least=False)


@row("argmin")
def _argmin(r: AtenRecorder, x: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _index(r, x, dim, keepdim, least=True)


def _index(r: AtenRecorder, x: Any, dim: int | None, keepdim: bool, least: bool) -> Tensor:
    t = r.tensor(x)
    t = t.astype("int32") if t.dtype.name == "bool" else t
    if dim is None:
        t = t.reshape(-1)
    found = (ws.argmin if least else _argmax_of)(t, 0 if dim is None else dim, False)
    return found.astype("int64").reshape(r.shape)


@row("var")
def _var(
    r: AtenRecorder, x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> Tensor:
    if isinstance(dim, bool):  # var(x, unbiased)
        dim, unbiased = None, dim
    t = r.tensor(x, r.dtype)
    axes = axes_of(t, dim)
    less = (1 if unbiased is None else int(unbiased)) if correction is None else correction
    centred = t - t.mean(axes, True)
    count = product(t.shape[d] for d in axes)
    total = (centred * centred).sum(axes, keepdim)
    return total / (float(count) - less if isinstance(count, int) else r.tensor(count, "float64") - float(less))


@row("std")
def _std(r: AtenRecorder, *args: Any, **named: Any) -> Tensor:
    return ws.sqrt(_var(r, *args, **named))


@row("var_mean")
def _var_mean(
    r: AtenRecorder, x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, **named: Any
) -> tuple[Tensor, Tensor]:
    over = None if isinstance(dim, bool) else dim
    return _var(r, x, dim, unbiased, keepdim, **named), _mean(r, x, over, keepdim)


@row("std_mean")
def _std_mean(r: AtenRecorder, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
    variance, mean = _var_mean(r, *args, **named)
    return ws.sqrt(variance), mean


@row("linalg_vector_norm")
def _vector_norm(
    r: AtenRecorder, x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    return norm_of(r, x, order, dim, keepdim)


@row("norm")
def norm_of(
    r: AtenRecorder, x: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """The norm of vectors, of an order."""
    t = r.tensor(x, r.dtype)
    axes, p = axes_of(t, dim), 2.0 if order is None else float(order)
    size = ws.abs(t)
    if p == math.inf:
        return size.max(axes, keepdim)
    if p == -math.inf:
        return size.min(axes, keepdim)
    if p == 0:
        return (t != 0.0).astype(r.dtype).sum(axes, keepdim)
    if p == 1:
        return size.sum(axes, keepdim)
    if p == 2:
        return _norm_root((t * t).sum(axes, keepdim), 0.5)
    safe = ws.where(size == 0.0, 1.0, size) if p < 1 or not p.is_integer() else size
    powers = ws.where(size == 0.0, 0.0, safe**p) if safe is not size else size**p
    return _norm_root(powers.sum(axes, keepdim), 1.0 / p)


def _norm_root(total: Tensor, power: float) -> Tensor:
    """A root whose gradient at 0 is 0, as that of torch's norms."""
    nothing = total == 0.0
    safe = ws.where(nothing, 1.0, total)
    return ws.where(nothing, 0.0, ws.sqrt(safe) if power == 0.5 else safe**power)


@row("any")
def _any(r: AtenRecorder, x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    t = truth(r, x).astype("int32")
    return t.max(axes_of(t, dim), keepdim) != 0


@row("all")
def _all(r: AtenRecorder, x: Any, dim: Any = None, keepdim: bool = False) -> Tensor:
    t = (~truth(r, x)).astype("int32")
    return t.max(axes_of(t, dim), keepdim) == 0


@row("count_nonzero")
def _count_nonzero(r: AtenRecorder, x: Any, dim: Any = None) -> Tensor:
    t = truth(r, x).astype("int64")
    return t.sum(axes_of(t, dim))


@row("prod")
def _prod(r: AtenRecorder, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    t = r.tensor(x, r.dtype)
    return ws.prod(t, dim, keepdim) if t.ndim else t


@row("logsumexp", "special_logsumexp")
def _logsumexp(r: AtenRecorder, x: Any, dim: Any, keepdim: bool = False) -> Tensor:
    t = r.tensor(x, r.dtype)
    axes = axes_of(t, dim)
    if len(axes) == 1:
        return ws.logsumexp(t, axes[0], keepdim)
    order = [*(d for d in range(t.ndim) if d not in axes), *axes]
    rest = t.permute(order).reshape((*(t.shape[d] for d in order[: t.ndim - len(axes)]), -1))
    return ws.logsumexp(rest, -1).reshape(r.shape)


@row("trace")
def _trace(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    size = t.shape
    return ws.where(ws.iota(size, 0) == ws.iota(size, 1), t, r.operand(0)).sum()
