"""Additional barriers that shorten lifetimes: a barrier is inserted where it lets many arena bytes be reused earlier.

If all kernels partition the rows alike, from the first layer to the last and back, they need no barrier: one region,
with all weight gradients in the next one.  Until then every operand of a weight gradient is alive.  A barrier in
between lets the weight gradients run earlier, after which the bytes of their operands can be reused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wholestep.compiler.plan.model.kernel import Space

if TYPE_CHECKING:
    from wholestep.compiler.backends.cpu.partition.threads import ThreadPartitioner


def insert_memory_barriers(splitter: ThreadPartitioner, split: Sequence[int | None]) -> list[int]:
    """The region of each kernel, with barriers added where the kernels that wait for one would free many bytes."""
    planned = splitter.regions(split)
    insertion = _BarrierInsertion(splitter, split)
    for region in range(max(planned, default=-1) + 1):
        insertion.schedule_region([i for i, r in enumerate(planned) if r == region])
    return insertion.regions


class _BarrierInsertion:
    """Visits kernels region by region; kernels of the next region are scheduled early where that frees enough bytes."""

    def __init__(self, splitter: ThreadPartitioner, split: Sequence[int | None]) -> None:
        self.splitter, self.split = splitter, split
        self.regions = [0] * len(splitter.kernels)
        self.level = 0  # lower bound for the region of the kernels scheduled next
        self.taken: set[int] = set()
        self.missing = [len({i for i, _ in edges}) for edges in splitter.edges]
        self.uses = Counter(b for touch in splitter.touches for b in touch.by_buffer)

    def schedule_region(self, kernels: Sequence[int]) -> None:
        """Schedule the kernels of one region, in program order."""
        pending = [i for i in kernels if i not in self.taken]
        unwritten = sum(self.bytes(b) for i in pending for b in self.splitter.touches[i].written_ids)
        waiting: list[int] = []
        worth = self.splitter.settings.relief
        for i in pending:
            waiting += [j for j in self.schedule_kernel(i) if j not in kernels]
            unwritten -= sum(self.bytes(b) for b in self.splitter.touches[i].written_ids)
            if unwritten >= worth and self.bytes_freed_by(waiting) >= worth:
                self.level = 1 + max(self.level, self.regions[i])
                for j in waiting:
                    self.schedule_kernel(j)
                waiting = []

    def schedule_kernel(self, i: int) -> list[int]:
        """Assign a kernel its region; returns the kernels that are now ready, since this was their last dependence."""
        self.taken.add(i)
        self.regions[i] = max(self.level, self.splitter.region(i, self.split, self.regions))
        self.uses.subtract(self.splitter.touches[i].by_buffer.keys())
        for j in self.splitter.later[i]:
            self.missing[j] -= 1
        return [j for j in self.splitter.later[i] if not self.missing[j]]

    def bytes_freed_by(self, kernels: Sequence[int]) -> int:
        """The arena bytes that no other kernel will access."""
        uses_here = Counter(b for i in kernels for b in self.splitter.touches[i].by_buffer)
        return sum(self.bytes(b) for b, count in uses_here.items() if self.uses[b] == count)

    def bytes(self, buffer: int) -> int:
        info = self.splitter.buffers[buffer]
        return info.bytes if info.space is Space.ARENA else 0
