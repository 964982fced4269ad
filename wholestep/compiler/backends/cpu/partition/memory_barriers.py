"""A barrier more where it gives many bytes back.

Rows that are partitioned alike from the first layer to the last and back need no barrier: one region, and all weight
gradients in the next.  Until then everything that they read is alive.  Threads that meet in between let them run
earlier, and their operands' bytes be used again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wholestep.compiler.plan.model.kernel import Space

if TYPE_CHECKING:
    from wholestep.compiler.backends.cpu.partition.threads import ThreadPartitioner


def relieve(splitter: ThreadPartitioner, split: Sequence[int | None]) -> list[int]:
    """The region of each kernel, with barriers added where kernels wait for one that would free much."""
    planned = splitter.regions(split)
    relief = Relief(splitter, split)
    for region in range(max(planned, default=-1) + 1):
        relief.walk([i for i, r in enumerate(planned) if r == region])
    return relief.regions


class Relief:
    """Takes the kernels region by region; those that wait for the next one are taken early where that pays."""

    def __init__(self, splitter: ThreadPartitioner, split: Sequence[int | None]) -> None:
        self.splitter, self.split = splitter, split
        self.regions = [0] * len(splitter.kernels)
        self.level = 0  # what is taken next runs in this region, or a later one
        self.taken: set[int] = set()
        self.missing = [len({i for i, _ in edges}) for edges in splitter.edges]
        self.uses = Counter(b for touch in splitter.touches for b in touch.by_buffer)

    def walk(self, kernels: Sequence[int]) -> None:
        """The kernels of one region, in their order."""
        ahead = [i for i in kernels if i not in self.taken]
        new = sum(self.bytes(b) for i in ahead for b in self.splitter.touches[i].written_ids)
        waiting: list[int] = []
        worth = self.splitter.settings.relief
        for i in ahead:
            waiting += [j for j in self.take(i) if j not in kernels]
            new -= sum(self.bytes(b) for b in self.splitter.touches[i].written_ids)
            if new >= worth and self.bytes_freed_by(waiting) >= worth:
                self.level = 1 + max(self.level, self.regions[i])
                for j in waiting:
                    self.take(j)
                waiting = []

    def take(self, i: int) -> list[int]:
        """Give a kernel its region; the kernels that wait for nobody else now."""
        self.taken.add(i)
        self.regions[i] = max(self.level, self.splitter.region(i, self.split, self.regions))
        self.uses.subtract(self.splitter.touches[i].by_buffer.keys())
        for j in self.splitter.later[i]:
            self.missing[j] -= 1
        return [j for j in self.splitter.later[i] if not self.missing[j]]

    def bytes_freed_by(self, kernels: Sequence[int]) -> int:
        """The bytes that nobody else will touch."""
        mine = Counter(b for i in kernels for b in self.splitter.touches[i].by_buffer)
        return sum(self.bytes(b) for b, count in mine.items() if self.uses[b] == count)

    def bytes(self, buffer: int) -> int:
        found = self.splitter.buffers[buffer]
        return found.bytes if found.space is Space.ARENA else 0
