"""Packing of sequences into rows of one length: best-fit decreasing bin packing."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from wholestep.compiler.frontend.layers.segments import OFFSETS
from wholestep.data.sequences.values import Integers
from wholestep.data.table import Table


@dataclass(frozen=True)
class Packing:
    """Which row, and which sequence of that row, each sequence is."""

    row: Integers
    slot: Integers
    rows: int


class PackedTable(Table):
    """Packed rows: inputs (rows, capacity, ...), the offsets of their sequences, targets and their weights."""

    @property
    def capacity(self) -> int:
        """Elements of a row."""
        return int(next(iter(self.inputs.values())).shape[1])

    @property
    def slots(self) -> int:
        """The most sequences of a row."""
        return int(self.inputs[OFFSETS].shape[1]) - 1

    @property
    def padding(self) -> float:
        """The share of all positions that no sequence has."""
        return 1.0 - int(self.inputs[OFFSETS][:, -1].sum()) / (len(self) * self.capacity)

    @property
    def note(self) -> str:
        """The padding, as a line of a report."""
        return f"sequences are packed into rows of {self.capacity} elements, {100 * self.padding:.1f} % of them padding"


def pack(lengths: Integers, capacity: int, slots: int) -> tuple[Integers, Integers, int]:
    """The row and the slot of each sequence, and the number of rows: best-fit decreasing."""
    row, slot = np.empty((2, len(lengths)), np.int64)
    rooms: list[int] = []  # the distinct numbers of free elements of the open rows, sorted
    open_rows: dict[int, list[int]] = {}  # by their free elements
    used: list[int] = []  # sequences of each row
    for i in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[i])
        at = bisect_left(rooms, length)
        if at < len(rooms):
            room = rooms[at]
            chosen = open_rows[room].pop()
            if not open_rows[room]:
                del rooms[at]
        else:
            room, chosen = capacity, len(used)
            used.append(0)
        row[i], slot[i] = chosen, used[chosen]
        used[chosen] += 1
        if used[chosen] < slots:
            if not open_rows.setdefault(room - length, []):
                insort(rooms, room - length)
            open_rows[room - length].append(chosen)
    return row, slot, len(used)
