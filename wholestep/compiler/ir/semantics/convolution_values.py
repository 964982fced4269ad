"""The reference values of convolution, max pooling and their adjoints: rows of `VALUES`."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.type_rules.convolution import conv_grad_attrs, index_dtype, pool_grad_attrs

Array = np.ndarray[Any, Any]


def _first(x: Array, last: bool) -> Array:
    """Channels brought to axis 1."""
    return x.transpose(0, 3, 1, 2) if last else x


def _back(x: Array, last: bool) -> Array:
    return x.transpose(0, 2, 3, 1) if last else x


def _pad_image(x: Array, a: Any, value: float = 0.0) -> Array:
    margins = [(0, 0), (0, 0), *zip(a.low, a.high, strict=True)]
    return np.pad(x, margins, constant_values=value)


def _windows(x: Array, window: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...] = (1, 1)) -> Array:
    """(N, C, rows, columns, KH, KW) of (N, C, H, W)."""
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, window, strict=True))
    seen = sliding_window_view(x, reach, axis=(2, 3))
    return seen[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def _split_groups(x: Array, groups: int) -> Array:
    """(N, C, ...) as (N, groups, C / groups, ...)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


# -- convolution -------------------------------------------------------------------------------------------------


def conv2d(run: Any, a: at.ConvAttrs, x: Array, weight: Array) -> Array:
    x, w = _first(x, a.last), _first(weight, a.last)
    seen = _split_groups(_windows(_pad_image(x, a), w.shape[2:], a.stride, a.dilation), a.groups)
    w = w.reshape(a.groups, w.shape[0] // a.groups, *w.shape[1:])
    out = np.einsum("ngcyxhw,gochw->ngoyx", seen, w, optimize=True)
    return _back(out.reshape(out.shape[0], -1, *out.shape[3:]), a.last)


def conv2d_grad_input(run: Any, a: at.ConvGradAttrs, g: Array, weight: Array) -> Array:
    g, w = _split_groups(_first(g, a.last), a.groups), _first(weight, a.last)
    w = w.reshape(a.groups, w.shape[0] // a.groups, *w.shape[1:])
    spread = np.einsum("ngoyx,gochw->ngcyxhw", g, w, optimize=True)
    spread = spread.reshape(spread.shape[0], -1, *spread.shape[3:])
    framed = np.zeros((*spread.shape[:2], *(s + lo + hi for s, lo, hi in zip(a.size, a.low, a.high, strict=True))))
    target = sliding_window_view(
        framed, tuple(d * (k - 1) + 1 for d, k in zip(a.dilation, w.shape[3:], strict=True)), (2, 3), writeable=True
    )
    for i in range(w.shape[3]):
        for j in range(w.shape[4]):
            at_tap = target[..., i * a.dilation[0], j * a.dilation[1]]
            at_tap[:, :, :: a.stride[0], :: a.stride[1]] += spread[..., i, j]
    return _back(_inside(framed, a), a.last)


def _inside(framed: Array, a: Any) -> Array:
    (top, left), (height, width) = a.low, a.size
    return framed[:, :, top : top + height, left : left + width]


def conv2d_grad_weight(run: Any, a: at.ConvGradAttrs, x: Array, g: Array) -> Array:
    x, g = _first(x, a.last), _split_groups(_first(g, a.last), a.groups)
    seen = _split_groups(_windows(_pad_image(x, a), a.size, a.stride, a.dilation), a.groups)
    out = np.einsum("ngcyxhw,ngoyx->gochw", seen, g, optimize=True)
    return _back(out.reshape(-1, *out.shape[2:]), a.last)


# -- max pooling -------------------------------------------------------------------------------------------------


def _candidates(a: Any, x: Array, outside: float) -> Array:
    """(N, C, rows, columns, KH·KW)."""
    seen = _windows(_pad_image(_first(x, a.last), a, outside), a.window, a.stride)
    return seen.reshape(*seen.shape[:4], -1)


def max_pool2d(run: Any, a: at.PoolAttrs, x: Array) -> Array:
    return _back(_candidates(a, x, -math.inf).max(axis=-1), a.last)


def max_pool2d_index(run: Any, a: at.PoolAttrs, x: Array) -> Array:
    found = _candidates(a, x, -math.inf).argmax(axis=-1)  # the first of equal ones
    return _back(found.astype(index_dtype(a.window).numpy), a.last)


def max_pool2d_pick(run: Any, a: at.PoolAttrs, x: Array, index: Array) -> Array:
    at_index = _first(index, a.last)[..., None].astype(np.int64)
    return _back(np.take_along_axis(_candidates(a, x, 0.0), at_index, axis=-1)[..., 0], a.last)


def max_pool2d_grad(run: Any, a: at.PoolGradAttrs, g: Array, index: Array) -> Array:
    g, index = _first(g, a.last), _first(index, a.last)
    framed = np.zeros((*g.shape[:2], *(s + lo + hi for s, lo, hi in zip(a.size, a.low, a.high, strict=True))))
    rows, columns = (np.arange(c) * s for c, s in zip(g.shape[2:], a.stride, strict=True))
    at_row = rows[:, None] + index // a.window[1]
    at_column = columns + index % a.window[1]
    n, c = np.ogrid[: g.shape[0], : g.shape[1]]
    np.add.at(framed, (n[..., None, None], c[..., None, None], at_row, at_column), g)
    return _back(_inside(framed, a), a.last)


# -- both at once ------------------------------------------------------------------------------------------------


def grad_weight_through_pool(run: Any, a: at.PooledConvAttrs, x: Array, g: Array, index: Array) -> Array:
    middle = max_pool2d_grad(run, pool_grad_attrs(a), g, index)
    cuts = [p * len(x) // a.parts for p in range(a.parts + 1)]
    attrs = conv_grad_attrs(a)
    return np.stack([conv2d_grad_weight(run, attrs, x[lo:hi], middle[lo:hi]) for lo, hi in pairwise(cuts)])


def grad_input_through_pool(run: Any, a: at.PooledConvAttrs, g: Array, index: Array, weight: Array) -> Array:
    middle = max_pool2d_grad(run, pool_grad_attrs(a), g, index)
    return conv2d_grad_input(run, conv_grad_attrs(a), middle, weight)
