"""Makers of convolutions, pools and their adjoints for random graphs: see random_graphs.py."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.compiler.ir.graph_pool import Pool
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.type_rules.convolution import image_shape, window_count
from wholestep.compiler.ir.types import Dim, Extent, TensorType


def _fit(p: Pool, *shape: Extent, exact: bool = False) -> Node:
    x = p.fit(TensorType(shape, p.dtype), exact)
    return x if exact or p.bound[x] <= 2.0 else p.add(p.node("tanh", x), 1.0)


def _pair(p: Pool, low: int, high: int) -> tuple[int, int]:
    return p.draw(st.integers(low, high)), p.draw(st.integers(low, high))


def _batch(p: Pool) -> Extent:
    return p.pick([1, 3, *map(Dim.symbol, p.symbols)])


def make_convolution(p: Pool) -> None:
    kernel, stride, dilation = _pair(p, 1, 3), _pair(p, 1, 2), _pair(p, 1, 2)
    low, high, size = _pair(p, 0, 2), _pair(p, 0, 2), _pair(p, 5, 6)
    groups, last = p.pick([1, 1, 2]), p.chance()
    channels, outputs, n = groups * p.pick([1, 2]), groups * p.pick([1, 3]), _batch(p)
    counts = tuple(window_count(*of) for of in zip(size, kernel, stride, low, high, dilation, strict=True))
    shapes = {
        "x": image_shape(n, channels, size, last),
        "w": image_shape(outputs, channels // groups, kernel, last),
        "g": image_shape(n, outputs, counts, last),
    }
    op, inputs, of = p.pick(
        [("conv2d", "xw", ()), ("conv2d_grad_input", "gw", size), ("conv2d_grad_weight", "xg", kernel)]
    )
    options = (stride, low, high, dilation, groups, last)
    attrs = at.ConvGradAttrs(*options, of) if of else at.ConvAttrs(*options)
    node = p.node(op, *(_fit(p, *shapes[i]) for i in inputs), attrs=attrs)
    p.add(node, 4.0 * p.length(n) * 9 * 36)


def make_pool(p: Pool) -> None:
    window, stride, last, n = _pair(p, 2, 3), _pair(p, 1, 3), p.chance(), _batch(p)
    around = (p.draw(st.integers(0, 1)), 0)
    size, channels = _pair(p, 4, 7), p.pick([1, 3])
    attrs = at.PoolAttrs(window, stride, around, around, last)
    x = _fit(p, *image_shape(n, channels, size, last), exact=True)
    index = p.node("max_pool2d_index", x, attrs=attrs)
    chosen = p.pick(["max_pool2d", "max_pool2d_grad", "max_pool2d_pick"])
    if chosen == "max_pool2d":
        p.add(p.node(chosen, x, attrs=attrs), p.bound[x], exact=True)
    elif chosen == "max_pool2d_pick":
        p.add(p.node(chosen, x, index, attrs=attrs), p.bound[x], exact=True)
    else:
        grown = at.PoolGradAttrs(window, stride, around, around, last, size)
        p.add(p.node(chosen, _fit(p, *index.type.shape), index, attrs=grown), 2.0 * 9)


def make_pooled_adjoint(p: Pool) -> None:
    window, kernel, cells, n = _pair(p, 2, 3), _pair(p, 1, 3), _pair(p, 1, 3), _batch(p)
    channels, outputs, low, high = p.pick([1, 2]), p.pick([1, 3]), _pair(p, 0, 1), _pair(p, 0, 1)
    middle = tuple(c * k + p.draw(st.integers(0, 1)) for c, k in zip(cells, window, strict=True))
    size = tuple(m + k - 1 - lo - hi for m, k, lo, hi in zip(middle, kernel, low, high, strict=True))
    if min(size) < 1:
        return
    pool = at.PoolAttrs(window, window, (0, 0), (0, 0), True)
    index = p.node("max_pool2d_index", _fit(p, n, *middle, outputs, exact=True), attrs=pool)
    g = _fit(p, *index.type.shape)
    if p.chance():
        attrs = at.PooledConvAttrs(low, high, window, middle, kernel, parts=p.pick([1, 3, 16]))
        parts = p.node("pooled_grad_weight", _fit(p, n, *size, channels), g, index, attrs=attrs)
        node = p.node("sum", parts, attrs=at.SumAttrs((0,), parts.type.dtype))
    else:
        attrs = at.PooledConvAttrs(low, high, window, middle, size)
        node = p.node("pooled_grad_input", g, index, _fit(p, outputs, *kernel, channels), attrs=attrs)
    p.add(node, 4.0 * p.length(n) * 9 * 36)


_WINDOWS = [make_convolution, make_pool, make_pooled_adjoint]


def make_window(p: Pool) -> None:
    p.pick(_WINDOWS)(p)
