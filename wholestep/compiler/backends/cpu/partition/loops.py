"""Thread partitioning of programs with loops (scans).

There are barriers before and after each loop, so the kernel sequences between loops and the body of each loop are
partitioned separately.  Inside a loop a barrier is paid once per iteration, and dependences carried from one iteration
to the next count too: a later kernel's access conflicts with an earlier kernel of the next iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from wholestep.compiler.backends.cpu.cost_model import Settings
from wholestep.compiler.backends.cpu.kernel_schedule import in_region, partition_among_threads, schedule_of
from wholestep.compiler.backends.cpu.partition.ownership import kernel_granule
from wholestep.compiler.backends.cpu.partition.threads import ThreadPartitioner, partition_kernels
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Loop


def partition_with_loops(
    kernels: Sequence[Kernel],
    loops: Sequence[Loop],
    buffers: Sequence[Buffer],
    sizes: Mapping[str, int],
    settings: Settings,
) -> tuple[list[Kernel], list[Loop]]:
    """The kernels with splits and regions, ordered by region, and the loops, which say whether they need a barrier."""
    if not loops:
        return partition_kernels(kernels, buffers, sizes, settings), []
    out: list[Kernel] = []
    partitioned_loops: dict[int, Loop] = {}
    for number, group in groupby(kernels, key=lambda k: k.loop):
        stretch, region = list(group), schedule_of(out[-1]).region + 1 if out else 0
        if number is None:
            chosen = partition_kernels(stretch, buffers, sizes, settings)
        else:
            splitter = LoopPartitioner(stretch, buffers, sizes, settings, loops[number])
            chosen, partitioned_loops[number] = splitter.search_loop()
        out += [replace(in_region(k, region + schedule_of(k).region), id=len(out) + i) for i, k in enumerate(chosen)]
    return out, [partitioned_loops.get(loop.id, replace(loop, barrier=False)) for loop in loops]


class LoopPartitioner(ThreadPartitioner):
    """Partitions the kernels of one loop body."""

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

    def needs_barrier(self, split: Sequence[int | None]) -> bool:
        """Does a loop need a barrier between two iterations?"""
        inside = max(self.regions(split), default=0) > 0
        return inside or not all(self.free(i, split[i], j, split[j], b) for i, j, b in self.back)

    def loop_price(self, split: Sequence[int | None]) -> float:
        barriers = max(self.regions(split), default=0) + 1 if self.needs_barrier(split) else 0
        work = sum(work[s] for work, s in zip(self.work, split, strict=True))
        crossing = sum(self.crossing_cost(i, j, b, split) / self.iterations_per_buffer(b) for i, j, b in self.crossings)
        return work + self.steps * (barriers * self.prices.barrier + crossing)

    def iterations_per_buffer(self, buffer: int) -> int:
        """The number of iterations that share the buffer's bytes: a stacked buffer has one slice per iteration."""
        shape = self.buffers[buffer].type.shape
        return self.steps if shape and evaluate(shape[0], self.sizes) >= self.steps > 1 else 1

    def search_loop(self) -> tuple[list[Kernel], Loop]:
        """Local search: change the split of one kernel at a time while the price falls, from several starts."""
        best = min((self.descend_loop(list(s)) for s in self.starts()), key=self.loop_price)
        regions = self.regions(best)
        chosen = [
            partition_among_threads(k, s, 1 if s is None else kernel_granule(k, s), r)
            for k, s, r in zip(self.kernels, best, regions, strict=True)
        ]
        return sorted(chosen, key=lambda k: schedule_of(k).region), replace(self.loop, barrier=self.needs_barrier(best))

    def descend_loop(self, split: list[int | None]) -> list[int | None]:
        price, changed = self.loop_price(split), True
        while changed:
            changed = False
            for i, options in enumerate(self.options):
                for s in options:
                    other = [*split[:i], s, *split[i + 1 :]]
                    other_price = self.loop_price(other)
                    if other_price < price - 1e-12:
                        split, price, changed = other, other_price, True
        return split
