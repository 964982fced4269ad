"""Reference semantics of convolution, max pooling and their adjoints: entries of `VALUES`.

Written over explicit windows (im2col views and einsum) in NCHW; channels-last operands (`last`) are permuted first.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.type_rules.convolution import conv_grad_attrs, index_dtype, pool_grad_attrs

Array = np.ndarray[Any, Any]


def _to_nchw(x: Array, last: bool) -> Array:
    """Images in NCHW, whichever layout they are stored in."""
    return x.transpose(0, 3, 1, 2) if last else x


def _from_nchw(x: Array, last: bool) -> Array:
    """NCHW images in the layout of the op: the inverse of `_to_nchw`."""
    return x.transpose(0, 2, 3, 1) if last else x


def _pad_image(x: Array, a: Any, value: float = 0.0) -> Array:
    margins = [(0, 0), (0, 0), *zip(a.low, a.high, strict=True)]
    return np.pad(x, margins, constant_values=value)


def _windows(x: Array, window: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...] = (1, 1)) -> Array:
    """The im2col view of (N, C, H, W): (N, C, output rows, output columns, KH, KW)."""
    extent = tuple(d * (k - 1) + 1 for d, k in zip(dilation, window, strict=True))
    windows = sliding_window_view(x, extent, axis=(2, 3))
    return windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def _split_groups(x: Array, groups: int) -> Array:
    """Reshape (N, C, ...) to (N, groups, C / groups, ...)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


# -- convolution -------------------------------------------------------------------------------------------------


def conv2d(run: Any, a: at.ConvAttrs, x: Array, weight: Array) -> Array:
    x, w = _to_nchw(x, a.last), _to_nchw(weight, a.last)
    windows = _split_groups(_windows(_pad_image(x, a), w.shape[2:], a.stride, a.dilation), a.groups)
    w = w.reshape(a.groups, w.shape[0] // a.groups, *w.shape[1:])
    out = np.einsum("ngcyxhw,gochw->ngoyx", windows, w, optimize=True)
    return _from_nchw(out.reshape(out.shape[0], -1, *out.shape[3:]), a.last)


def conv2d_grad_input(run: Any, a: at.ConvGradAttrs, g: Array, weight: Array) -> Array:
    g, w = _split_groups(_to_nchw(g, a.last), a.groups), _to_nchw(weight, a.last)
    w = w.reshape(a.groups, w.shape[0] // a.groups, *w.shape[1:])
    columns = np.einsum("ngoyx,gochw->ngcyxhw", g, w, optimize=True)
    columns = columns.reshape(columns.shape[0], -1, *columns.shape[3:])
    padded = np.zeros((*columns.shape[:2], *(s + lo + hi for s, lo, hi in zip(a.size, a.low, a.high, strict=True))))
    target = sliding_window_view(
        padded, tuple(d * (k - 1) + 1 for d, k in zip(a.dilation, w.shape[3:], strict=True)), (2, 3), writeable=True
    )
    for i in range(w.shape[3]):
        for j in range(w.shape[4]):
            tap = target[..., i * a.dilation[0], j * a.dilation[1]]
            tap[:, :, :: a.stride[0], :: a.stride[1]] += columns[..., i, j]
    return _from_nchw(_crop_padding(padded, a), a.last)


def _crop_padding(padded: Array, a: Any) -> Array:
    """The image without its padding."""
    (top, left), (height, width) = a.low, a.size
    return padded[:, :, top : top + height, left : left + width]


def conv2d_grad_weight(run: Any, a: at.ConvGradAttrs, x: Array, g: Array) -> Array:
    x, g = _to_nchw(x, a.last), _split_groups(_to_nchw(g, a.last), a.groups)
    windows = _split_groups(_windows(_pad_image(x, a), a.size, a.stride, a.dilation), a.groups)
    out = np.einsum("ngcyxhw,ngoyx->gochw", windows, g, optimize=True)
    return _from_nchw(out.reshape(-1, *out.shape[2:]), a.last)


# -- max pooling -------------------------------------------------------------------------------------------------


def _window_elements(a: Any, x: Array, outside: float) -> Array:
    """The elements of each window, flattened: (N, C, output rows, output columns, KH·KW)."""
    windows = _windows(_pad_image(_to_nchw(x, a.last), a, outside), a.window, a.stride)
    return windows.reshape(*windows.shape[:4], -1)


def max_pool2d(run: Any, a: at.PoolAttrs, x: Array) -> Array:
    return _from_nchw(_window_elements(a, x, -math.inf).max(axis=-1), a.last)


def max_pool2d_index(run: Any, a: at.PoolAttrs, x: Array) -> Array:
    index = _window_elements(a, x, -math.inf).argmax(axis=-1)  # the first maximum if several are equal
    return _from_nchw(index.astype(index_dtype(a.window).numpy), a.last)


def max_pool2d_pick(run: Any, a: at.PoolAttrs, x: Array, index: Array) -> Array:
    at_index = _to_nchw(index, a.last)[..., None].astype(np.int64)
    return _from_nchw(np.take_along_axis(_window_elements(a, x, 0.0), at_index, axis=-1)[..., 0], a.last)


def max_pool2d_grad(run: Any, a: at.PoolGradAttrs, g: Array, index: Array) -> Array:
    g, index = _to_nchw(g, a.last), _to_nchw(index, a.last)
    padded = np.zeros((*g.shape[:2], *(s + lo + hi for s, lo, hi in zip(a.size, a.low, a.high, strict=True))))
    rows, columns = (np.arange(c) * s for c, s in zip(g.shape[2:], a.stride, strict=True))
    at_row = rows[:, None] + index // a.window[1]
    at_column = columns + index % a.window[1]
    n, c = np.ogrid[: g.shape[0], : g.shape[1]]
    np.add.at(padded, (n[..., None, None], c[..., None, None], at_row, at_column), g)
    return _from_nchw(_crop_padding(padded, a), a.last)


# -- convolution and pool fused ----------------------------------------------------------------------------------


def grad_weight_through_pool(run: Any, a: at.PooledConvAttrs, x: Array, g: Array, index: Array) -> Array:
    conv_gradient = max_pool2d_grad(run, pool_grad_attrs(a), g, index)
    parts = a.parts if isinstance(a.parts, int) else len(x)
    bounds = [p * len(x) // parts for p in range(parts + 1)]
    attrs = conv_grad_attrs(a)
    return np.stack([conv2d_grad_weight(run, attrs, x[lo:hi], conv_gradient[lo:hi]) for lo, hi in pairwise(bounds)])


def grad_input_through_pool(run: Any, a: at.PooledConvAttrs, g: Array, index: Array, weight: Array) -> Array:
    conv_gradient = max_pool2d_grad(run, pool_grad_attrs(a), g, index)
    return conv2d_grad_input(run, conv_grad_attrs(a), conv_gradient, weight)
