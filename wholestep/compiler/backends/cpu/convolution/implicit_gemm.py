"""Convolutions with large weights, and their adjoints in the image, as products over the pixels of several images.

A weight that no cache holds crosses from memory once for a block of images: a tap of some channels is multiplied with
all pixels that meet it before the next one is read.  Pixels lie [row][column][image], so that those of neighbouring
windows follow each other; a window that reaches over an edge has fewer taps.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.backends.cpu.convolution.padding import round_up
from wholestep.compiler.backends.cpu.convolution.workspace import Rooms
from wholestep.compiler.backends.cpu.kernel_schedule import Tiles
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.ir.types import evaluate, float32
from wholestep.records import dataclass

LEAST_BYTES = 1 << 19  # of a weight: panels of a smaller one stay in the second-level cache
FEWEST_CHANNELS = 32  # below, products are short
MOST_PIXELS = 1024  # of an image: larger ones read a weight once for many pixels as it is
PIXELS = 256  # so many are computed together where a batch has them
PACKED_BYTES = 320 << 10  # of panels that are multiplied at a time, or one panel
MOST_COLUMNS = 64  # of them


@dataclass(frozen=True)
class PixelSpan:
    """`count` pixels of a result, one after the other, and those of the images that they meet in a tap."""

    made: int
    read: int
    count: int


@dataclass(frozen=True)
class Meetings:
    """Which pixels meet which windows: a convolution makes windows of pixels, its adjoint pixels of windows."""

    adjoint: bool
    size: Sequence[int]  # rows and columns of pixels,
    windows: Sequence[int]  # and of windows
    kernel: Sequence[int]
    stride: Sequence[int]
    low: Sequence[int]
    dilation: Sequence[int]

    @property
    def line(self) -> int:
        """Places of a row of pixels."""
        return self.stride[1] * -(-self.size[1] // self.stride[1])

    @property
    def read(self) -> int:
        """Places of what is read."""
        return self.windows[0] * self.windows[1] if self.adjoint else self.size[0] * self.line

    @property
    def made(self) -> int:
        """Places of what is made."""
        return self.size[0] * self.line if self.adjoint else self.windows[0] * self.windows[1]

    @property
    def images(self) -> int:
        """How many images are computed together."""
        return max(1, PIXELS // max(self.read, self.made))

    @property
    def pairs(self) -> int:
        """How many pixels and windows of an image meet, in all taps."""
        down, across = ([len(self.along(d, tap)) for tap in range(self.kernel[d])] for d in range(2))
        return sum(down) * sum(across)

    def columns(self, depth: int) -> int:
        """How many channels of a result are computed together, each a sum over `depth` others."""
        panel = LANES * depth * self.kernel[0] * self.kernel[1] * float32.size
        return min(max(LANES, PACKED_BYTES // panel * LANES), MOST_COLUMNS)

    def place(self, column: int) -> int:
        """Where a column of pixels lies in its row: beside those that neighbouring windows see in the same tap."""
        return column % self.stride[1] * (self.line // self.stride[1]) + column // self.stride[1]

    def along(self, d: int, tap: int) -> list[tuple[int, int]]:
        """(window, pixel) that meet in a tap along a dimension."""
        first = tap * self.dilation[d] - self.low[d]
        pairs = ((i, i * self.stride[d] + first) for i in range(self.windows[d]))
        return [(window, pixel) for window, pixel in pairs if 0 <= pixel < self.size[d]]

    def spans(self, down: int, across: int) -> list[PixelSpan]:
        """All that meets in a tap."""
        columns, found = self.along(1, across), list[PixelSpan]()
        for window, row in self.along(0, down) if columns else ():
            windows = window * self.windows[1] + columns[0][0]
            pixels = row * self.line + self.place(columns[0][1])
            span = PixelSpan(*(pixels, windows) if self.adjoint else (windows, pixels), len(columns))
            last = found[-1] if found else PixelSpan(-1, -1, 0)
            if (last.made + last.count, last.read + last.count) == (span.made, span.read):
                found[-1] = PixelSpan(last.made, last.read, last.count + span.count)
            else:
                found.append(span)
        return found


def takes(rooms: Rooms, weight: Sequence[int], meetings: Meetings, groups: int) -> bool:
    """Is a convolution (or its adjoint) with this weight, (outputs, rows, columns, channels), computed by products?"""
    outputs, height, width, channels = weight
    dtype = rooms.head.type.dtype
    large = outputs * height * width * channels * dtype.size >= LEAST_BYTES
    small = max(meetings.read, meetings.made) <= MOST_PIXELS
    plain = groups == 1 and dtype == float32 and rooms.body.pooled is None and rooms.has_taps_last(1)
    return large and small and plain and min(outputs, channels) >= FEWEST_CHANNELS


def reserve(rooms: Rooms, meetings: Meetings, depth: int, channels: int) -> Tiles:
    """Workspace of `channels` sums over `depth` channels a pixel; gives how many images are computed together."""
    columns, (tall, wide) = meetings.columns(depth), meetings.kernel
    rooms.room("images", meetings.images * meetings.read * pixel_step(depth))
    rooms.room("packed", columns * tall * wide * depth)
    rooms.room("block", meetings.images * meetings.made * columns)
    rooms.flops = evaluate(rooms.head.type.shape[0] * (2 * meetings.pairs * depth * channels), rooms.sizes)
    return Tiles(images=meetings.images)


def pixel_step(channels: int) -> int:
    """Elements from one pixel to the next: a line more than there are, so that pixels do not share cache sets."""
    return round_up(channels) + LANES
