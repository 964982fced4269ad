"""Simulated ranks, `shards=n`: the steps of n workers in one process; a backend runs each rank on its threads.

`shards=(data, model)` simulates a mesh of workers.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir.mesh import Mesh


class Shards:
    """A process group whose ranks are all in this process; `team` is the backend's object for it in a session."""

    engine = "threads"
    rank = 0

    def __init__(self, data: int, model: int = 1) -> None:
        self.grid = Mesh(data, model)
        self.size = self.grid.size
        self.team: object | None = None

    @property
    def address(self) -> int:
        raise AssertionError("a simulated group has one address per thread")

    whole_address = address

    def broadcast(self, data: bytes) -> bytes:
        return data

    def gather(self, data: bytes) -> Sequence[bytes]:
        return [data] * self.size

    def check(self) -> None:
        """Do nothing: errors are raised where they occur."""
