"""Work that can wait stands behind what reads hot memory.

A convolution's weight gradient is ready as soon as the gradient of its result is, and nobody but an update waits for
it.  In the earliest region it would often stand between two passes over the same images (the sums of a batch norm's
gradient, and the gradient itself) and drive them out of the caches.  One region later, behind the second pass, it costs
no barrier.  It computes much for each byte, so that cold operands do not slow it down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wholestep.compiler.plan.lower.convolution_ops import WEIGHTS
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Kernel, Kind, Space

if TYPE_CHECKING:
    from wholestep.compiler.backends.cpu.partition.threads import ThreadPartitioner


@dataclass
class RegionOrder:
    """The region of each kernel, and behind which kernel it stands there: itself unless it waited."""

    regions: list[int]
    behind: list[int]

    def order(self) -> list[int]:
        return sorted(range(len(self.regions)), key=lambda i: (self.regions[i], self.behind[i], self.behind[i] != i, i))


def hold_back(splitter: ThreadPartitioner, split: Sequence[int | None], regions: Sequence[int]) -> RegionOrder:
    """Weight gradients one region later, where that brings two passes over large buffers together."""
    schedule = RegionOrder([*regions], [*range(len(regions))])
    for i, kernel in enumerate(splitter.kernels):
        schedule.regions[i] = max(schedule.regions[i], splitter.region(i, split, schedule.regions))
        here = [j for j, _ in splitter.edges[i] if schedule.regions[j] == schedule.regions[i]]
        schedule.behind[i] = max([i, *(schedule.behind[j] for j in here)])
        second = _second_pass(splitter, i, regions) if _can_wait(kernel) else None
        if second is not None:
            schedule.regions[i] += 1
            schedule.behind[i] = second
    return schedule


def put_off(splitter: ThreadPartitioner, split: Sequence[int | None], schedule: RegionOrder) -> None:
    """Where memory is short: what fills more bytes than it is the last to read runs as late as its readers let it.

    Without it, what is made again for the backward pass would be made as soon as it can be, and be kept after all.
    """
    regions = schedule.regions
    last: dict[int, int] = {}  # the region of the last kernel that touches a buffer
    for i, touch in enumerate(splitter.touches):
        for b in touch.by_buffer:
            last[b] = max(last.get(b, 0), regions[i])
    for i in reversed(range(len(regions))):
        readers = splitter.edges_to[i]
        latest = min(
            (regions[j] - (not splitter.free(i, split[i], j, split[j], b)) for j, b in readers), default=regions[i]
        )
        written, read = (
            _reused_buffers(splitter, ids) for ids in (splitter.touches[i].written_ids, splitter.touches[i].read_ids)
        )
        made = sum(splitter.buffers[b].bytes for b in written)
        if made <= sum(splitter.buffers[b].bytes for b in read if last[b] < latest):
            latest = min([latest, *(last[b] for b in read)])  # as long as they are there anyway
        if made and latest > regions[i]:
            regions[i] = latest
            for b in read:
                last[b] = max(last[b], latest)


def _reused_buffers(splitter: ThreadPartitioner, buffers: Iterable[int]) -> list[int]:
    """Those that share their bytes with others over time."""
    return [b for b in buffers if splitter.buffers[b].space is Space.ARENA]


def _can_wait(kernel: Kernel) -> bool:
    return isinstance(kernel.body, Window) and kernel.body.op in WEIGHTS


def _second_pass(splitter: ThreadPartitioner, i: int, regions: Sequence[int]) -> int | None:
    """Who passes, in the next region, over a large buffer that was touched before, and not by kernel i."""
    mine, after = splitter.touches[i].by_buffer, regions[i] + 1
    for j in (j for j, region in enumerate(regions) if region == after):
        if splitter.kernels[j].kind is Kind.NEST:
            for b in splitter.touches[j].read_ids - mine.keys():
                touched = any(regions[k] < after for k, of in splitter.edges[j] if of == b)
                if touched and splitter.buffers[b].type.bytes(splitter.sizes) >= splitter.settings.delay:
                    return j
    return None
