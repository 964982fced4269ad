"""Assigns sequences to rows of one length by best-fit decreasing bin packing; the table of the packed rows."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from wholestep.compiler.frontend.layers.segments import OFFSETS
from wholestep.data.sequences.values import Integers
from wholestep.data.table import Table


@dataclass(frozen=True)
class Packing:
    """The assignment of sequences to rows: each sequence's row, and its position among the sequences of that row."""

    row: Integers
    slot: Integers
    rows: int  # number of rows


class PackedTable(Table):
    """Packed rows: inputs (rows, capacity, ...), the offsets of their sequences, targets and their weights."""

    @property
    def capacity(self) -> int:
        """Elements of a row."""
        return int(next(iter(self.inputs.values())).shape[1])

    @property
    def slots(self) -> int:
        """The largest number of sequences in a row."""
        return int(self.inputs[OFFSETS].shape[1]) - 1

    @property
    def padding(self) -> float:
        """The fraction of all positions that are padding."""
        return 1.0 - int(self.inputs[OFFSETS][:, -1].sum()) / (len(self) * self.capacity)

    @property
    def note(self) -> str:
        """The padding, as a line of a report."""
        return f"sequences are packed into rows of {self.capacity} elements, {100 * self.padding:.1f} % of them padding"


def pack(lengths: Integers, capacity: int, slots: int) -> tuple[Integers, Integers, int]:
    """Best-fit decreasing: the row of each sequence, its position in that row, and the number of rows."""
    row, slot = np.empty((2, len(lengths)), np.int64)
    rooms: list[int] = []  # the distinct numbers of free elements of the open rows, sorted
    open_rows: dict[int, list[int]] = {}  # number of free elements -> rows with that many
    used: list[int] = []  # number of sequences in each row
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
