"""Who computes what in a program with loops.

Barriers stand before and after a loop, so that the stretches between loops, and each loop, are split on their own.  In
a loop a barrier costs once per step, and a kernel also meets those before it, in the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from wholestep.compiler.backends.cpu.cost_model import Settings
from wholestep.compiler.backends.cpu.kernel_schedule import in_region, partition_among_threads, schedule_of
from wholestep.compiler.backends.cpu.partition.ownership import kernel_granule
from wholestep.compiler.backends.cpu.partition.threads import ThreadPartitioner, split_kernels
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Loop


def split_with_loops(
    kernels: Sequence[Kernel],
    loops: Sequence[Loop],
    buffers: Sequence[Buffer],
    sizes: Mapping[str, int],
    settings: Settings,
) -> tuple[list[Kernel], list[Loop]]:
    """The kernels with their splits and regions, in the order of the regions; whether each loop needs a barrier."""
    if not loops:
        return split_kernels(kernels, buffers, sizes, settings), []
    out: list[Kernel] = []
    found: dict[int, Loop] = {}
    for number, group in groupby(kernels, key=lambda k: k.loop):
        stretch, region = list(group), schedule_of(out[-1]).region + 1 if out else 0
        if number is None:
            chosen = split_kernels(stretch, buffers, sizes, settings)
        else:
            splitter = LoopSplitter(stretch, buffers, sizes, settings, loops[number])
            chosen, found[number] = splitter.search_loop()
        out += [replace(in_region(k, region + schedule_of(k).region), id=len(out) + i) for i, k in enumerate(chosen)]
    return out, [found.get(loop.id, replace(loop, barrier=False)) for loop in loops]


class LoopSplitter(ThreadPartitioner):
    """Splits the kernels of one loop."""

    def __init__(
        self,
        kernels: Sequence[Kernel],
        buffers: Sequence[Buffer],
        sizes: Mapping[str, int],
        settings: Settings,
        loop: Loop,
    ) -> None:
        super().__init__(kernels, buffers, sizes, settings)
        self.loop, self.steps = loop, max(1, evaluate(loop.length, sizes))
        self.back = [
            (i, j, b)
            for i, u in enumerate(self.touches)
            for j, v in enumerate(self.touches[: i + 1])
            for b in sorted(u.by_buffer.keys() & v.by_buffer.keys())
            if b in u.written_ids | v.written_ids
        ]

    def meets(self, split: Sequence[int | None]) -> bool:
        """Do threads have to meet between two steps?"""
        inside = max(self.regions(split), default=0) > 0
        return inside or not all(self.free(i, split[i], j, split[j], b) for i, j, b in self.back)

    def loop_price(self, split: Sequence[int | None]) -> float:
        barriers = max(self.regions(split), default=0) + 1 if self.meets(split) else 0
        work = sum(work[s] for work, s in zip(self.work, split, strict=True))
        crossing = sum(self.crossing(i, j, b, split) / self.share_of_step(b) for i, j, b in self.crossings)
        return work + self.steps * (barriers * self.prices.barrier + crossing)

    def share_of_step(self, buffer: int) -> int:
        """How many steps the bytes of a buffer are for: a stack has one slice for each."""
        shape = self.buffers[buffer].type.shape
        return self.steps if shape and evaluate(shape[0], self.sizes) >= self.steps > 1 else 1

    def search_loop(self) -> tuple[list[Kernel], Loop]:
        """Change one kernel at a time while that is cheaper, from several starts."""
        best = min((self.improved(list(s)) for s in self.starts()), key=self.loop_price)
        regions = self.regions(best)
        chosen = [
            partition_among_threads(k, s, 1 if s is None else kernel_granule(k, s), r)
            for k, s, r in zip(self.kernels, best, regions, strict=True)
        ]
        return sorted(chosen, key=lambda k: schedule_of(k).region), replace(self.loop, barrier=self.meets(best))

    def improved(self, split: list[int | None]) -> list[int | None]:
        price, changed = self.loop_price(split), True
        while changed:
            changed = False
            for i, options in enumerate(self.options):
                for s in options:
                    other = [*split[:i], s, *split[i + 1 :]]
                    found = self.loop_price(other)
                    if found < price - 1e-12:
                        split, price, changed = other, found, True
        return split
