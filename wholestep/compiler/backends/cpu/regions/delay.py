"""Work that can wait stands behind what reads hot memory.

A convolution's weight gradient is ready as soon as the gradient of its result is, and nobody but an update waits for
it.  In the earliest region it would often stand between two passes over the same images (the sums of a batch norm's
gradient, and the gradient itself) and drive them out of the caches.  One region later, behind the second pass, it costs
no barrier.  It computes much for each byte, so that cold operands do not slow it down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wholestep.compiler.plan.bodies import Window
from wholestep.compiler.plan.kernel import Kernel, Kind
from wholestep.compiler.plan.window_ops import WEIGHTS

if TYPE_CHECKING:
    from wholestep.compiler.backends.cpu.regions.split import Splitter


@dataclass
class Schedule:
    """The region of each kernel, and behind which kernel it stands there: itself unless it waited."""

    regions: list[int]
    behind: list[int]

    def order(self) -> list[int]:
        return sorted(range(len(self.regions)), key=lambda i: (self.regions[i], self.behind[i], self.behind[i] != i, i))


def hold_back(splitter: Splitter, split: Sequence[int | None], regions: Sequence[int]) -> Schedule:
    """Weight gradients one region later, where that brings two passes over large buffers together."""
    schedule = Schedule([*regions], [*range(len(regions))])
    for i, kernel in enumerate(splitter.kernels):
        schedule.regions[i] = max(schedule.regions[i], splitter.region(i, split, schedule.regions))
        here = [j for j, _ in splitter.edges[i] if schedule.regions[j] == schedule.regions[i]]
        schedule.behind[i] = max([i, *(schedule.behind[j] for j in here)])
        second = _second_pass(splitter, i, regions) if _can_wait(kernel) else None
        if second is not None:
            schedule.regions[i] += 1
            schedule.behind[i] = second
    return schedule


def _can_wait(kernel: Kernel) -> bool:
    return isinstance(kernel.body, Window) and kernel.body.op in WEIGHTS


def _second_pass(splitter: Splitter, i: int, regions: Sequence[int]) -> int | None:
    """Who passes, in the next region, over a large buffer that was touched before, and not by kernel i."""
    mine, after = splitter.touches[i].by_buffer, regions[i] + 1
    for j in (j for j, region in enumerate(regions) if region == after):
        if splitter.kernels[j].kind is Kind.NEST:
            for b in splitter.touches[j].read_ids - mine.keys():
                touched = any(regions[k] < after for k, of in splitter.edges[j] if of == b)
                if touched and splitter.buffers[b].type.bytes(splitter.sizes) >= splitter.settings.delay:
                    return j
    return None
