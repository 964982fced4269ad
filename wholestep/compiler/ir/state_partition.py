"""Partition of a state among ranks: which slice each rank stores, and how the full array is reassembled.

The model axis of the mesh splits layers (`Cut`: tensor parallelism).  The data axis may shard the optimizer state
(as in ZeRO) by rows of the stored array, or by single elements if it has few rows.  A state may be split along both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wholestep.records import dataclass

Array = np.ndarray[Any, Any]

FEW_ROWS = 16  # rows per rank; below this, padding of the last shard would be a large fraction of it


class AxisSplit(NamedTuple):
    """A tensor-parallel split of one axis: each of its consecutive blocks is divided evenly among the ranks.

    Blocks serve fused projections: of a weight that concatenates q, k and v, each rank gets a slice of all three.
    """

    axis: int
    blocks: int
    ranks: int
    widths: tuple[int, ...] = ()  # widths of the blocks, if they are not all equal

    @staticmethod
    def of(numbers: Sequence[int]) -> AxisSplit:
        """Deserialize the tuple that graphs, plans and files store."""
        axis, blocks, ranks, *widths = numbers
        return AxisSplit(axis, blocks, ranks, tuple(widths))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The serialized form that `of` reads."""
        return (*self[:3], *self.widths)

    def fits(self, shape: Sequence[int]) -> bool:
        """Does the axis exist, and is each of its blocks divisible by the number of ranks?"""
        if not (0 <= self.axis < len(shape) and self.blocks >= 1 and self.ranks > 1):
            return False
        if self.widths:
            covers_axis = len(self.widths) == self.blocks and sum(self.widths) == shape[self.axis]
            return covers_axis and not any(width % self.ranks for width in self.widths)
        return shape[self.axis] % (self.blocks * self.ranks) == 0

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of one rank's part."""
        return (*shape[: self.axis], shape[self.axis] // self.ranks, *shape[self.axis + 1 :])

    def parts(self, array: Array) -> list[Array]:
        """The part of each rank."""
        if self.widths:
            blocks = self._blocks(array, self.widths)
            shares = [np.split(block, self.ranks, self.axis) for block in blocks]
            return [np.concatenate(each, self.axis) for each in zip(*shares, strict=True)]
        by_rank = array.reshape(self._block_rank_shape(array.shape))
        return [np.take(by_rank, rank, self.axis + 1).reshape(self.shape(array.shape)) for rank in range(self.ranks)]

    def join(self, parts: Sequence[Array]) -> Array:
        """The full array, reassembled from the parts of all ranks."""
        if self.widths:
            part_widths = [width // self.ranks for width in self.widths]
            blocks_of_parts = [self._blocks(part, part_widths) for part in parts]
            return np.concatenate([part[i] for i in range(self.blocks) for part in blocks_of_parts], self.axis)
        shape_of_part = parts[0].shape
        full_shape = (
            *shape_of_part[: self.axis],
            shape_of_part[self.axis] * self.ranks,
            *shape_of_part[self.axis + 1 :],
        )
        block_shape = (
            *shape_of_part[: self.axis],
            self.blocks,
            shape_of_part[self.axis] // self.blocks,
            *shape_of_part[self.axis + 1 :],
        )
        return np.stack([part.reshape(block_shape) for part in parts], self.axis + 1).reshape(full_shape)

    def _blocks(self, array: Array, widths: Sequence[int]) -> list[Array]:
        return np.split(array, np.cumsum(widths)[:-1], self.axis)

    def _block_rank_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        inner = shape[self.axis] // (self.blocks * self.ranks)
        return (*shape[: self.axis], self.blocks, self.ranks, inner, *shape[self.axis + 1 :])


def sharded_view_shape(shape: Sequence[int], by_columns: bool, ranks: int) -> tuple[int, ...]:
    """The view of a state whose first axis is sharded: rows in storage order, or a flat array of single elements."""
    stored = tuple(reversed(shape)) if by_columns and len(shape) == 2 else tuple(shape)
    by_rows = stored[0] % ranks == 0 or stored[0] >= FEW_ROWS * ranks
    return stored if by_rows else (math.prod(stored),)


def shard_shape(shape: Sequence[int], by_columns: bool, ranks: int) -> tuple[int, ...]:
    """The shape of one rank's shard of a state; the last shard is padded to the same size."""
    rows, *others = sharded_view_shape(shape, by_columns, ranks)
    return (-(-rows // ranks), *others)


@dataclass(frozen=True)
class StatePartition:
    """The partition of one state over a mesh with coordinates (data, model)."""

    whole: tuple[int, ...]
    by_columns: bool = False
    ranks: int = 0  # shards along the data axis; 0: replicated along it
    cut: tuple[int, ...] = ()  # a serialized `Cut` along the model axis; (): replicated along it

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that one rank stores."""
        return shard_shape(self.of_model, self.by_columns, self.ranks) if self.ranks else self.of_model

    @property
    def of_model(self) -> tuple[int, ...]:
        """The shape of one tensor-parallel part, before it is sharded along the data axis."""
        return AxisSplit.of(self.cut).shape(self.whole) if self.cut else self.whole

    @property
    def is_transposed(self) -> bool:
        """Is the state sharded by columns, that is, are rows of its transpose distributed?"""
        return bool(self.ranks) and self.by_columns and len(self.whole) == 2

    def rows(self, data: int) -> tuple[tuple[int, ...], int, int]:
        """(form, first, count): the rows that a rank owns of the `of_model` array, which is transposed if
        `is_transposed` and reshaped to `form`.

        If the state is replicated along the data axis, the first rank owns all rows.
        """
        if not self.ranks:
            return self.of_model, 0, 0 if data else self.of_model[0]
        form, shard_rows = sharded_view_shape(self.of_model, self.by_columns, self.ranks), self.shape[0]
        first = min(data * shard_rows, form[0])
        return form, first, min(shard_rows, form[0] - first)

    def part(self, array: Array, data: int, model: int) -> Array:
        """The array that the rank at coordinates (data, model) stores."""
        model_part = AxisSplit.of(self.cut).parts(array)[model] if self.cut else array
        if not self.ranks:
            return model_part
        form, first, count = self.rows(data)
        rows = np.ascontiguousarray(model_part.T if self.is_transposed else model_part).reshape(form)
        shard = np.zeros(self.shape, array.dtype)
        shard[:count] = rows[first : first + count]
        return shard

    def join(self, parts: Mapping[tuple[int, int], Array]) -> Array:
        """The full array, from the parts of all distinct coordinates (data, model)."""
        if not self.cut:
            return self._join_shards([parts[d, 0] for d in range(self.ranks or 1)])
        cut = AxisSplit.of(self.cut)
        return cut.join([self._join_shards([parts[d, m] for d in range(self.ranks or 1)]) for m in range(cut.ranks)])

    def _join_shards(self, parts: Sequence[Array]) -> Array:
        """One tensor-parallel part, reassembled from its shards along the data axis."""
        if not self.ranks:
            return parts[0]
        form, _, _ = self.rows(0)
        shape, rows = self.of_model, np.concatenate(parts)[: form[0]]
        return np.ascontiguousarray(rows.reshape(shape[::-1]).T if self.is_transposed else rows.reshape(shape))
