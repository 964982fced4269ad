"""Max pooling and its neighbours: a relu waits behind the pool, and adjoints of convolutions read the pooled gradient.

The adjoint of a pool is zero but at one pixel of each window.  Writing it out and convolving it does p² times the
arithmetic that is needed; instead the adjoints of the convolution take the small gradient and the positions as they
are: one gathers the windows that won, the other scatters kernels to where they won.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.type_rules.convolution import SMALL_WINDOW, parts
from wholestep.compiler.target import Target


def drop_pools_of_one(graph: IRGraph) -> IRGraph:
    """The maximum of one element is the element."""
    return rewrite(graph, _without_pool_of_one)


def _without_pool_of_one(node: Node) -> Node:
    if node.op != "max_pool2d":
        return node
    a = attrs_of(node, at.PoolAttrs)
    return node.inputs[0] if {*a.window, *a.stride} == {1} and max(*a.low, *a.high) == 0 else node


def relu_behind_pool(graph: IRGraph) -> IRGraph:
    """max_pool(relu(x)) = relu(max_pool(x)): fewer elements, and the same gradients.

    Where the pooled value is positive its position is the same; elsewhere no gradient passes.  A relu that others read
    too stays.
    """
    readers = graph.consumers()
    roots = {o.node for o in graph.outputs} | {u.node for u in graph.updates}
    alone = {n for n in graph.nodes if n.op == "relu" and n not in roots and len(readers[n]) == 1}
    if not any(n.op == "max_pool2d" and n.inputs[0] in alone for n in graph.nodes):
        return graph
    old: dict[Node, Node] = {}
    for n in graph.nodes:
        inputs = [old[i] for i in n.inputs]
        if n.op == "max_pool2d" and n.inputs[0] in alone:
            with b.origin(n):
                pooled = b.make("max_pool2d", inputs[0].inputs, n.attrs)
            with b.origin(n.inputs[0], name=n.name):
                old[n] = b.make("relu", (pooled,))
        else:
            old[n] = n.with_inputs(inputs)
    return IRGraph(
        tuple(type(o)(o.name, old[o.node]) for o in graph.outputs),
        tuple(type(u)(u.name, old[u.node]) for u in graph.updates),
        tuple(old[i] for i in graph.inputs),
    )


def through_pools(graph: IRGraph, target: Target) -> IRGraph:
    """Adjoints of convolutions and sums take the gradient of a pool as it is, not written out."""
    near, parts = target.limits.nearest_cache, target.limits.batch_parts
    return rewrite(graph, lambda node: through_pool(node, parts, lambda node, pool: _is_near(node, pool, near)))


def through_pool(node: Node, parts: int, fits: Callable[[Node, Node], bool]) -> Node:
    """A node that takes the gradient of a pool as it is, where the pool's adjoint and the node's op allow it.

    `fits(node, adjoint)` says whether it pays.  A gradient of weights is made in so many `parts` of the batch.
    """
    if node.op == "sum" and node.inputs[0].op == "max_pool2d_grad":
        return _sum(node)
    position = {"conv2d_grad_weight": 1, "conv2d_grad_input": 0}.get(node.op)
    if position is None or node.inputs[position].op != "max_pool2d_grad":
        return node
    spread = node.inputs[position]
    a, pool = attrs_of(node, at.ConvGradAttrs), attrs_of(spread, at.PoolGradAttrs)
    if not (_is_plain(a) and _tiles(pool) and fits(node, spread)):
        return node
    g, index = spread.inputs
    attrs = at.PooledConvAttrs(a.low, a.high, pool.window, pool.size, a.size)
    with b.origin(node):
        if node.op == "conv2d_grad_input":
            return b.make("pooled_grad_input", (g, index, node.inputs[1]), attrs)
        in_parts = b.make("pooled_grad_weight", (node.inputs[0], g, index), replace(attrs, parts=parts))
        flat = b.reshape(in_parts, (parts, node.type.elements))  # one long row of columns to add up
        return b.reshape(b.sum_axes(flat, (0,)), node.type.shape)


def _is_near(node: Node, spread: Node, near: int) -> bool:
    """Is what is read again and again near?  Then a multiply-add through the pool costs about two dense ones."""
    if node.op == "conv2d_grad_weight":
        return _fits_image(node.inputs[0], 2 * near)
    return _fits_kernels(node.inputs[1], attrs_of(spread, at.PoolGradAttrs), near)


def _sum(node: Node) -> Node:
    """Every element of the gradient went to one pixel: over whole images, the sum is that of the gradient."""
    spread, axes = node.inputs[0], attrs_of(node, at.SumAttrs).axes
    last = attrs_of(spread, at.PoolGradAttrs).last
    if not {1, 2} <= set(axes) if last else not {2, 3} <= set(axes):
        return node
    with b.origin(node):
        return b.sum_axes(spread.inputs[0], axes)


def _is_plain(a: at.ConvGradAttrs) -> bool:
    return a.last and a.groups == 1 and max(*a.stride, *a.dilation) == 1


def _tiles(pool: at.PoolGradAttrs) -> bool:
    small = pool.window[0] * pool.window[1] <= SMALL_WINDOW
    return pool.window == pool.stride and max(*pool.low, *pool.high) == 0 and small


def _fits_image(x: Node, most: int) -> bool:
    """Has one image, which is read once for every output, at most so many bytes?"""
    _, *size = x.type.shape
    elements = 1
    for e in size:
        assert isinstance(e, int), "type rules ask for numbers"
        elements *= e
    return elements * x.type.dtype.size <= most


def _fits_kernels(weight: Node, pool: at.PoolGradAttrs, most: int) -> bool:
    """Have the framed kernels, which are read once for every pixel of the pool, at most so many bytes?"""
    outputs, channels, (height, width) = parts(weight.type, last=True)
    assert isinstance(outputs, int), "type rules ask for numbers"
    assert isinstance(channels, int), "type rules ask for numbers"
    assert isinstance(height, int), "type rules ask for numbers"
    assert isinstance(width, int), "type rules ask for numbers"
    rows, columns = height + 2 * (pool.window[0] - 1), width + 2 * (pool.window[1] - 1)
    return outputs * rows * columns * channels * weight.type.dtype.size <= most
