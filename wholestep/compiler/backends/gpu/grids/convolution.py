"""Direct convolution for few channels: tile selection for the forward pass, the input and the weight gradients.

A block keeps a band of the image and its weights in shared memory; a thread computes some pixels of some outputs in
registers.  An estimate of cycles (`_cycles`) chooses the tile.  Tiles of pixels do not affect the bits; the number of
batch slices of a weight gradient (`ConvolutionCosts.batch_slices`) does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product as combinations
from math import ceil, prod

from wholestep.compiler.backends.gpu.cost_model import ConvolutionCosts
from wholestep.compiler.backends.gpu.grids.convolution_operands import operand, shape_of, static_extent
from wholestep.compiler.backends.gpu.grids.gemm import schedule_tiled_gemm
from wholestep.compiler.backends.gpu.grids.grouped_convolution import schedule_grouped
from wholestep.compiler.backends.gpu.grids.row_loads import has_vector_loads
from wholestep.compiler.backends.gpu.kernel_schedule import JOINED, THREADS, Form, GpuSchedule, blocks_of, sizes_in
from wholestep.compiler.backends.gpu.target import GpuTarget, target_of
from wholestep.compiler.ir.types import DType, Extent, evaluate
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Draft, Kernel
from wholestep.errors import PlanError
from wholestep.records import dataclass


@dataclass(frozen=True)
class Shape:
    """A convolution of one image: output pixels, each a sum over an input window.  The adjoint has the same form."""

    tall: int
    wide: int
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    channels: int  # input channels
    outputs: int  # output channels
    rows: int
    columns: int
    low: tuple[int, ...]  # padding above and before the image
    pool: tuple[int, ...] = ()  # the pooling window whose pixels one thread computes, if a pool is fused

    def covered_pixels(self, windows: tuple[int, int]) -> int:
        """Input pixels covered by this many windows, down and across."""
        sizes = zip(windows, self.stride, (self.tall, self.wide), self.dilation, strict=True)
        return prod((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in sizes)

    @property
    def text(self) -> str:
        """The type that native/window.h uses for it."""
        return f"ws_shape<{', '.join(map(str, (self.tall, self.wide, *self.stride, *self.dilation)))}>"


def shape(kernel: Kernel, window: Window) -> Shape:
    """The shape of a window kernel; an input gradient is a convolution of output gradients with the flipped kernel."""
    if window.op in ("conv2d_grad_weight", "pooled_grad_weight"):
        outputs, tall, wide, channels = map(static_extent, kernel.axes[:5][-4:] if window.pool else kernel.axes[:4])
        _, rows, columns, _ = shape_of(kernel, operand(window, "g"))
        size = static_extent(rows), static_extent(columns)
        return Shape(tall, wide, window.stride, window.dilation, channels, outputs, *size, window.low, window.pool)
    outputs, tall, wide, channels = map(static_extent, shape_of(kernel, operand(window, "weight")))
    rows, columns = static_extent(kernel.axes[1]), static_extent(kernel.axes[2])
    if window.op == "conv2d":
        pool = window.pool if window.pooled is not None else ()
        size = (rows, columns) if not pool else (rows * pool[0], columns * pool[1])
        return Shape(tall, wide, window.stride, window.dilation, channels, outputs, *size, window.low, pool)
    low = tuple(d * (k - 1) - a for d, k, a in zip(window.dilation, (tall, wide), window.low, strict=True))
    return Shape(tall, wide, (1, 1), window.dilation, outputs, channels, rows, columns, low)


# -- pixels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvTile:
    """Tile of a block: `band` x `across` thread items of `pixels`, times `groups` of `each` output channels."""

    pixels: tuple[int, int]
    band: int
    across: int
    groups: int
    each: int
    threads: int

    def blocks(self, s: Shape) -> int:
        """Blocks per image."""
        bands = ceil(ceil(s.rows / self.pixels[0]) / self.band) * ceil(ceil(s.columns / self.pixels[1]) / self.across)
        return bands * ceil(s.outputs / (self.groups * self.each))

    def elements(self, s: Shape) -> tuple[int, int]:
        """Elements of weights and of images in shared memory."""
        rows = (self.band * self.pixels[0] - 1) * s.stride[0] + (s.tall - 1) * s.dilation[0] + 1
        step, last = self.pixels[1] * s.stride[1], (self.pixels[1] - 1) * s.stride[1] + (s.wide - 1) * s.dilation[1] + 1
        piece = 4 if step % 4 == 0 else 2 if step % 2 == 0 else 1
        wide = ceil(((self.across - 1) * step + ceil(last / piece) * piece) / piece) * piece
        plane = (rows * wide // piece | 1) * piece
        return s.tall * s.wide * s.channels * self.groups * self.pack, s.channels * plane

    @property
    def pack(self) -> int:
        """Output channels per thread, padded to a vector load."""
        return 8 if self.each > 4 else 4 if self.each > 2 else self.each


def _tiles(s: Shape, costs: ConvolutionCosts) -> Iterator[ConvTile]:
    pixels = [(s.pool[0], s.pool[1])] if s.pool else [p for p in costs.pixels if p[0] <= s.rows and p[1] <= s.columns]
    for (tall, wide), each, threads in combinations(pixels, costs.outputs, (128, 256)):
        if tall * wide * each > 32 or s.covered_pixels((tall, wide)) > 64 or each >= 2 * s.outputs:
            continue  # the tile needs too many registers
        down, across, most = ceil(s.rows / tall), ceil(s.columns / wide), ceil(s.outputs / each)
        for groups, band in combinations(_parts(most), _parts(down)):
            yield ConvTile((tall, wide), band, across, groups, each, threads)
        for columns in _parts(across):  # tiles of one row, for wide images
            yield ConvTile((tall, wide), 1, columns, 1, each, threads)


def _parts(count: int) -> set[int]:
    """The sizes of the parts if `count` is divided into up to sixteen parts; then 1."""
    return {ceil(count / parts) for parts in range(1, min(count, 16) + 1)} | {1}


def _cycles(s: Shape, tile: ConvTile, images: int, size: int, target: GpuTarget) -> float:
    """Estimated cycles: the larger of issue-bound and latency-bound time, plus a share of the smaller."""
    costs = target.cost_model.convolution
    pixels, each, taps = tile.pixels[0] * tile.pixels[1], tile.each, s.tall * s.wide
    warps = tile.groups * ceil(tile.band * tile.across / 32)
    rounds = ceil(warps / (tile.threads // 32))
    read = s.channels * (s.covered_pixels(tile.pixels) + taps * ceil(tile.pack * size / 16))  # shared-memory loads
    inner = read + s.channels * taps * pixels * each
    weights, seen = tile.elements(s)
    fetch = 12 * (weights + seen) / tile.threads
    blocks = ceil(images * tile.blocks(s) / target.multiprocessors)
    by_threads = costs.threads_per_multiprocessor // tile.threads
    resident = max(1, min(by_threads, costs.shared_per_multiprocessor // ((weights + seen) * size)))
    issue_bound = blocks * (max(warps * read, warps * inner / 4) + tile.threads / 128 * fetch)
    latency_bound = ceil(blocks / resident) * (costs.round_cycles + rounds * 1.2 * inner + 2 * fetch)
    return max(issue_bound, latency_bound) + 0.3 * min(issue_bound, latency_bound)


@cache
def best_tile(s: Shape, images: int, size: int, target: GpuTarget) -> ConvTile | None:
    """The tile with the lowest estimated cost; None if none fits or there are too many weights."""
    costs = target.cost_model.convolution
    if s.tall * s.wide * s.channels * s.outputs > costs.most_weights:
        return None
    fitting = [t for t in _tiles(s, costs) if sum(t.elements(s)) * size <= costs.shared_bytes]
    return min(fitting, key=lambda t: _cycles(s, t, images, size, target), default=None)


def schedule_pixels(s: Shape, images: int, size: int, target: GpuTarget) -> GpuSchedule | None:
    """Schedule of a convolution or of its input gradient; None if it has too many channels."""
    tile = best_tile(s, images, size, target)
    if tile is None:
        return None
    blocks = max(1, images * tile.blocks(s))
    return GpuSchedule(
        Form.DIRECT, tile.threads, blocks, tile=(*tile.pixels, tile.band, tile.across, tile.groups, tile.each)
    )


# -- weights ---------------------------------------------------------------------------------------------------------


def _divisor(n: int, *most: int) -> int:
    return next(m for m in most if n % m == 0)


def schedule_weights(s: Shape, images: int, size: int, costs: ConvolutionCosts) -> GpuSchedule | None:
    """Schedule of the weight gradient, split over slices of the batch; None if there are too many weights."""
    deep, across = _divisor(s.channels, 4, 3, 2, 1), _divisor(s.outputs, 8, 6, 5, 4, 3, 2, 1)
    items = s.tall * s.wide * (s.channels // deep) * (s.outputs // across)
    threads = 256
    items_per_block = min(items, threads)
    tiles = ceil(items / items_per_block)
    if items * deep * across > costs.most_weights:
        return None
    split = max(n for n in (8, 4, 2, 1) if n == 1 or (n * items_per_block <= threads and n <= s.rows))

    result_bytes = split * items_per_block * deep * across * size  # the block's results in shared memory

    def bytes(band: int) -> int:
        return (s.channels * s.covered_pixels((band, s.columns)) + 4 + band * s.columns * s.outputs) * size

    bands = [b for b in range(split, max(split, s.rows) + 1, split) if bytes(b) <= costs.shared_bytes]
    if not bands or result_bytes > costs.shared_bytes:
        return None
    small_bands = [b for b in bands if bytes(b) <= max(costs.shared_bytes // 2, result_bytes)] or bands[:1]
    band = min(small_bands, key=lambda b: (ceil(s.rows / b) * (b + 2), -b))  # each band also reads its halo rows
    parts = min(costs.batch_slices, images * ceil(s.rows / band))
    tile = (deep, across, items_per_block, split, band)
    if parts <= 1:
        return GpuSchedule(Form.GRADIENT, threads, tiles, tile=tile)
    scratch = tiles * (parts + ceil(parts / JOINED)) * items_per_block * deep * across * size
    return GpuSchedule(Form.GRADIENT, threads, tiles, tile=tile, chunk=1, chunks=parts, scratch=scratch)


def schedule_pooled_weights(s: Shape, parts: int) -> GpuSchedule:
    """One block per slice of the batch and tile of weights; if there are few, two threads share each one's pixels."""
    count = s.outputs * s.tall * s.wide * s.channels
    if count <= 256:
        return GpuSchedule(Form.POOLED_GRADIENT, 512, parts, tile=(count, 2))
    weights_per_block = min(count, 512)
    return GpuSchedule(
        Form.POOLED_GRADIENT, 256, parts, chunks=ceil(count / weights_per_block), tile=(weights_per_block, 1)
    )


