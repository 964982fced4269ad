"""`shards=n`: the steps of n workers in one process.  A backend makes ranks of its threads.

`shards=(data, model)`: of workers in a grid.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir.mesh import Grid


class Shards:
    """A group whose ranks are all here; `team` is what a backend has made of it for a session."""

    engine = "threads"
    rank = 0

    def __init__(self, data: int, model: int = 1) -> None:
        self.grid = Grid(data, model)
        self.size = self.grid.size
        self.team: object | None = None

    @property
    def address(self) -> int:
        raise AssertionError("each of the threads has an address of its own")

    whole_address = address

    def broadcast(self, data: bytes) -> bytes:
        return data

    def gather(self, data: bytes) -> Sequence[bytes]:
        return [data] * self.size

    def check(self) -> None:
        """What goes wrong is raised where it happens."""
