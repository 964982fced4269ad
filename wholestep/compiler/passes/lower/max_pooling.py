"""Max pooling next to convolutions: ReLU is sunk below the pool, and convolution gradients read the pooled gradient.

The gradient of a p×p max pool is nonzero at one pixel of each window.  Materializing and convolving it takes p² times
the necessary arithmetic.  Instead the convolution's gradients take the pooled gradient and the argmax positions: the
weight gradient gathers the patches at these positions, the input gradient scatters the filters to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.type_rules.convolution import SMALL_WINDOW, image_dims
from wholestep.compiler.target import Target


def drop_unit_pools(graph: IRGraph) -> IRGraph:
    """Remove pools with 1×1 windows: the maximum of one element is the element."""
    return rewrite(graph, _without_pool_of_one)


def _without_pool_of_one(node: Node) -> Node:
    if node.op != "max_pool2d":
        return node
    a = attrs_of(node, at.PoolAttrs)
    return node.inputs[0] if {*a.window, *a.stride} == {1} and max(*a.low, *a.high) == 0 else node


def sink_relu_below_pool(graph: IRGraph) -> IRGraph:
    """max_pool(relu(x)) = relu(max_pool(x)): fewer elements, and the same gradients.

    If the pooled value is positive, its position is the same; otherwise no gradient passes.  A relu with other readers
    stays.
    """
    alone = {n for n in graph.single_use_nodes() if n.op == "relu"}
    if not any(n.op == "max_pool2d" and n.inputs[0] in alone for n in graph.nodes):
        return graph
    new: dict[Node, Node] = {}
    for n in graph.nodes:
        inputs = [new[i] for i in n.inputs]
        if n.op == "max_pool2d" and n.inputs[0] in alone:
            with b.origin(n):
                pooled = b.make("max_pool2d", inputs[0].inputs, n.attrs)
            with b.origin(n.inputs[0], name=n.name):
                new[n] = b.make("relu", (pooled,))
        else:
            new[n] = n.with_inputs(inputs)
    return graph.with_nodes(new)


def fuse_pool_gradients(graph: IRGraph, target: Target) -> IRGraph:
    """Gradients of convolutions, and sums, read the pooled gradient directly instead of the pool's full gradient."""
    near, parts = target.limits.nearest_cache, target.limits.batch_parts
    return rewrite(
        graph, lambda node: fuse_pool_gradient(node, parts, lambda node, pool: _fits_cache(node, pool, near))
    )


def fuse_pool_gradient(node: Node, parts: int, fits: Callable[[Node, Node], bool]) -> Node:
    """The node over the pooled gradient, if its op and the pool allow it; else the node itself.

    `fits(node, pool gradient)` says whether it is profitable.  A weight gradient is computed as partial sums over
    `parts` slices of the batch.
    """
    if node.op == "sum" and node.inputs[0].op == "max_pool2d_grad":
        return _sum(node)
    position = {"conv2d_grad_weight": 1, "conv2d_grad_input": 0}.get(node.op)
    if position is None or node.inputs[position].op != "max_pool2d_grad":
        return node
    pool_gradient = node.inputs[position]
    a, pool = attrs_of(node, at.ConvGradAttrs), attrs_of(pool_gradient, at.PoolGradAttrs)
    if not (_is_dense_unit_stride(a) and _has_small_disjoint_windows(pool) and fits(node, pool_gradient)):
        return node
    g, index = pool_gradient.inputs
    attrs = at.PooledConvAttrs(a.low, a.high, pool.window, pool.size, a.size)
    with b.origin(node):
        if node.op == "conv2d_grad_input":
            return b.make("pooled_grad_input", (g, index, node.inputs[1]), attrs)
        in_parts = b.make("pooled_grad_weight", (node.inputs[0], g, index), replace(attrs, parts=parts))
        flat = b.reshape(in_parts, (parts, node.type.elements))  # one row per part: a single column reduction
        return b.reshape(b.sum_axes(flat, (0,)), node.type.shape)


def _fits_cache(node: Node, pool_gradient: Node, near: int) -> bool:
    """Does the operand that is read repeatedly fit in the nearest cache (`near` bytes)?  Then a multiply-add by
    position costs about two dense ones."""
    if node.op == "conv2d_grad_weight":
        return _fits_image(node.inputs[0], 2 * near)
    return _fits_kernels(node.inputs[1], attrs_of(pool_gradient, at.PoolGradAttrs), near)


def _sum(node: Node) -> Node:
    """A pool's gradient moves each element to one pixel: its sum over images is the sum of the pooled gradient."""
    pool_gradient, axes = node.inputs[0], attrs_of(node, at.SumAttrs).axes
    last = attrs_of(pool_gradient, at.PoolGradAttrs).last
    if not {1, 2} <= set(axes) if last else not {2, 3} <= set(axes):
        return node
    with b.origin(node):
        return b.sum_axes(pool_gradient.inputs[0], axes)


def _is_dense_unit_stride(a: at.ConvGradAttrs) -> bool:
    return a.last and a.groups == 1 and max(*a.stride, *a.dilation) == 1


def _has_small_disjoint_windows(pool: at.PoolGradAttrs) -> bool:
    small = pool.window[0] * pool.window[1] <= SMALL_WINDOW
    return pool.window == pool.stride and max(*pool.low, *pool.high) == 0 and small


def _fits_image(x: Node, most: int) -> bool:
    """Does one image, which is read once per output channel, take at most `most` bytes?"""
    _, *size = x.type.shape
    elements = 1
    for e in size:
        assert isinstance(e, int), "type rules require integer extents"
        elements *= e
    return elements * x.type.dtype.size <= most


def _fits_kernels(weight: Node, pool: at.PoolGradAttrs, most: int) -> bool:
    """Do the zero-padded filters, which are read once per pixel of the pool, take at most `most` bytes?"""
    outputs, channels, (height, width) = image_dims(weight.type, last=True)
    assert isinstance(outputs, int), "type rules require integer extents"
    assert isinstance(channels, int), "type rules require integer extents"
    assert isinstance(height, int), "type rules require integer extents"
    assert isinstance(width, int), "type rules require integer extents"
    rows, columns = height + 2 * (pool.window[0] - 1), width + 2 * (pool.window[1] - 1)
    return outputs * rows * columns * channels * weight.type.dtype.size <= most
