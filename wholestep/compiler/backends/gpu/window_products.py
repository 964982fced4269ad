"""Convolutions whose windows do not overlap become matrix products of patches and weights, as do their adjoints.

    conv2d(x, w) = patches(x) @ w.T,  patches: (images * windows, elements of a window)

They are patch embeddings, windows as large as the image (squeeze-excitation, the last layer of a network of
convolutions), and convolutions of one pixel.  Every element of x belongs to at most one window, so the patches are a
view or one copy, and both gradients are products too.  Convolutions with many channels that the library computes stay
with it.
"""

from __future__ import annotations

from math import prod

from wholestep.compiler.backends.gpu.grids.convolution_operands import static_extent
from wholestep.compiler.backends.gpu.target import GpuTarget
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.types import Extent
from wholestep.compiler.passes.lower.channels_last import LAST, SECOND
from wholestep.records import dataclass

VECTOR = 8  # the channels of a network's images are a multiple of this, unlike its scores
OPS = ("conv2d", "conv2d_grad_input", "conv2d_grad_weight")


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution along rows and columns: their number, size, and distance."""

    images: Extent
    size: tuple[int, int]  # rows and columns of the image
    counts: tuple[int, int]
    window: tuple[int, int]
    stride: tuple[int, int]
    channels: int
    outputs: int

    @property
    def are_disjoint(self) -> bool:
        """Do windows not overlap, so that they are a view of the image?"""
        axes = zip(self.counts, self.window, self.stride, strict=True)
        return all(count == 1 or window in (1, stride) for count, window, stride in axes)

    @property
    def rows(self) -> Extent:
        """Rows of the product: one per window."""
        return self.images * prod(self.counts)

    @property
    def depth(self) -> int:
        return prod(self.window) * self.channels

    @property
    def weights(self) -> int:
        return self.depth * self.outputs


def windows_of(node: Node) -> Windows | None:
    """The windows of a convolution or adjoint; None if they have groups, padding, or are spread by a dilation."""
    a = node.attrs
    assert isinstance(a, at.ConvAttrs | at.ConvGradAttrs)
    weight = node if node.op == "conv2d_grad_weight" else node.inputs[1]
    image = node if node.op == "conv2d_grad_input" else node.inputs[0]
    result = {"conv2d": node, "conv2d_grad_input": node.inputs[0]}.get(node.op, node.inputs[1])
    outputs, tall, wide, channels = map(static_extent, weight.type.shape)
    images, *size = image.type.shape
    rows, columns = map(static_extent, result.type.shape[1:3])
    spread = any(d > 1 and k > 1 for d, k in zip(a.dilation, (tall, wide), strict=True))
    if a.groups > 1 or not a.last or max(*a.low, *a.high) > 0 or spread:
        return None
    image_size = (static_extent(size[0]), static_extent(size[1]))
    return Windows(images, image_size, (rows, columns), (tall, wide), (a.stride[0], a.stride[1]), channels, outputs)


def multiply_disjoint_windows(graph: IRGraph, target: GpuTarget) -> IRGraph:
    """The graph with products in place of these convolutions; those that a kernel with a max pool computes remain."""
    pooled = {n.inputs[0].type for n in graph.nodes if n.op.startswith("max_pool2d")}

    def rule(node: Node) -> Node:
        if node.op not in OPS:
            return node
        windows = windows_of(node)
        if windows is None or not windows.are_disjoint or not _is_faster(node, windows, target):
            return node
        result = node if node.op == "conv2d" else node.inputs[-1 if node.op == "conv2d_grad_weight" else 0]
        if any(t.shape == result.type.shape for t in pooled):
            return node
        with b.origin(node):
            return RULES[node.op](node, windows)

    return rewrite(graph, rule)


def _is_faster(node: Node, windows: Windows, target: GpuTarget) -> bool:
    """Is the product faster than the convolution's kernel, or the library's?

    The library's convolution is slow if an image has one window.  A convolution that the library does not compute, and
    that has few weights, is computed by our direct kernel, fused with the ops after it.  That kernel is slow for
    patches in half types, and for windows of one pixel: 64 images of 8 x 56 x 56 to 144 channels take 466 us in
    float32, 20 times the price.  Per-pixel scores keep the layout of images: their loss is reduced in two steps.
    """
    if target.load_libraries().convolves(node, target):
        return prod(windows.counts) == 1
    is_patch = node.inputs[0].type.dtype.is_half and prod(windows.window) > 1
    are_vectors = windows.channels % VECTOR == windows.outputs % VECTOR == 0
    are_pixels = windows.window == (1, 1) and windows.counts == windows.size and prod(windows.size) > 1 and are_vectors
    return is_patch or are_pixels or windows.weights > target.cost_model.convolution.most_weights


# -- patches ---------------------------------------------------------------------------------------------------------


def _is_channels_second(image: Node) -> bool:
    """Is an image a view of an image stored with channels second, such as an input of the network?"""
    while image.op == "cast":
        (image,) = image.inputs
    return image.op == "permute"


def _patches(image: Node, w: Windows, channels_first: bool) -> Node:
    """The matrix of patches: a view, or one copy, which also rounds."""
    if w.size == w.window and (prod(w.window) == 1 or not channels_first):
        return b.reshape(image, (w.rows, w.depth))
    stops, steps = [], []
    for count, window, stride in zip(w.counts, w.window, w.stride, strict=True):
        is_sparse = window == 1 and count > 1
        stops.append((count - 1) * stride + 1 if is_sparse else count * window)
        steps.append(stride if is_sparse else 1)
    whole = tuple(stops) == w.size and steps == [1, 1]
    rounded = image.op == "cast"
    source = image.inputs[0] if rounded else image
    if not whole:
        source = b.slice_axes(source, (0, 0, 0, 0), (w.images, *stops, w.channels), (1, *steps, 1))
    (rows, columns), (tall, wide) = w.counts, w.window
    split = b.reshape(source, (w.images, rows, tall, columns, wide, w.channels))
    ordered = b.permute(split, (0, 1, 3, 5, 2, 4) if channels_first else (0, 1, 3, 2, 4, 5))
    return b.reshape(b.cast(ordered, image.type.dtype) if rounded else ordered, (w.rows, w.depth))


def _weight_matrix(weight: Node, w: Windows, channels_first: bool) -> Node:
    return b.reshape(b.permute(weight, SECOND) if channels_first else weight, (w.outputs, w.depth))


def _forward(node: Node, w: Windows) -> Node:
    image, weight = node.inputs
    first = _is_channels_second(image)
    product = b.matmul(_patches(image, w, first), _weight_matrix(weight, w, first), transpose_b=True)
    return b.reshape(product, node.type.shape)


def _weight_gradient(node: Node, w: Windows) -> Node:
    image, g = node.inputs
    first = _is_channels_second(image)
    product = b.matmul(b.reshape(g, (w.rows, w.outputs)), _patches(image, w, first), transpose_a=True)
    if not first:
        return b.reshape(product, node.type.shape)
    return b.permute(b.reshape(product, (w.outputs, w.channels, *w.window)), LAST)


def _input_gradient(node: Node, w: Windows) -> Node:
    """The patches' gradient, moved to the pixels of the image; pixels of no window get zeros."""
    g, weight = node.inputs
    product = b.matmul(b.reshape(g, (w.rows, w.outputs)), _weight_matrix(weight, w, False))
    (rows, columns), (tall, wide) = w.counts, w.window
    pixels = b.permute(b.reshape(product, (w.images, rows, columns, tall, wide, w.channels)), (0, 1, 3, 2, 4, 5))
    image = b.reshape(pixels, (w.images, rows * tall, columns * wide, w.channels))
    sparse = [s if k == 1 and n > 1 else 1 for n, k, s in zip(w.counts, w.window, w.stride, strict=True)]
    image = b.interleave_zeros(image, (1, *sparse, 1))
    sizes = tuple(map(static_extent, image.type.shape[1:3]))
    if any(have > size for have, size in zip(sizes, w.size, strict=True)):
        image = b.slice_axes(image, (0, 0, 0, 0), (w.images, *map(min, sizes, w.size), w.channels))
    missing = [max(0, size - have) for have, size in zip(sizes, w.size, strict=True)]
    return b.pad(image, (0, 0, 0, 0), (0, *missing, 0))


RULES = {"conv2d": _forward, "conv2d_grad_input": _input_gradient, "conv2d_grad_weight": _weight_gradient}
