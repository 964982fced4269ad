"""The interface of process groups: the ranks that compute one step together.

Engines (threads, MPI, NCCL) implement it; native programs receive the address of its C struct.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from wholestep.compiler.ir.mesh import Mesh


class GroupFailedError(Exception):
    """A collective did not complete; `ProcessGroup.check` raises the reason."""


class RankGroup(Protocol):
    """The ranks of a run, as seen by one of them.  All ranks must call the same methods in the same order."""

    engine: str  # "threads", "mpi", ...
    rank: int
    size: int
    grid: Mesh  # the mesh of ranks

    @property
    def address(self) -> int:
        """The address of this group's `ws_group` (native/group.h) along the data axis, for native programs."""

    @property
    def whole_address(self) -> int:
        """The address of a `ws_group` along the model axis only, for programs in which every rank gets all rows."""

    def broadcast(self, data: bytes) -> bytes:
        """Return the bytes of rank 0 on every rank."""

    def gather(self, data: bytes) -> Sequence[bytes]:
        """Return the bytes of all ranks on every rank (an all-gather)."""

    def check(self) -> None:
        """Raise the error of a failed collective: a WorkerError that names the rank and its last step."""


class InProcessRank:
    """A rank of a group whose ranks are all in this process, as seen by that rank."""

    engine = "threads"

    def __init__(self, rank: int, grid: Mesh) -> None:
        self.rank, self.size, self.grid = rank, grid.size, grid
        self.address = self.whole_address = 0  # no native group; a backend whose programs need one sets the address

    def broadcast(self, data: bytes) -> bytes:
        """Return the data: all ranks share this process, so every rank has it already."""
        return data

    def gather(self, data: bytes) -> Sequence[bytes]:
        return [data] * self.size

    def check(self) -> None:
        """Do nothing: errors are raised where they occur."""


class Shards(InProcessRank):
    """Simulated ranks, `shards=n`: the steps of n workers in one process; `shards=(data, model)` simulates a mesh."""

    def __init__(self, data: int, model: int = 1) -> None:
        from wholestep.compiler.ir.mesh import Mesh  # most sessions have one rank

        super().__init__(0, Mesh(data, model))
        self.team: object | None = None  # the backend's object for all ranks of a session


def rows_of_rank(rows: int, rank: int, size: int) -> tuple[int, int]:
    """The rows of a batch that a rank gets: (first, count).  The native loops use the same formula."""
    first = rows * rank // size
    return first, rows * (rank + 1) // size - first
