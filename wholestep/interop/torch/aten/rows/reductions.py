"""Reductions: variances, extremes with indices, sums that skip NaN."""

from __future__ import annotations

from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir.types import product
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.rows.cumulative_sort import element_at
from wholestep.interop.torch.aten.rows.functions import axes_of
from wholestep.interop.torch.aten.table import row


@row("nansum")
def _nansum(r: AtenRecorder, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    return ws.where(ws.isnan(t), 0.0, t).sum(axes_of(r, dim, t), keepdim)


@row("nanmean")
def _nanmean(r: AtenRecorder, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    bad, axes = ws.isnan(t), axes_of(r, dim, t)
    return ws.where(bad, 0.0, t).sum(axes, keepdim) / (~bad).astype(r.dtype).sum(axes, keepdim)


@row("aminmax")
def _aminmax(r: AtenRecorder, x: Any, dim: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    t = r.tensor(x)
    axes = axes_of(r, dim, t)
    return t.min(axes, keepdim), t.max(axes, keepdim)


@row("max.dim", "min.dim")
def _extreme_with_index(r: AtenRecorder, x: Any, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The first extreme, which gets the whole gradient, and its index."""
    t = r.tensor(x)
    if t.dtype.name == "bool":
        values, index = _extreme_with_index(r, t.astype("int32"), dim, keepdim)
        return values != 0, index
    if t.ndim == 0:
        return t, ws.zeros_like(t, "int64")
    return element_at(t, _first_extreme(r, t, dim % t.ndim, True), dim % t.ndim, keepdim)


def _first_extreme(r: AtenRecorder, x: Tensor, axis: int, keepdims: bool) -> Tensor:
    """The index of the first minimum or maximum, by the name of the op."""
    return ws.argmin(x, axis, keepdims) if "min" in str(r.node.target) else x.argmax(axis, keepdims)


@row("argmax", "argmin")
def _index(r: AtenRecorder, x: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
    t = r.tensor(x)
    t = t.astype("int32") if t.dtype.name == "bool" else t
    index = _first_extreme(r, t.reshape(-1) if dim is None else t, dim or 0, False)
    return index.astype("int64").reshape(r.shape)


@row("var")
def _var(
    r: AtenRecorder, x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> Tensor:
    if isinstance(dim, bool):  # var(x, unbiased)
        dim, unbiased = None, dim
    t = r.tensor(x, r.dtype)
    axes = axes_of(r, dim, t)
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
    t = r.tensor(x, r.dtype)
    mean = t.mean(axes_of(r, None if isinstance(dim, bool) else dim, t), keepdim)
    return _var(r, x, dim, unbiased, keepdim, **named), mean


@row("std_mean")
def _std_mean(r: AtenRecorder, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
    variance, mean = _var_mean(r, *args, **named)
    return ws.sqrt(variance), mean


@row("trace")
def _trace(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    size = t.shape
    return ws.where(ws.iota(size, 0) == ws.iota(size, 1), t, r.operand(0)).sum()
