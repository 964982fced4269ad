"""Grouped convolutions, depthwise ones above all: which channels and pixels a thread of `native/grouped.h` computes.

They are bound by memory: a thread computes a strip of adjacent pixels for the adjacent channels of one 16-byte load,
with all sums in registers.  Strips and blocks do not affect the bits of an image; chunks of channels and columns do,
and the slices of a weight gradient.  None of them depends on the batch capacity or the number of multiprocessors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import ceil, gcd

from wholestep.compiler.backends.gpu.cost_model import GroupedCosts
from wholestep.compiler.backends.gpu.grids.convolution_operands import operand, shape_of, static_extent
from wholestep.compiler.backends.gpu.kernel_schedule import JOINED, Form, GpuSchedule
from wholestep.compiler.backends.gpu.strides import is_affine, is_packed
from wholestep.compiler.backends.gpu.target import GpuTarget
from wholestep.compiler.ir.types import DType, evaluate
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Operand
from wholestep.records import dataclass

GRADIENT = "conv2d_grad_weight"
GROUPED = ("conv2d", "conv2d_grad_input", GRADIENT)


@dataclass(frozen=True)
class GroupedShape:
    """A grouped convolution or adjoint: sizes of its window and of the images that its threads walk over."""

    op: str
    groups: int
    channels: int  # channels per group of the image that is read (for an input gradient: the output gradient)
    outputs: int  # channels of a group of the result (for a weight gradient: of the output gradient)
    window: tuple[int, int]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    rows: int  # rows and columns of the image whose strips are divided among threads
    columns: int

    @property
    def text(self) -> str:
        """The type that native/window.h uses for it."""
        return f"ws_shape<{', '.join(map(str, (*self.window, *self.stride, *self.dilation)))}>"


def grouped_shape(kernel: Kernel, window: Window) -> GroupedShape:
    if window.op == GRADIENT:
        outputs, tall, wide, channels = map(static_extent, kernel.axes[:4])
        _, rows, columns, _ = shape_of(kernel, operand(window, "g"))
    else:
        outputs, tall, wide, channels = map(static_extent, shape_of(kernel, operand(window, "weight")))
        rows, columns = kernel.axes[1], kernel.axes[2]
    counts = (channels, outputs // window.groups)
    if window.op == "conv2d_grad_input":
        counts = (counts[1], counts[0])
    fixed = (window.stride, window.dilation, window.low)
    return GroupedShape(
        window.op, window.groups, *counts, (tall, wide), *fixed, static_extent(rows), static_extent(columns)
    )


@dataclass(frozen=True)
class Lane:
    """The channels of a thread: `together` adjacent groups, of each some input and output channels."""

    together: int
    inputs: int
    outputs: int

    @property
    def products(self) -> int:
        return self.together * self.inputs * self.outputs

    def count(self, s: GroupedShape) -> int:
        """Lanes that cover all output channels; a weight gradient has one for each block of input channels too."""
        lanes = s.groups // self.together * (s.outputs // self.outputs)
        return lanes * self.blocks(s) if s.op == GRADIENT else lanes

    def blocks(self, s: GroupedShape) -> int:
        return s.channels // self.inputs


def _divisor(n: int, most: int) -> int:
    return next(m for m in range(min(n, most), 0, -1) if n % m == 0)


def lane_of(s: GroupedShape, size: int, costs: GroupedCosts) -> Lane:
    """As many adjacent groups as one 16-byte load has; of large groups, a tile of input and output channels."""
    vector, wide = 16 // size, max(s.channels, s.outputs)
    if s.channels * s.outputs <= costs.lane_products and wide <= vector:
        most = min(vector // wide, max(1, costs.lane_products // (s.channels * s.outputs)))
        return Lane(gcd(s.groups, 1 << most.bit_length() - 1), s.channels, s.outputs)
    return Lane(1, _divisor(s.channels, costs.lane_channels), _divisor(s.outputs, costs.lane_channels))


def taps_of(s: GroupedShape, lane: Lane, costs: GroupedCosts) -> int:
    """Columns of the window whose weights (or sums, of a weight gradient) are in registers at a time."""
    most = min(costs.most_taps, max(1, costs.register_weights // lane.products))
    return ceil(s.window[1] / ceil(s.window[1] / most))


def strip_of(s: GroupedShape, lane: Lane, taps: int, costs: GroupedCosts) -> int:
    """Pixels of a strip: the number with the fewest instructions per row, whose last strip may be partly outside."""
    adjoint = s.op == "conv2d_grad_input"
    step, registers = s.stride[1], costs.register_sums
    if s.op == GRADIENT:
        in_flight = costs.strided_inputs * (step - 1) * lane.together * lane.inputs
        registers = min(registers, costs.gradient_registers - taps * lane.products - in_flight)
    per_pixel = lane.together * lane.outputs

    def instructions(count: int) -> float:
        span = (count - 1) // step + taps if adjoint else (count - 1) * step + (taps - 1) * s.dilation[1] + 1
        span = min(span, count * taps)
        loads: float = span * (costs.load_instructions + lane.together * lane.inputs)
        loads += count * (costs.load_instructions + per_pixel) if s.op == GRADIENT else taps * lane.products / 4
        useful = count * taps * lane.products / (step if adjoint else 1)
        return ceil(s.columns / count) * (loads + useful + costs.strip_instructions)

    counts = [
        n
        for n in range(1, min(costs.most_pixels, s.columns) + 1)
        if (n == 1 or n * per_pixel <= registers) and (not adjoint or n == 1 or n % step == 0)
    ]
    if adjoint and step > 1 and step <= costs.most_pixels and step * per_pixel <= registers:
        counts = sorted({n for n in counts if n % step == 0} | {step})  # the phase of each pixel is a constant
    return min(counts, key=lambda n: (instructions(n), -n))


def lanes_per_block(count: int, bytes: int, most: int) -> int:
    """Lanes of a block, such that few lanes of the last block are idle and the pixels fill cache lines."""

    def cost(lanes: int) -> float:
        return ceil(count / lanes) * lanes / count * (1 + 16 / (lanes * bytes))

    return min(range(1, max(1, min(most, count)) + 1), key=lambda lanes: (cost(lanes), -lanes))


@cache
def pixels_tile(s: GroupedShape, stored: DType, costs: GroupedCosts) -> tuple[Lane, int, int, int] | None:
    """(lane, pixels of a strip, columns of taps, lanes of a block); None if the weights of one lane fill a block."""
    lane = lane_of(s, stored.size, costs)
    weights = s.window[0] * s.window[1] * s.channels * lane.together * lane.outputs * stored.accumulate.size
    most = costs.shared_bytes // weights
    if most < 1:
        return None
    taps = taps_of(s, lane, costs)
    lanes = lanes_per_block(lane.count(s), lane.together * lane.inputs * stored.size, min(most, costs.most_lanes))
    return lane, strip_of(s, lane, taps, costs), taps, lanes


def schedule_grouped_pixels(s: GroupedShape, images: int, stored: DType, target: GpuTarget) -> GpuSchedule | None:
    costs = target.cost_model.grouped
    tile = pixels_tile(s, stored, costs)
    if tile is None:
        return None
    lane, count, taps, lanes = tile
    words = stored.accumulate.size // 4
    registers = words * (count * lane.together * lane.outputs + taps * lane.products)
    threads = costs.threads if registers <= costs.many_registers else costs.fewer_threads
    strips = threads // lanes
    items, tiles = images * s.rows * ceil(s.columns / count), ceil(lane.count(s) / lanes)
    blocks = ceil(items / strips) * tiles
    steps = max(1, min(costs.most_steps, blocks // (costs.blocks_per_multiprocessor * target.multiprocessors)))
    sizes = (count, lane.together, lane.inputs, lane.outputs, lanes, taps, steps)
    return GpuSchedule(Form.GROUPED, threads, max(1, ceil(items / (strips * steps)) * tiles), tile=sizes)


@dataclass(frozen=True)
class GradientTile:
    """Tile of a weight gradient: see `ws_group_gradient` of native/grouped.h."""

    lane: Lane
    strip: int
    lanes: int
    pairs: int  # pairs of a window row and a chunk of columns that a block computes
    split: int  # threads that share the strips of a pair
    taps: int
    threads: int
    tiles: int  # blocks of one slice

    @property
    def values(self) -> int:
        return self.pairs * self.taps * self.lane.products * self.lanes


@cache
def gradient_tile(s: GroupedShape, stored: DType, costs: GroupedCosts) -> GradientTile | None:
    lane, size = lane_of(s, stored.size, costs), stored.accumulate.size
    taps = taps_of(s, lane, costs)
    count, threads = strip_of(s, lane, taps, costs), costs.fewer_threads
    all_pairs = s.window[0] * ceil(s.window[1] / taps)
    most = max(1, min(costs.most_lanes, costs.gradient_values // (all_pairs * taps * lane.products)))
    lanes = lanes_per_block(lane.count(s), lane.together * lane.outputs * stored.size, most)
    most = max(1, min(threads // lanes, costs.shared_bytes // (taps * lane.products * lanes * size)))
    pairs = ceil(all_pairs / ceil(all_pairs / most))
    split = min(threads // (lanes * pairs), costs.shared_bytes // (pairs * taps * lane.products * lanes * size))
    tiles = ceil(lane.count(s) / lanes) * ceil(all_pairs / pairs)
    return GradientTile(lane, count, lanes, pairs, split, taps, threads, tiles) if split else None


def most_slices(tile: GradientTile, costs: GroupedCosts) -> int:
    """The number of slices of the batch's rows, each summed by its own block; the same for any batch (*bits*)."""
    return max(1, costs.gradient_blocks // tile.tiles)


def schedule_grouped_gradient(s: GroupedShape, images: int, stored: DType, costs: GroupedCosts) -> GpuSchedule | None:
    tile = gradient_tile(s, stored, costs)
    if tile is None:
        return None
    strips = images * s.rows * ceil(s.columns / tile.strip)
    parts = max(1, min(most_slices(tile, costs), strips // (tile.split * costs.least_strips), images * s.rows))
    lane = tile.lane
    sizes = (tile.strip, lane.together, lane.inputs, lane.outputs, tile.lanes, tile.pairs, tile.split, tile.taps)
    scratch = tile.tiles * (parts + ceil(parts / JOINED)) * tile.values * stored.accumulate.size
    if parts == 1:
        return GpuSchedule(Form.GROUPED_GRADIENT, tile.threads, tile.tiles, tile=sizes)
    return GpuSchedule(
        Form.GROUPED_GRADIENT, tile.threads, tile.tiles, tile=sizes, chunk=1, chunks=parts, scratch=scratch
    )


def schedule_grouped(
    target: GpuTarget, plan: Draft, kernel: Kernel, window: Window, sizes: Mapping[str, int]
) -> GpuSchedule | None:
    """Schedule of a grouped convolution or adjoint; None if another kernel computes it."""
    images = [o for o in window.operands if o.name != "weight"]
    if window.groups == 1 or window.op not in GROUPED or not all(is_affine(o.load) for o in window.operands):
        return None
    s, stored = grouped_shape(kernel, window), plan.buffers[images[0].load.buffer].type.dtype
    if any(plan.buffers[o.load.buffer].type.dtype != stored for o in images):
        return None
    batch = evaluate(shape_of(kernel, images[0])[0], sizes)
    if window.op == GRADIENT:
        return schedule_grouped_gradient(s, batch, stored, target.cost_model.grouped)
    return schedule_grouped_pixels(s, batch, stored, target)


def is_vectorized(item: Operand, count: int) -> bool:
    """Are `count` channels of an image adjacent, and aligned to their number?"""
    return is_packed(item.load, item.axes[-1], count)
