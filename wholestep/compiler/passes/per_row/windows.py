"""The contribution of each image to the gradient of a convolution's weight.

The windows of an image are unfolded to vectors (positions, channels · window), so the contribution is Σ over positions
of window ⊗ gradient, as in a dense layer over a sequence; each group is a separate product.  For small images and
weights one kernel computes the weight gradient of each image (`pooled_grad_weight`, with pooling windows of one pixel
if the network has no pool), and the gradient of the batch is their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as positions
from math import prod

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.type_rules.convolution import SMALL_WINDOW, index_dtype
from wholestep.compiler.ir.types import Extent, TensorType, float32, float64, product
from wholestep.compiler.passes.per_row.terms import Dense, Outer, Rows, Term, in_float, static_size

MOST_WEIGHTS, MOST_PIXELS = 1 << 12, 1 << 13  # elements of a weight, and of an image, for the kernel of small images


def image_gradients(node: Node) -> Rows | None:
    """The gradient of a convolution's weight for every image; None if the kernel for small images does not apply."""
    x, g = node.inputs
    attrs = attrs_of(node, at.ConvGradAttrs)
    is_dense = not attrs.last and attrs.groups == 1 and max(*attrs.stride, *attrs.dilation) == 1
    is_small = static_size(node.type.shape) <= MOST_WEIGHTS and static_size(x.type.shape[1:]) <= MOST_PIXELS
    if not is_dense or not is_small or x.type.dtype not in (float32, float64):
        return None
    window, pooled, index = _pool_window(g)
    middle = tuple(i for i in g.type.shape[2:] if isinstance(i, int))
    attributes = at.PooledConvAttrs(attrs.low, attrs.high, window, middle, attrs.size, parts=x.type.shape[0])
    rows = b.make("pooled_grad_weight", [b.permute(i, (0, 2, 3, 1)) for i in (x, pooled, index)], attributes)
    count = product(node.type.shape)
    return Rows(b.permute(rows, (0, 1, 4, 2, 3)), b.reshape(rows, (x.type.shape[0], count)))


def _pool_window(g: Node) -> tuple[tuple[int, ...], Node, Node]:
    """The window of the pool after a convolution, the pool's gradient, and the positions of its maxima."""
    if g.op == "max_pool2d_grad":
        pool = attrs_of(g, at.PoolGradAttrs)
        disjoint = pool.window == pool.stride and max(*pool.low, *pool.high) == 0
        if disjoint and prod(pool.window) <= SMALL_WINDOW:
            gradient, index = g.inputs
            return pool.window, gradient, index
    return (1, 1), g, b.full(0, TensorType(g.type.shape, index_dtype((1, 1))))


def weight_gradient_term(node: Node, images: Node, gradients: Node) -> Term:
    """The term of a `conv2d_grad_weight` node, from (batch, images of a row, ...) and the gradients of its results."""
    attrs = attrs_of(node, at.ConvGradAttrs)
    x, g = (_channels_first(i, attrs.last) for i in (images, gradients))
    n, count, outputs, *pixels = g.type.shape
    windows = unfold(x, attrs, pixels)  # (n, count, channels, taps, pixels)
    channels, taps, each = windows.type.shape[2:]
    left = _positions_last(b.reshape(g, (n, count, outputs, each)))
    right = _positions_last(b.reshape(windows, (n, count, channels * taps, each)))
    groups = attrs.groups
    if groups == 1:
        views = (lambda rows: _as_weight(rows, (n, outputs, channels), attrs),)
        return Outer(Dense(b.transpose(left)), Dense(b.transpose(right)), views)
    assert isinstance(channels, int)
    assert isinstance(outputs, int)
    inner = channels // groups
    left = b.reshape(left, (n, groups, outputs // groups, count * each))
    right = b.reshape(right, (n, groups, inner * taps, count * each))
    rows = b.reshape(b.matmul(left, right, transpose_b=True), (n, outputs, inner * taps))
    return Rows(_as_weight(rows, (n, outputs, inner), attrs))


def _positions_last(x: Node) -> Node:
    """(n, images, size, pixels) as (n, size, images · pixels)."""
    n, count, size, pixels = x.type.shape
    return b.reshape(b.permute(x, (0, 2, 1, 3)), (n, size, count * pixels))


def _as_weight(rows: Node, sizes: tuple[object, ...], attrs: at.ConvGradAttrs) -> Node:
    """Rows (N, outputs, channels · window) in the layout of the weight."""
    n, outputs, channels = sizes
    value = b.reshape(rows, (n, outputs, channels, *attrs.size))  # type: ignore[arg-type]
    return b.permute(value, (0, 1, 3, 4, 2)) if attrs.last else value


def _channels_first(images: Node, last: bool) -> Node:
    return in_float(b.permute(images, (0, 1, 4, 2, 3)) if last else images)


def unfold(x: Node, attrs: at.ConvGradAttrs, pixels: Sequence[Extent]) -> Node:
    """The windows of images (N, images, C, H, W) as (N, images, C, taps, pixels)."""
    n, count, channels, *_ = x.type.shape
    padded = b.pad(x, (0, 0, 0, *attrs.low), (0, 0, 0, *attrs.high))
    down, across = pixels
    assert isinstance(down, int)
    assert isinstance(across, int)
    taps = []
    for i, j in positions(*map(range, attrs.size)):
        starts = (i * attrs.dilation[0], j * attrs.dilation[1])
        stops = tuple(
            s + (extent - 1) * step + 1 for s, extent, step in zip(starts, (down, across), attrs.stride, strict=True)
        )
        tap = b.slice_axes(padded, (0, 0, 0, *starts), (n, count, channels, *stops), (1, 1, 1, *attrs.stride))
        taps.append(b.reshape(tap, (n, count, channels, 1, down * across)))
    return b.concat(taps, 3)
