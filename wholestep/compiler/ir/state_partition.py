"""How ranks divide a state among them: one description of what each holds, and of how the whole is put together.

Along the model axis of their grid ranks have parts of layers (`Cut`).  Along the data axis they may have parts of what
an optimizer keeps: rows as a state is stored, or single elements.  A state may be divided in both ways.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wholestep.records import dataclass

Array = np.ndarray[Any, Any]

FEW_ROWS = 16  # of a rank, below which what fills up the last part would be much of it


class Cut(NamedTuple):
    """Ranks divide an axis: of each of its blocks, one behind the other, a rank has the part at its place."""

    axis: int
    blocks: int
    ranks: int
    widths: tuple[int, ...] = ()  # of the blocks, where they are not equal

    @staticmethod
    def of(numbers: Sequence[int]) -> Cut:
        """As graphs, plans and files have it."""
        axis, blocks, ranks, *widths = numbers
        return Cut(axis, blocks, ranks, tuple(widths))

    @property
    def numbers(self) -> tuple[int, ...]:
        """What `of` reads."""
        return (*self[:3], *self.widths)

    def fits(self, shape: Sequence[int]) -> bool:
        """Is there such an axis, and does each of its blocks divide?"""
        if not (0 <= self.axis < len(shape) and self.blocks >= 1 and self.ranks > 1):
            return False
        if self.widths:
            known = len(self.widths) == self.blocks and sum(self.widths) == shape[self.axis]
            return known and not any(width % self.ranks for width in self.widths)
        return shape[self.axis] % (self.blocks * self.ranks) == 0

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Of a part."""
        return (*whole[: self.axis], whole[self.axis] // self.ranks, *whole[self.axis + 1 :])

    def parts(self, whole: Array) -> list[Array]:
        """What each rank has."""
        if self.widths:
            blocks = self._blocks(whole, self.widths)
            shares = [np.split(block, self.ranks, self.axis) for block in blocks]
            return [np.concatenate(each, self.axis) for each in zip(*shares, strict=True)]
        apart = whole.reshape(self._apart(whole.shape))
        return [np.take(apart, rank, self.axis + 1).reshape(self.shape(whole.shape)) for rank in range(self.ranks)]

    def join(self, parts: Sequence[Array]) -> Array:
        """The whole that ranks have parts of."""
        if self.widths:
            own_widths = [width // self.ranks for width in self.widths]
            apart = [self._blocks(part, own_widths) for part in parts]
            return np.concatenate([part[i] for i in range(self.blocks) for part in apart], self.axis)
        own = parts[0].shape
        whole = (*own[: self.axis], own[self.axis] * self.ranks, *own[self.axis + 1 :])
        of_blocks = (*own[: self.axis], self.blocks, own[self.axis] // self.blocks, *own[self.axis + 1 :])
        return np.stack([part.reshape(of_blocks) for part in parts], self.axis + 1).reshape(whole)

    def _blocks(self, array: Array, widths: Sequence[int]) -> list[Array]:
        return np.split(array, np.cumsum(widths)[:-1], self.axis)

    def _apart(self, whole: Sequence[int]) -> tuple[int, ...]:
        inner = whole[self.axis] // (self.blocks * self.ranks)
        return (*whole[: self.axis], self.blocks, self.ranks, inner, *whole[self.axis + 1 :])


def as_divided(shape: Sequence[int], by_columns: bool, ranks: int) -> tuple[int, ...]:
    """A state's elements as ranks divide them, along the first axis: by rows as it is stored, or one by one."""
    stored = tuple(reversed(shape)) if by_columns and len(shape) == 2 else tuple(shape)
    by_rows = stored[0] % ranks == 0 or stored[0] >= FEW_ROWS * ranks
    return stored if by_rows else (math.prod(stored),)


def part_shape(shape: Sequence[int], by_columns: bool, ranks: int) -> tuple[int, ...]:
    """What one rank holds of a state; the last part is filled up."""
    rows, *others = as_divided(shape, by_columns, ranks)
    return (-(-rows // ranks), *others)


@dataclass(frozen=True)
class Division:
    """Who holds what of a state, of ranks that stand in a grid at (data, model)."""

    whole: tuple[int, ...]
    by_columns: bool = False
    ranks: int = 0  # of the data axis, each of which has a part; 0: all of them have the same
    cut: tuple[int, ...] = ()  # a `Cut` among those of the model axis; (): these have the same

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what one rank holds."""
        return part_shape(self.of_model, self.by_columns, self.ranks) if self.ranks else self.of_model

    @property
    def of_model(self) -> tuple[int, ...]:
        """The shape of what ranks with the same part of a layer hold together."""
        return Cut.of(self.cut).shape(self.whole) if self.cut else self.whole

    @property
    def turned(self) -> bool:
        """Is it divided by its columns?"""
        return bool(self.ranks) and self.by_columns and len(self.whole) == 2

    def rows(self, data: int) -> tuple[tuple[int, ...], int, int]:
        """(form, first, count): of `of_model`, turned and in this form, the rows that a rank answers for.

        Where ranks of the data axis have the same, that is the first of them.
        """
        if not self.ranks:
            return self.of_model, 0, 0 if data else self.of_model[0]
        form, each = as_divided(self.of_model, self.by_columns, self.ranks), self.shape[0]
        first = min(data * each, form[0])
        return form, first, min(each, form[0] - first)

    def part(self, whole: Array, data: int, model: int) -> Array:
        """What the rank at a place holds."""
        own = Cut.of(self.cut).parts(whole)[model] if self.cut else whole
        if not self.ranks:
            return own
        form, first, count = self.rows(data)
        given = np.ascontiguousarray(own.T if self.turned else own).reshape(form)
        found = np.zeros(self.shape, whole.dtype)
        found[:count] = given[first : first + count]
        return found

    def join(self, parts: Mapping[tuple[int, int], Array]) -> Array:
        """The whole, of what the ranks at all places hold that differ."""
        if not self.cut:
            return self._joined([parts[d, 0] for d in range(self.ranks or 1)])
        cut = Cut.of(self.cut)
        return cut.join([self._joined([parts[d, m] for d in range(self.ranks or 1)]) for m in range(cut.ranks)])

    def _joined(self, parts: Sequence[Array]) -> Array:
        """What ranks with the same part of a layer hold together."""
        if not self.ranks:
            return parts[0]
        form, _, _ = self.rows(0)
        own, rows = self.of_model, np.concatenate(parts)[: form[0]]
        return np.ascontiguousarray(rows.reshape(own[::-1]).T if self.turned else rows.reshape(own))
