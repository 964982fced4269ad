"""Schedules of weight gradients of convolutions: a sum over all images, so threads divide the output channels.

No thread ever adds to another thread's sums.  Algorithms: Winograd's adjoint, all images in place (small images),
vectors of channels (depthwise), or register tiles of a few outputs over a zero-padded frame.
"""

from __future__ import annotations

from wholestep.compiler.backends.cpu.convolution import winograd
from wholestep.compiler.backends.cpu.convolution.forward import pool_frame
from wholestep.compiler.backends.cpu.convolution.implicit_gemm import ConvolutionGeometry
from wholestep.compiler.backends.cpu.convolution.padding import (
    NARROW,
    SLACK,
    TILE_OUTPUTS,
    depth_columns,
    forward_margin,
    is_depthwise,
    round_up,
    runs,
)
from wholestep.compiler.backends.cpu.convolution.workspace import WorkspaceRequest, area
from wholestep.compiler.backends.cpu.kernel_schedule import Tiles
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import evaluate, float32

SMALL_IMAGE = 8  # pixels of a gradient: with more, the pixels of all images conflict in a few sets of the L1 cache


def schedule_weight_gradient(rooms: WorkspaceRequest) -> Tiles:
    """Reserve operands and workspace of a weight's gradient; returns its tiling."""
    head = rooms.head
    tiles = _weight_gradient_through_pool(rooms) if head.op == "pooled_grad_weight" else _plain_weight(rooms)
    if not tiles.rows and not tiles.in_place:
        rooms.room("sums", _sums(head, rooms.image(0)[2], tiles.runs is None and head.op == "conv2d_grad_weight"))
    return tiles


def _sums(head: Node, channels: int, by_channels: bool) -> int:
    """Elements of the accumulators of all outputs, rounded up to full vectors."""
    outputs, height, width, inner = (e for e in head.type.shape[-4:] if isinstance(e, int))
    if by_channels:
        return round_up(outputs, depth_columns(outputs)) * height * width + SLACK
    of = runs(width, getattr(head.attrs, "dilation", (1, 1))[1], channels, inner)
    return outputs * height * of.count * round_up(of.length) + SLACK


def _plain_weight(rooms: WorkspaceRequest) -> Tiles:
    g = rooms.head.inputs[1]
    a = attrs_of(rooms.head, at.ConvGradAttrs)
    height, width, channels = rooms.image(0)
    rows, columns, outputs = rooms.image(1)
    kernel = (outputs, *a.size, channels // a.groups)
    if winograd.uses_winograd(kernel, g.type.dtype, (rows, columns), a.stride, a.dilation, a.groups):
        return _weight_by_tiles(rooms, a)
    margins = [
        forward_margin(*of)
        for of in zip((height, width), (rows, columns), a.size, a.stride, a.low, a.dilation, strict=True)
    ]
    geometry = ConvolutionGeometry(True, (height, width), (rows, columns), a.size, a.stride, a.low, a.dilation)
    if _is_read_in_place(rooms, geometry, a.groups, channels):
        rooms.flops = evaluate(g.type.shape[0] * (2 * geometry.pairs * channels * outputs), rooms.sizes)
        return Tiles(granule=TILE_OUTPUTS, in_place=True)
    rooms.room("frame", area((height, width), a.low, margins) * channels + SLACK)
    if is_depthwise(a.groups, outputs, channels // a.groups) and outputs >= NARROW:
        if not rooms.is_dense(1):
            rooms.room("around", rows * columns * outputs)
        return Tiles(granule=depth_columns(outputs), frame=rooms.frame(0, a.low, margins))  # one vector of channels
    tile = TILE_OUTPUTS
    while (outputs // a.groups) % tile and a.groups > 1:
        tile //= 2
    of = runs(a.size[1], a.dilation[1], channels, channels // a.groups)
    return Tiles(granule=tile, frame=rooms.frame(0, a.low, margins), runs=of)


def _is_read_in_place(rooms: WorkspaceRequest, geometry: ConvolutionGeometry, groups: int, channels: int) -> bool:
    """Are images small, with full vectors of channels?  From frames, sums would pass through memory once per image."""
    vectors = channels % LANES == 0 and rooms.steps(0)[3] == 1
    return groups == 1 and rooms.head.type.dtype == float32 and vectors and geometry.input <= SMALL_IMAGE


def _weight_by_tiles(rooms: WorkspaceRequest, a: at.ConvGradAttrs) -> Tiles:
    batch, (height, width, channels) = rooms.head.inputs[0].type.shape[0], rooms.image(0)
    rows, columns, outputs = rooms.image(1)
    even = round_up(rows, 2), round_up(columns, 2)
    margins = [
        forward_margin(*of) for of in zip((height, width), even, a.size, a.stride, a.low, a.dilation, strict=True)
    ]
    rooms.room("frame", area((height, width), a.low, margins) * channels + SLACK)
    if even != (rows, columns) or outputs % LANES or not rooms.is_dense(1):
        rooms.room("around", even[0] * even[1] * outputs + SLACK)
    tile_rows = winograd.reserve_weight(rooms.room, (rows, columns), channels, outputs)
    rooms.count_tiles(batch, (rows, columns), channels * outputs)
    return Tiles(tile_rows, winograd.TILE_OUTPUTS, frame=rooms.frame(0, a.low, margins))


def _weight_gradient_through_pool(rooms: WorkspaceRequest) -> Tiles:
    a = attrs_of(rooms.head, at.PooledConvAttrs)
    height, width, channels = rooms.image(0)
    rooms.room("frame", area((height, width), a.low, a.high) * channels + SLACK)
    weight = [e for e in rooms.head.type.shape[-3:] if isinstance(e, int)]
    return Tiles(granule=1, frame=pool_frame(a, rooms.image(1), (height, width), weight))
