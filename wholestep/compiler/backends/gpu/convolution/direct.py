"""Convolutions of few channels: how blocks are cut out of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product as combinations
from math import ceil, prod

from wholestep.compiler.backends.gpu.kernel_schedule import DIRECT, GRADIENT, JOINED, POOLED_GRADIENT, CudaSchedule
from wholestep.compiler.ir.types import DType, Extent, evaluate
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Kernel, Operand
from wholestep.records import dataclass

SHARED = 44 << 10  # bytes of a block: what every GPU gives without being asked, less what else a kernel has there
MULTIPROCESSORS, SHARED_OF_ONE = 132, 200 << 10  # of a large GPU, to choose tiles for; no bit depends on them
PARTS = 128  # of the batch, whose gradients of weights blocks add up apart
MOST_WEIGHTS = 40_000  # of a convolution of few channels; one of more is a product
PIXELS = ((2, 2), (1, 2), (1, 1))  # of a thread
OUTPUTS = (8, 6, 4, 3, 2, 1)  # of a thread


def operand(window: Window, name: str) -> Operand:
    return next(o for o in window.operands if o.name == name)


def shape_of(kernel: Kernel, item: Operand) -> tuple[Extent, ...]:
    return tuple(kernel.axes[a] for a in item.axes)


def static_extent(extent: Extent) -> int:
    """An extent that no call changes."""
    assert isinstance(extent, int), f"only the number of images may differ from call to call, not {extent}"
    return extent


@dataclass(frozen=True)
class Shape:
    """A convolution of one image: pixels that are made of what windows see.  The adjoint of one is one, too."""

    tall: int
    wide: int
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    channels: int  # that are seen
    made: int  # channels of a pixel that is made
    rows: int
    columns: int
    low: tuple[int, ...]  # rows above and columns before the image that windows see
    pool: tuple[int, ...] = ()  # of pixels that one thread needs side by side

    def seen(self, windows: tuple[int, int]) -> int:
        """Pixels that so many windows, down and across, see."""
        sizes = zip(windows, self.stride, (self.tall, self.wide), self.dilation, strict=True)
        return prod((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in sizes)

    @property
    def text(self) -> str:
        """What native/window.h calls it."""
        return f"ws_shape<{', '.join(map(str, (self.tall, self.wide, *self.stride, *self.dilation)))}>"


def shape(kernel: Kernel, window: Window) -> Shape:
    """What a window kernel makes of what: of an adjoint, pixels see gradients, with the kernel turned round."""
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
    """What a block makes: rows and columns of items, which are pixels and outputs of a thread."""

    pixels: tuple[int, int]
    band: int
    across: int
    groups: int
    each: int
    threads: int

    def blocks(self, s: Shape) -> int:
        """Of an image."""
        bands = ceil(ceil(s.rows / self.pixels[0]) / self.band) * ceil(ceil(s.columns / self.pixels[1]) / self.across)
        return bands * ceil(s.made / (self.groups * self.each))

    def elements(self, s: Shape) -> tuple[int, int]:
        """Of weights and of images, in shared memory."""
        rows = (self.band * self.pixels[0] - 1) * s.stride[0] + (s.tall - 1) * s.dilation[0] + 1
        step, last = self.pixels[1] * s.stride[1], (self.pixels[1] - 1) * s.stride[1] + (s.wide - 1) * s.dilation[1] + 1
        piece = 4 if step % 4 == 0 else 2 if step % 2 == 0 else 1
        wide = ceil(((self.across - 1) * step + ceil(last / piece) * piece) / piece) * piece
        plane = (rows * wide // piece | 1) * piece
        return s.tall * s.wide * s.channels * self.groups * self.pack, s.channels * plane

    @property
    def pack(self) -> int:
        """Outputs of a thread with those that fill up a piece of memory."""
        return 8 if self.each > 4 else 4 if self.each > 2 else self.each


def _tiles(s: Shape) -> Iterator[ConvTile]:
    pixels = [(s.pool[0], s.pool[1])] if s.pool else [p for p in PIXELS if p[0] <= s.rows and p[1] <= s.columns]
    for (tall, wide), each, threads in combinations(pixels, OUTPUTS, (128, 256)):
        if tall * wide * each > 32 or s.seen((tall, wide)) > 64 or each >= 2 * s.made:
            continue  # registers
        down, across, most = ceil(s.rows / tall), ceil(s.columns / wide), ceil(s.made / each)
        for groups, band in combinations(_parts(most), _parts(down)):
            yield ConvTile((tall, wide), band, across, groups, each, threads)
        for columns in _parts(across):  # of wide images, a row at a time
            yield ConvTile((tall, wide), 1, columns, 1, each, threads)


def _parts(count: int) -> set[int]:
    """What a part of something may have, up to sixteen of them, and one."""
    return {ceil(count / parts) for parts in range(1, min(count, 16) + 1)} | {1}


def _cycles(s: Shape, tile: ConvTile, images: int, size: int) -> float:
    """About how long a GPU takes: instructions of its warps, or of one warp after the other."""
    pixels, each, taps = tile.pixels[0] * tile.pixels[1], tile.each, s.tall * s.wide
    warps = tile.groups * ceil(tile.band * tile.across / 32)
    turns = ceil(warps / (tile.threads // 32))
    read = s.channels * (s.seen(tile.pixels) + taps * ceil(tile.pack * size / 16))  # from shared memory: one at a time
    inner = read + s.channels * taps * pixels * each
    weights, seen = tile.elements(s)
    fetched = 12 * (weights + seen) / tile.threads
    here = ceil(images * tile.blocks(s) / MULTIPROCESSORS)
    resident = max(1, min(2048 // tile.threads, SHARED_OF_ONE // ((weights + seen) * size)))
    issued = here * (max(warps * read, warps * inner / 4) + tile.threads / 128 * fetched)
    waited = ceil(here / resident) * (1500 + turns * 1.2 * inner + 2 * fetched)
    return max(issued, waited) + 0.3 * min(issued, waited)


@cache
def best_tile(s: Shape, images: int, size: int) -> ConvTile | None:
    """The tile that a GPU is done with first; None where there is none, or weights are too many."""
    if s.tall * s.wide * s.channels * s.made > MOST_WEIGHTS:
        return None
    fitting = [t for t in _tiles(s) if sum(t.elements(s)) * size <= SHARED]
    return min(fitting, key=lambda t: _cycles(s, t, images, size), default=None)


def schedule_pixels(s: Shape, images: int, size: int) -> CudaSchedule | None:
    """A convolution, or the adjoint that makes images; None where it has too many channels."""
    tile = best_tile(s, images, size)
    if tile is None:
        return None
    blocks = max(1, images * tile.blocks(s))
    return CudaSchedule(
        DIRECT, tile.threads, blocks, tile=(*tile.pixels, tile.band, tile.across, tile.groups, tile.each)
    )


# -- weights ---------------------------------------------------------------------------------------------------------


def _divisor(n: int, *most: int) -> int:
    return next(m for m in most if n % m == 0)


def schedule_weights(s: Shape, images: int, size: int) -> CudaSchedule | None:
    """The gradient of weights, in parts of the batch; None where there are too many of them."""
    deep, across = _divisor(s.channels, 4, 3, 2, 1), _divisor(s.made, 8, 6, 5, 4, 3, 2, 1)
    items = s.tall * s.wide * (s.channels // deep) * (s.made // across)
    threads = 256
    own = min(items, threads)
    tiles = ceil(items / own)
    if items * deep * across > MOST_WEIGHTS:
        return None
    split = max(n for n in (8, 4, 2, 1) if n == 1 or (n * own <= threads and n <= s.rows))

    left = split * own * deep * across * size  # what the threads have in the end

    def bytes(band: int) -> int:
        return (s.channels * s.seen((band, s.columns)) + 4 + band * s.columns * s.made) * size

    bands = [b for b in range(split, max(split, s.rows) + 1, split) if bytes(b) <= SHARED]
    if not bands or left > SHARED:
        return None
    near = [b for b in bands if bytes(b) <= max(SHARED // 2, left)] or bands[:1]
    band = min(near, key=lambda b: (ceil(s.rows / b) * (b + 2), -b))  # a band costs what it sees beyond its rows
    parts = min(PARTS, images * ceil(s.rows / band))
    tile = (deep, across, own, split, band)
    if parts <= 1:
        return CudaSchedule(GRADIENT, threads, tiles, tile=tile)
    scratch = tiles * (parts + ceil(parts / JOINED)) * own * deep * across * size
    return CudaSchedule(GRADIENT, threads, tiles, tile=tile, chunk=1, chunks=parts, scratch=scratch)


def schedule_pooled_weights(s: Shape, parts: int) -> CudaSchedule:
    """A block a part of the batch and some weights; threads share the pixels of a few."""
    count = s.made * s.tall * s.wide * s.channels
    if count <= 256:
        return CudaSchedule(POOLED_GRADIENT, 512, parts, tile=(count, 2))
    own = min(count, 512)
    return CudaSchedule(POOLED_GRADIENT, 256, parts, chunks=ceil(count / own), tile=(own, 1))


def fits_pool(s: Shape, size: int) -> bool:
    """Is a gradient of weights through a pool one that a block has room for?"""
    rows, columns = s.rows * s.pool[0], s.columns * s.pool[1]
    held = s.channels * (s.seen((rows, columns)) | 1) * size + s.made * s.rows * s.columns * 2 * size
    return held <= SHARED and s.made * s.tall * s.wide * s.channels <= 16 * 256


# -- which ones ------------------------------------------------------------------------------------------------------

PRODUCTS = ("conv2d", "conv2d_grad_input", "pooled_grad_input", "conv2d_grad_weight")


def product_sizes(kernel: Kernel, window: Window) -> tuple[int, Extent, Extent, Extent]:
    """(groups, m, n, k) of the product that a convolution or an adjoint is."""
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


def schedule_own(kernel: Kernel, window: Window, sizes: Mapping[str, int], dtype: DType) -> CudaSchedule | None:
    """A convolution or an adjoint of few channels; None: a product is the better way, or the only one."""
    if window.groups > 1:
        return None
    s, size = shape(kernel, window), max(4, dtype.size)
    if window.op == "conv2d_grad_weight":
        images = evaluate(shape_of(kernel, operand(window, "g"))[0], sizes)
        return schedule_weights(s, images, size)
    return schedule_pixels(s, evaluate(kernel.axes[0], sizes), size)