def fits_pool(s: Shape, size: int, costs: ConvolutionCosts) -> bool:
    """Does a weight gradient through a pool fit a block's shared memory?"""
    rows, columns = s.rows * s.pool[0], s.columns * s.pool[1]
    bytes = s.channels * (s.covered_pixels((rows, columns)) | 1) * size + s.outputs * s.rows * s.columns * 2 * size
    return bytes <= costs.shared_bytes and s.outputs * s.tall * s.wide * s.channels <= 16 * 256


# -- selection -------------------------------------------------------------------------------------------------------

VECTOR_POOLS = ("max_pool2d", "max_pool2d_index", "max_pool2d_grad")
PRODUCTS = ("conv2d", "conv2d_grad_input", "pooled_grad_input", "conv2d_grad_weight")


def product_sizes(kernel: Kernel, window: Window) -> tuple[int, Extent, Extent, Extent]:
    """(groups, m, n, k) of the GEMM that computes a convolution or an adjoint."""
    groups = window.groups
    if window.op == "conv2d_grad_weight":
        outputs, tall, wide, channels = kernel.axes[:4]
        images, rows, columns, _ = shape_of(kernel, operand(window, "g"))
        return groups, static_extent(outputs) // groups, tall * wide * channels, images * rows * columns
    outputs, tall, wide, channels = map(static_extent, shape_of(kernel, operand(window, "weight")))
    images, rows, columns = kernel.axes[0], kernel.axes[1], kernel.axes[2]
    if window.op == "conv2d":
        return groups, images * rows * columns, outputs // groups, tall * wide * channels
    return groups, images * rows * columns, channels, tall * wide * (outputs // groups)


def schedule_direct(
    target: GpuTarget, kernel: Kernel, window: Window, sizes: Mapping[str, int], dtype: DType
) -> GpuSchedule | None:
    """Direct schedule of a convolution or adjoint of few channels; None if an implicit GEMM is better or required."""
    if window.groups > 1:
        return None
    s, size = shape(kernel, window), max(4, dtype.size)
    if window.op == "conv2d_grad_weight":
        images = evaluate(shape_of(kernel, operand(window, "g"))[0], sizes)
        return schedule_weights(s, images, size, target.cost_model.convolution)
    return schedule_pixels(s, evaluate(kernel.axes[0], sizes), size, target)


def schedule_window(plan: Draft, kernel: Kernel) -> GpuSchedule:
    window, sizes = kernel.body, sizes_in(plan, kernel)
    assert isinstance(window, Window)
    if window.op == "pooled_grad_weight":
        return schedule_pooled_weights(shape(kernel, window), evaluate(kernel.axes[0], sizes))
    target = target_of(plan)
    libraries = target.load_libraries()
    if libraries.why_not(plan, kernel, sizes) is None:
        return libraries.schedule(plan, kernel)
    if grouped := schedule_grouped(target, plan, kernel, window, sizes):
        return grouped
    if window.op in PRODUCTS:
        dtype = plan.buffers[window.operands[0].load.buffer].type.dtype
        own_schedule = schedule_direct(target, kernel, window, sizes, dtype)
        if own_schedule is None and (window.pooled is not None or window.op == "pooled_grad_input"):
            raise PlanError(f"no GPU kernel computes {window.op!r} fused with its pool; see `pool_fusion.py`.")
        return own_schedule or schedule_tiled_gemm(
            target.cost_model.gemm, sizes, *product_sizes(kernel, window), dtype.accumulate
        )
    each, elements = pool_vector(plan, kernel, window), prod(evaluate(e, sizes) for e in kernel.axes[:4])
    blocks = blocks_of(elements // each, THREADS, target.cost_model.grids.most_vector_blocks)
    return GpuSchedule(Form.ELEMENTS, THREADS, blocks, vector=each)


def pool_vector(plan: Draft, kernel: Kernel, window: Window) -> int:
    """Adjacent channels per thread of a pool or its adjoint: 16-byte loads of all operands."""
    channels = kernel.axes[3]
    if window.op not in VECTOR_POOLS or not isinstance(channels, int):
        return 1
    loads = [(o.load, plan.buffers[o.load.buffer].type.dtype, o.axes[3]) for o in window.operands]
    return next((n for n in (8, 4) if channels % n == 0 and all(has_vector_loads(*load, n) for load in loads)), 1)
