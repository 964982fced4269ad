"""Max-pool fusion: which direct convolutions compute their pool in the same kernel, forward and backward.

A pool is fused if a tile with the pooling window in registers fits a block's shared memory.
"""

from __future__ import annotations

from wholestep.compiler.backends.gpu.grids.convolution import Shape, best_tile, fits_pool
from wholestep.compiler.backends.gpu.grids.convolution_operands import static_extent
from wholestep.compiler.backends.gpu.target import GpuTarget, gpu_target
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.passes.lower.max_pooling import fuse_pool_gradient


def takes_pool(convolution: Node, pool: Node, name: str) -> bool:
    """May a pool be computed in the kernel of its convolution, on the target with this name?"""
    target = gpu_target(name)
    if target.load_libraries().convolves(convolution, target):
        return False
    a, window = attrs_of(convolution, at.ConvAttrs), attrs_of(pool, at.PoolAttrs).window
    outputs, tall, wide, channels = map(static_extent, convolution.inputs[1].type.shape)
    _, rows, columns, _ = convolution.type.shape
    size = static_extent(rows) // window[0] * window[0], static_extent(columns) // window[1] * window[1]
    shape = Shape(tall, wide, a.stride, a.dilation, channels, outputs, *size, a.low, window)
    return a.groups == 1 and has_tile(shape, convolution, target)


def has_tile(shape: Shape, node: Node, target: GpuTarget) -> bool:
    """Does a tile of a convolution fit a block?"""
    return best_tile(shape, target.cost_model.convolution.trial_images, _size(node), target) is not None


def _size(node: Node) -> int:
    return max(4, node.inputs[0].type.dtype.size)


def through_small_pools(graph: IRGraph, target: GpuTarget) -> IRGraph:
    """Lets adjoints of convolutions and sums read the pooled gradient directly, if a block has room for it."""
    slices = target.cost_model.convolution.pooled_batch_slices
    return rewrite(graph, lambda node: fuse_pool_gradient(node, slices, lambda n, pool: _fits(n, pool, target)))


def _fits(node: Node, spread: Node, target: GpuTarget) -> bool:
    if target.load_libraries().convolves(node, target):
        return False
    a, pool = attrs_of(node, at.ConvGradAttrs), attrs_of(spread, at.PoolGradAttrs).window
    if node.op == "conv2d_grad_weight":
        outputs, tall, wide, channels = map(static_extent, node.type.shape)
        _, rows, columns, _ = map(_static_or_zero, spread.inputs[0].type.shape)
        shape = Shape(tall, wide, (1, 1), (1, 1), channels, outputs, rows, columns, a.low, pool)
        return fits_pool(shape, _size(node), target.cost_model.convolution)
    outputs, tall, wide, channels = map(static_extent, node.inputs[1].type.shape)
    _, rows, columns, _ = map(_static_or_zero, node.type.shape)
    shape = Shape(tall, wide, (1, 1), (1, 1), outputs, channels, rows, columns, (0, 0))
    return has_tile(shape, node, target)


def _static_or_zero(extent: object) -> int:
    """The extent as an integer; 0 for the batch, which is symbolic."""
    return extent if isinstance(extent, int) else 0
