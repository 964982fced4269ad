"""Winograd's F(2x2, 3x3) for 3 x 3 convolutions: when it is used, and its blocking.

A tile of 2 x 2 pixels takes 16 products for each pair of channels instead of 36 (decision 012).  Whether a convolution
is computed this way depends only on the shapes of weight and image, never on the batch, the threads or other ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compiler.backends.cpu.convolution.padding import NARROW, SLACK, round_up
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.ir.types import DType

POSITIONS = 16  # products of a tile for each pair of channels: the elements of a transformed 4 x 4 tile
TILE_OUTPUTS = 8  # outputs of a weight's gradient that are computed together
FEWEST_CHANNELS = 16  # with fewer, transforming the images costs what the products save
MOST_BYTES = 1 << 19  # bytes of a transformed weight, which has to stay in the second-level cache
WORTH = 0.6  # use Winograd if it needs at most this share of the direct algorithm's products
BLOCK_TILES = 16  # tiles at least that share one read of a transformed weight
BLOCK_TILES_OF_WEIGHTS = 64  # tiles at least over which one partial sum of a weight's gradient runs


def uses_winograd(
    weight: Sequence[int],
    dtype: DType,
    size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> bool:
    """Is a convolution (or its adjoint) with this weight, over results of this size, computed by Winograd tiles?"""
    outputs, height, width, channels = weight
    if (height, width, *stride, *dilation, groups) != (3, 3, 1, 1, 1, 1, 1):
        return False
    if min(outputs, channels) < FEWEST_CHANNELS or POSITIONS * outputs * channels * dtype.size > MOST_BYTES:
        return False
    down, across = tiles_of(size)
    return POSITIONS * down * across <= WORTH * 9 * size[0] * size[1]


def tiles_of(size: Sequence[int]) -> tuple[int, int]:
    """(rows, columns) of tiles; the last ones may extend over the edge."""
    return -(-size[0] // 2), -(-size[1] // 2)


def block_rows(size: Sequence[int], least: int, pool: int = 1) -> int:
    """Rows of tiles computed at a time: a divisor of their number that covers complete windows of a following pool."""
    down, across = tiles_of(size)
    fits = (r for r in range(1, down) if down % r == 0 and r * across >= least and 2 * r % pool == 0)
    return next(fits, down)


def position_step(tiles: int, channels: int) -> int:
    """Elements from one position to the next: one cache line is added, so that positions do not share cache sets."""
    return tiles * round_up(channels) + LANES


def reserve(room: Callable[[str, int], None], size: Sequence[int], depth: int, outputs: int, pool: int) -> int:
    """Reserve workspace of a convolution that sums over `depth` channels; returns the rows of tiles per block."""
    rows, (_, across) = block_rows(size, BLOCK_TILES, pool), tiles_of(size)
    room("parts", POSITIONS * depth * round_up(outputs))
    room("tiles", POSITIONS * position_step(rows * across, depth))
    room("products", POSITIONS * position_step(rows * across, LANES))
    room("block", 2 * rows * 2 * across * LANES)
    return rows


def reserve_weight(room: Callable[[str, int], None], size: Sequence[int], channels: int, outputs: int) -> int:
    """Reserve workspace of a weight's gradient; returns the rows of tiles per block."""
    rows, (_, across) = block_rows(size, BLOCK_TILES_OF_WEIGHTS), tiles_of(size)
    room("tiles", POSITIONS * position_step(rows * across, channels))
    room("gradients", POSITIONS * position_step(rows * across, outputs))
    room("sums", round_up(outputs, TILE_OUTPUTS) * POSITIONS * round_up(channels) + SLACK)
    return rows


assert FEWEST_CHANNELS > NARROW, "tiles are computed in panels of 16 channels"
