"""Packing of sequences into rows of one length: best-fit decreasing bin packing."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

import numpy as np

from wholestep.data.sequences.values import Integers
from wholestep.data.table import Array, Table


@dataclass(frozen=True)
class Packing:
    """Which row, and which sequence of that row, each sequence is."""

    row: Integers
    slot: Integers
    rows: int


@dataclass(frozen=True)
class PackedTable(Table):
    """Packed rows, and the share of their positions that is padding."""

    padding: float = field(default=0.0, kw_only=True)
    capacity: int = field(default=0, kw_only=True)
    slots: int = field(default=0, kw_only=True)

    def select(self, rows: Array) -> PackedTable:
        table = super().select(rows)
        sizes = {"padding": self.padding, "capacity": self.capacity, "slots": self.slots}
        return PackedTable(table.inputs, table.targets, table.weights, **sizes)


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
