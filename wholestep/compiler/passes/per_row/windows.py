"""The contribution of each image to the gradient of a convolution's weight.

The windows of an image are unfolded to vectors (positions, channels · window), so the contribution is Σ over positions
of window ⊗ gradient, as in a dense layer over a sequence; groups are products of their own.
"""

from __future__ import annotations

from itertools import product as positions

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.per_row.terms import Dense, Outer, Rows, Term, in_float


def weight_gradient_term(node: Node) -> Term:
    """The term of a `conv2d_grad_weight` node over its images and the gradients of its results."""
    attrs = attrs_of(node, at.ConvGradAttrs)
    x, g = (_channels_first(i, attrs.last) for i in _images_and_gradients(node))
    windows = unfold(x, attrs, g.type.shape[2:])  # (N, C, taps, pixels)
    n, channels, taps, pixels = windows.type.shape
    outputs, groups = g.type.shape[1], attrs.groups
    gradients = b.reshape(g, (n, outputs, pixels))
    weight = node.type.shape
    if groups == 1:
        vectors = b.transpose(b.reshape(windows, (n, channels * taps, pixels)))
        views = (lambda rows: _as_weight(rows, (n, outputs, channels), attrs),)
        return Outer(Dense(b.transpose(gradients)), Dense(vectors), views)
    assert isinstance(channels, int)
    assert isinstance(outputs, int)
    inner = channels // groups
    left = b.reshape(gradients, (n, groups, outputs // groups, pixels))
    right = b.reshape(windows, (n, groups, inner * taps, pixels))
    rows = b.reshape(b.matmul(left, right, transpose_b=True), (n, outputs, inner * taps))
    assert len(weight) == 4
    return Rows(_as_weight(rows, (n, outputs, inner), attrs))


def _images_and_gradients(node: Node) -> tuple[Node, Node]:
    x, g = node.inputs
    return x, g


def _as_weight(rows: Node, sizes: tuple[object, ...], attrs: at.ConvGradAttrs) -> Node:
    """Rows (N, outputs, channels · window) in the layout of the weight."""
    n, outputs, channels = sizes
    value = b.reshape(rows, (n, outputs, channels, *attrs.size))  # type: ignore[arg-type]
    return b.permute(value, (0, 1, 3, 4, 2)) if attrs.last else value


def _channels_first(images: Node, last: bool) -> Node:
    return in_float(b.permute(images, (0, 3, 1, 2)) if last else images)


def unfold(x: Node, attrs: at.ConvGradAttrs, pixels: tuple[object, ...]) -> Node:
    """The windows of images (N, C, H, W) as (N, C, taps, pixels)."""
    n, channels, *_ = x.type.shape
    padded = b.pad(x, (0, 0, *attrs.low), (0, 0, *attrs.high))
    down, across = pixels
    assert isinstance(down, int)
    assert isinstance(across, int)
    taps = []
    for i, j in positions(*map(range, attrs.size)):
        starts = (i * attrs.dilation[0], j * attrs.dilation[1])
        stops = tuple(
            s + (count - 1) * step + 1 for s, count, step in zip(starts, (down, across), attrs.stride, strict=True)
        )
        tap = b.slice_axes(padded, (0, 0, *starts), (n, channels, *stops), (1, 1, *attrs.stride))
        taps.append(b.reshape(tap, (n, channels, 1, down * across)))
    return b.concat(taps, 2)
