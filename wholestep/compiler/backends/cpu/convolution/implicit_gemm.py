"""Implicit GEMM for convolutions with large weights, and their gradients in the image: products over pixels of a batch.

A weight larger than the caches is read from memory once per block of images: one tap of some output channels is
multiplied with all pixels that it applies to before the next one is read.  Pixels are stored [row][column][image], so
that pixels of neighbouring windows are contiguous; a window that crosses an edge has fewer taps, and no zeros are
multiplied.  Each sum is one chain over (row, column, channel) of the window, continued from tap to tap.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.backends.cpu.convolution.padding import round_up
from wholestep.compiler.backends.cpu.convolution.workspace import WorkspaceRequest
from wholestep.compiler.backends.cpu.kernel_schedule import Tiles
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.ir.types import evaluate, float32
from wholestep.records import dataclass

LEAST_BYTES = 1 << 19  # bytes of a weight: panels of a smaller one stay in the second-level cache
FEWEST_CHANNELS = 32  # with fewer channels the products are too short
MOST_PIXELS = 1024  # per image: a larger image reuses a weight for many pixels in the direct algorithm, too
PIXELS = 256  # pixels computed together, if the batch has as many
PACKED_BYTES = 320 << 10  # bytes of packed panels that are multiplied at a time (one panel, if that is larger)
MOST_COLUMNS = 64  # output channels that are packed at a time


@dataclass(frozen=True)
class PixelSpan:
    """`count` consecutive pixels of a result, and as many input pixels that one tap multiplies for them."""

    output: int
    input: int
    count: int


@dataclass(frozen=True)
class ConvolutionGeometry:
    """Which pixels contribute to which windows: a convolution computes windows from pixels, its adjoint the reverse."""

    adjoint: bool
    size: Sequence[int]  # rows and columns of pixels
    windows: Sequence[int]  # rows and columns of windows
    kernel: Sequence[int]
    stride: Sequence[int]
    low: Sequence[int]
    dilation: Sequence[int]

    @property
    def line(self) -> int:
        """Positions in a row of pixels, rounded up to a multiple of the stride."""
        return self.stride[1] * -(-self.size[1] // self.stride[1])

    @property
    def input(self) -> int:
        """Positions of the input."""
        return self.windows[0] * self.windows[1] if self.adjoint else self.size[0] * self.line

    @property
    def output(self) -> int:
        """Positions of the result."""
        return self.size[0] * self.line if self.adjoint else self.windows[0] * self.windows[1]

    @property
    def images(self) -> int:
        """The number of images that are computed together."""
        return max(1, PIXELS // max(self.input, self.output))

    @property
    def pairs(self) -> int:
        """The number of (pixel, window) pairs of an image over all taps: its multiply-adds per pair of channels."""
        down, across = ([len(self.along(d, tap)) for tap in range(self.kernel[d])] for d in range(2))
        return sum(down) * sum(across)

    def columns(self, depth: int) -> int:
        """The number of result channels that are computed together, each a sum over `depth` input channels."""
        panel = LANES * depth * self.kernel[0] * self.kernel[1] * float32.size
        return min(max(LANES, PACKED_BYTES // panel * LANES), MOST_COLUMNS)

    def place(self, column: int) -> int:
        """Position of a pixel column in its row: columns are stored by phase, so one tap's columns are contiguous."""
        return column % self.stride[1] * (self.line // self.stride[1]) + column // self.stride[1]

    def along(self, d: int, tap: int) -> list[tuple[int, int]]:
        """The (window, pixel) pairs of a tap along one dimension."""
        first = tap * self.dilation[d] - self.low[d]
        pairs = ((i, i * self.stride[d] + first) for i in range(self.windows[d]))
        return [(window, pixel) for window, pixel in pairs if 0 <= pixel < self.size[d]]

    def spans(self, down: int, across: int) -> list[PixelSpan]:
        """All (pixel, window) pairs of a tap, as maximal runs that are contiguous in both."""
        columns, spans = self.along(1, across), list[PixelSpan]()
        for window, row in self.along(0, down) if columns else ():
            windows = window * self.windows[1] + columns[0][0]
            pixels = row * self.line + self.place(columns[0][1])
            span = PixelSpan(*(pixels, windows) if self.adjoint else (windows, pixels), len(columns))
            last = spans[-1] if spans else PixelSpan(-1, -1, 0)
            if (last.output + last.count, last.input + last.count) == (span.output, span.input):
                spans[-1] = PixelSpan(last.output, last.input, last.count + span.count)
            else:
                spans.append(span)
        return spans


def uses_implicit_gemm(
    rooms: WorkspaceRequest, weight: Sequence[int], geometry: ConvolutionGeometry, groups: int
) -> bool:
    """Is a convolution (or its adjoint) with this weight, (outputs, rows, columns, channels), computed as a GEMM?"""
    outputs, height, width, channels = weight
    dtype = rooms.head.type.dtype
    large = outputs * height * width * channels * dtype.size >= LEAST_BYTES
    small = max(geometry.input, geometry.output) <= MOST_PIXELS
    plain = groups == 1 and dtype == float32 and rooms.body.pooled is None and rooms.has_taps_last(1)
    return large and small and plain and min(outputs, channels) >= FEWEST_CHANNELS


def reserve(rooms: WorkspaceRequest, geometry: ConvolutionGeometry, depth: int, channels: int) -> Tiles:
    """Reserve workspace for `channels` sums over `depth` channels per pixel; returns the tiling."""
    columns, (tall, wide) = geometry.columns(depth), geometry.kernel
    rooms.room("images", geometry.images * geometry.input * pixel_step(depth))
    rooms.room("packed", columns * tall * wide * depth)
    rooms.room("block", geometry.images * geometry.output * columns)
    rooms.flops = evaluate(rooms.head.type.shape[0] * (2 * geometry.pairs * depth * channels), rooms.sizes)
    return Tiles(images=geometry.images)


def pixel_step(channels: int) -> int:
    """Elements from one pixel to the next: one cache line is added, so that pixels do not share cache sets."""
    return round_up(channels) + LANES
