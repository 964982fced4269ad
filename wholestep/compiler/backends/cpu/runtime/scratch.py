"""What the programs of a session share on the CPU: memory that means something during a step alone."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

import numpy as np

from wholestep.compiler.plan.memory.peak_memory import Segments
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.memory import Region


class CpuScratchUser(Protocol):
    """A program that knows addresses of scratch memory."""

    def place_scratch(self) -> None:
        """Read them again."""


class CpuScratch:
    """The arena and the threads' workspaces: shared by the entry points of a session, as large as the largest needs."""

    def __init__(self) -> None:
        self.segments = Segments()
        self.region = Region(0)
        self.users: WeakSet[CpuScratchUser] = WeakSet()

    @property
    def mapped_bytes(self) -> int:
        return self.region.size

    def reserve(self, plan: Plan, threads: int) -> None:
        """Make room for a plan.  Where addresses change, the programs that use it are told."""
        wanted = self.segments.grown(plan.arena_bytes, plan.work_bytes, threads)
        if wanted != self.segments:
            self.segments, self.region = wanted, Region(wanted.total)
            for user in self.users:
                user.place_scratch()

    def spoil(self) -> None:
        """Fill it with NaN: no kernel may rely on zeros."""
        self.region.view(0, self.region.size, np.dtype(np.uint8))[:] = 255

    @property
    def arena(self) -> int:
        """The address of the arena."""
        return self.region.address

    @property
    def work(self) -> int:
        """The address of the workspaces."""
        return self.region.address + self.segments.arena
