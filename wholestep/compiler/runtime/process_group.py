"""Ranks that make one step together.  Engines (threads, MPI, NCCL) implement a group; native programs are given it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from wholestep.compiler.ir.mesh import Grid


class GroupFailedError(Exception):
    """A collective did not come to its end; `Group.check` tells why."""


class RankGroup(Protocol):
    """The ranks of a run, seen from one of them.  All ranks call the same methods in the same order."""

    engine: str  # for people: "threads", "mpi", ...
    rank: int
    size: int
    grid: Grid  # in which they stand

    @property
    def address(self) -> int:
        """Of its `ws_group` (native/group.h) along the data axis, which native programs call."""

    @property
    def whole_address(self) -> int:
        """Where there is a model axis: the same for programs that are given all rows, alone but for that axis."""

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's bytes, on every rank."""

    def gather(self, data: bytes) -> Sequence[bytes]:
        """The bytes of all ranks, on every rank."""

    def check(self) -> None:
        """Raise what went wrong in a collective: WorkerError, which names the rank and its last step."""


def rows_of_rank(rows: int, rank: int, size: int) -> tuple[int, int]:
    """The rows of a batch that a rank takes: first, and how many.  The native loops count in the same way."""
    first = rows * rank // size
    return first, rows * (rank + 1) // size - first
