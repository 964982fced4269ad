"""Convolutions of 3 x 3 by fewer products (Winograd's F(2x2, 3x3)): where, and in which pieces.

Tiles of 2 x 2 pixels take 16 products for each pair of channels instead of 36 (decision 012).  Which convolutions are
computed so is a function of the shapes of weight and image: never of the batch, the threads or the ops around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compiler.backends.cpu.convolution.padding import NARROW, SLACK, round_up
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.ir.types import DType

POSITIONS = 16  # products of a tile for each pair of channels
TILE_OUTPUTS = 8  # outputs of a weight's gradient that are computed together
FEWEST_CHANNELS = 16  # below, transforming images costs what it saves
MOST_BYTES = 1 << 19  # of a transformed weight: it stays in the second-level cache
WORTH = 0.6  # the largest share of the ordinary products that is a gain
BLOCK_TILES = 16  # at least so many tiles share what is read of a weight,
BLOCK_TILES_OF_WEIGHTS = 64  # and so many one sum of a gradient


def takes(
    weight: Sequence[int],
    dtype: DType,
    size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> bool:
    """Is a convolution (or its adjoint) with this weight, over results of this size, computed by tiles?"""
    outputs, height, width, channels = weight
    if (height, width, *stride, *dilation, groups) != (3, 3, 1, 1, 1, 1, 1):
        return False
    if min(outputs, channels) < FEWEST_CHANNELS or POSITIONS * outputs * channels * dtype.size > MOST_BYTES:
        return False
    down, across = tiles_of(size)
    return POSITIONS * down * across <= WORTH * 9 * size[0] * size[1]


def tiles_of(size: Sequence[int]) -> tuple[int, int]:
    """(rows, columns) of tiles; the last ones may reach over the edge."""
    return -(-size[0] // 2), -(-size[1] // 2)


def block_rows(size: Sequence[int], least: int, pool: int = 1) -> int:
    """How many rows of tiles are computed at a time: a divisor of all; whole windows of a pool of so many rows."""
    down, across = tiles_of(size)
    fits = (r for r in range(1, down) if down % r == 0 and r * across >= least and 2 * r % pool == 0)
    return next(fits, down)


def position_step(tiles: int, channels: int) -> int:
    """Elements from one position to the next: a line more than there are, so that positions do not share cache sets."""
    return tiles * round_up(channels) + LANES


def reserve(room: Callable[[str, int], None], size: Sequence[int], depth: int, outputs: int, pool: int) -> int:
    """Workspace of a convolution that sums over `depth` channels; gives the rows of tiles computed at a time."""
    rows, (_, across) = block_rows(size, BLOCK_TILES, pool), tiles_of(size)
    room("parts", POSITIONS * depth * round_up(outputs))
    room("tiles", POSITIONS * position_step(rows * across, depth))
    room("products", POSITIONS * position_step(rows * across, LANES))
    room("block", 2 * rows * 2 * across * LANES)
    return rows


def reserve_weight(room: Callable[[str, int], None], size: Sequence[int], channels: int, outputs: int) -> int:
    """Workspace of a weight's gradient; gives the rows of tiles computed at a time."""
    rows, (_, across) = block_rows(size, BLOCK_TILES_OF_WEIGHTS), tiles_of(size)
    room("tiles", POSITIONS * position_step(rows * across, channels))
    room("gradients", POSITIONS * position_step(rows * across, outputs))
    room("sums", round_up(outputs, TILE_OUTPUTS) * POSITIONS * round_up(channels) + SLACK)
    return rows


assert FEWEST_CHANNELS > NARROW, "tiles are computed in panels of 16 channels"
