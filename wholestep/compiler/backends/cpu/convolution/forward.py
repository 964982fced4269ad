"""Schedules of kernels whose result is an image: convolutions, their gradients in the image, and pools.

Each function chooses the algorithm from the op's shapes alone (Winograd, implicit GEMM, or direct convolution in
register tiles over a zero-padded frame), reserves the thread's workspace, and returns the tiling.  The batch, the
number of threads and the neighbouring kernels have no influence, so the order of every sum is fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from wholestep.compiler.backends.cpu.convolution import implicit_gemm, winograd
from wholestep.compiler.backends.cpu.convolution.padding import (
    SLACK,
    backward_taps,
    columns_of,
    forward_margin,
    panel_columns,
    reads_past,
    round_up,
)
from wholestep.compiler.backends.cpu.convolution.workspace import WorkspaceRequest, area
from wholestep.compiler.backends.cpu.kernel_schedule import PaddedImage, Tiles
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.type_rules.convolution import index_dtype
from wholestep.compiler.ir.types import Extent

# Bytes of a vector in kernels fused with a pool: fixed, so that the workspace is the same on every target.
VECTOR_BYTES = 32


def _conv2d(rooms: WorkspaceRequest) -> Tiles:
    x, _ = rooms.head.inputs
    a = attrs_of(rooms.head, at.ConvAttrs)
    height, width, channels = rooms.image(0)
    kernel_height, kernel_width, inner = rooms.image(1)
    batch, (rows, columns, outputs) = rooms.head.type.shape[0], rooms.result_image()
    kernel = (outputs, kernel_height, kernel_width, inner)
    by_tiles = winograd.uses_winograd(kernel, x.type.dtype, (rows, columns), a.stride, a.dilation, a.groups)
    geometry = implicit_gemm.ConvolutionGeometry(
        False, (height, width), (rows, columns), (kernel_height, kernel_width), a.stride, a.low, a.dilation
    )
    if not by_tiles and implicit_gemm.uses_implicit_gemm(rooms, kernel, geometry, a.groups):
        return implicit_gemm.reserve(rooms, geometry, channels, outputs)
    step = 2 if by_tiles else 1
    margins = [
        forward_margin(*of)
        for of in zip(
            *((height, width), (round_up(rows, step), round_up(columns, step)), (kernel_height, kernel_width)),
            *(a.stride, a.low, a.dilation),
            strict=True,
        )
    ]
    spills = reads_past(channels, a.groups, outputs, inner, by_tiles)
    if max(*a.low, *margins) > 0 or not rooms.is_dense(0) or spills:
        rooms.room("frame", area((height, width), a.low, margins) * channels + SLACK)
    _pack(rooms, a.groups, outputs, kernel_height * kernel_width * inner)
    # Pixels that no window of a fused pool covers are not computed.
    size = rows // rooms.pool[0] * rooms.pool[0], columns // rooms.pool[1] * rooms.pool[1]
    padded = [round_up(n, step) for n in size]
    sides = zip((height, width), padded, (kernel_height, kernel_width), a.stride, a.low, a.dilation, strict=True)
    frame = rooms.frame(0, a.low, [forward_margin(*of) for of in sides])
    if by_tiles:
        return replace(_by_tiles(rooms, batch, size, channels, outputs), frame=frame)
    rooms.room("block", rooms.pool[0] * columns * panel_columns(a.groups, outputs, inner))
    return Tiles(frame=frame)


def _by_tiles(rooms: WorkspaceRequest, batch: Extent, size: Sequence[int], depth: int, outputs: int) -> Tiles:
    rows = winograd.reserve(rooms.room, size, depth, outputs, rooms.pool[0])
    rooms.count_tiles(batch, size, depth * outputs)
    return Tiles(rows)


def _pack(rooms: WorkspaceRequest, groups: int, channels: int, depth: int) -> None:
    """Reserve workspace for a weight packed in panels of output channels."""
    panel = columns_of(channels // groups)
    rooms.room("packed", groups * round_up(channels // groups, panel) * depth)


def _conv2d_grad_input(rooms: WorkspaceRequest) -> Tiles:
    g, _ = rooms.head.inputs
    a = attrs_of(rooms.head, at.ConvGradAttrs)
    rows, columns, outputs = rooms.image(0)
    kernel_height, kernel_width, inner = rooms.image(1)
    channels = inner * a.groups
    kernel = (outputs, kernel_height, kernel_width, inner)
    by_tiles = winograd.uses_winograd(kernel, g.type.dtype, a.size, a.stride, a.dilation, a.groups)
    geometry = implicit_gemm.ConvolutionGeometry(
        True, a.size, (rows, columns), (kernel_height, kernel_width), a.stride, a.low, a.dilation
    )
    if not by_tiles and implicit_gemm.uses_implicit_gemm(rooms, kernel, geometry, a.groups):
        return implicit_gemm.reserve(rooms, geometry, outputs, channels)
    sides = [
        backward_taps(*of)
        for of in zip(a.size, (rows, columns), (kernel_height, kernel_width), a.stride, a.low, a.dilation, strict=True)
    ]
    odd = [by_tiles * size % 2 for size in a.size]  # a tile that crosses the edge reads one more row
    margin_low, margin_high = [s[1] for s in sides], [s[2] + extra for s, extra in zip(sides, odd, strict=True)]
    spills = reads_past(outputs, a.groups, channels, outputs // a.groups, by_tiles)
    if max(*margin_low, *margin_high) > 0 or not rooms.is_dense(0) or spills:
        rooms.room("frame", area((rows, columns), margin_low, margin_high) * outputs + SLACK)
    _pack(rooms, a.groups, channels, kernel_height * kernel_width * (outputs // a.groups))
    (down, *_), (across, *_) = sides
    frame_and_taps = {"frame": rooms.frame(0, margin_low, margin_high), "down": tuple(down), "across": tuple(across)}
    if by_tiles:
        return replace(_by_tiles(rooms, g.type.shape[0], a.size, outputs, channels), **frame_and_taps)  # type: ignore[arg-type]
    rooms.room("block", a.size[1] * panel_columns(a.groups, channels, outputs // a.groups))
    return replace(Tiles(), **frame_and_taps)  # type: ignore[arg-type]


def _grad_input_through_pool(rooms: WorkspaceRequest) -> Tiles:
    a = attrs_of(rooms.head, at.PooledConvAttrs)
    _, _, outputs = rooms.image(0)
    kernel_height, _, channels = rooms.image(2)
    rooms.room("image", area(a.size, a.low, a.high) * channels + padded_row_length(rooms.head) + SLACK)
    rooms.room("packed", outputs * (kernel_height + 2 * a.window[0] - 2) * padded_row_length(rooms.head) + SLACK)
    return Tiles(frame=pool_frame(a, rooms.image(0), a.size, rooms.image(2)))


def pool_frame(a: at.PooledConvAttrs, pooled: Sequence[int], size: Sequence[int], kernel: Sequence[int]) -> PaddedImage:
    """The padded frame of an image of `size`, large enough for the windows under all windows of a pool."""
    (rows, columns, _), (tall, wide, channels) = pooled, kernel
    height = max(a.low[0] + size[0], rows * a.window[0] + tall - 1)
    width = max(a.low[1] + size[1], columns * a.window[1] + wide - 1)
    return PaddedImage(a.low, width * channels, height * width * channels + SLACK)


def padded_row_length(head: Node) -> int:
    """Elements of a zero-padded kernel row, wide enough to be shifted within a pool's window."""
    a, weight = attrs_of(head, at.PooledConvAttrs), head.inputs[2].type
    _, _, width, channels = (e for e in weight.shape if isinstance(e, int))
    return padded_length(width, channels, a.window[1], VECTOR_BYTES // weight.dtype.size)


def padded_length(width: int, channels: int, window: int, lanes: int) -> int:
    return (window - 1) * channels + round_up((width + window - 1) * channels, lanes)


def _pool(rooms: WorkspaceRequest) -> Tiles:
    a = attrs_of(rooms.head, at.PoolAttrs)
    _, _, channels = rooms.image(0)
    rooms.room("best", channels, rooms.head.inputs[0].type.dtype)
    rooms.room("positions", channels, index_dtype(a.window))
    return Tiles()


def _pool_grad(rooms: WorkspaceRequest) -> Tiles:
    a = attrs_of(rooms.head, at.PoolGradAttrs)
    _, _, channels = rooms.image(0)
    rooms.room("image", a.size[0] * a.size[1] * channels)
    return Tiles()


def _pool_pick(rooms: WorkspaceRequest) -> Tiles:
    _, _, channels = rooms.image(0)
    rooms.room("best", channels)
    return Tiles()


IMAGE_SCHEDULERS: Mapping[str, Callable[[WorkspaceRequest], Tiles]] = {
    "conv2d": _conv2d,
    "conv2d_grad_input": _conv2d_grad_input,
    "pooled_grad_input": _grad_input_through_pool,
    "max_pool2d": _pool,
    "max_pool2d_index": _pool,
    "max_pool2d_grad": _pool_grad,
    "max_pool2d_pick": _pool_pick,
}
