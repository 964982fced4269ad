"""Scratch memory of the CPU, shared by the programs of a session: its content is valid only during a step."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

import numpy as np

from wholestep.compiler.plan.memory.peak_memory import Segments
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.memory import Region


class CpuScratchUser(Protocol):
    """A program that holds addresses of scratch memory."""

    def place_scratch(self) -> None:
        """Update these addresses."""


class CpuScratch:
    """The arena and the threads' workspaces, shared by the entry points of a session; as large as the largest needs."""

    def __init__(self) -> None:
        self.segments = Segments()
        self.region = Region(0)
        self.users: WeakSet[CpuScratchUser] = WeakSet()

    @property
    def mapped_bytes(self) -> int:
        return self.region.size

    def reserve(self, plan: Plan, threads: int) -> None:
        """Grow to the needs of a plan.  If addresses change, the programs that use them are notified."""
        needed = self.segments.grown(plan.arena_bytes, plan.work_bytes, threads)
        if needed != self.segments:
            self.segments, self.region = needed, Region(needed.total)
            for user in self.users:
                user.place_scratch()

    def spoil(self) -> None:
        """Fill the scratch memory with NaN, so that a test finds kernels that rely on zeros."""
        self.region.view(0, self.region.size, np.dtype(np.uint8))[:] = 255

    @property
    def arena(self) -> int:
        """The address of the arena."""
        return self.region.address

    @property
    def work(self) -> int:
        """The address of the workspaces."""
        return self.region.address + self.segments.arena
