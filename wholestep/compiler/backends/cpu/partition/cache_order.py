"""Cache-aware ordering: kernels that can wait are moved after kernels that read data still in the caches.

The weight gradient of a convolution can run as soon as the gradient of the convolution's result is known, but only an
update reads it.  In the earliest possible region it would often run between two passes over the same images (the sums
of a batch norm's gradient, and the gradient itself) and evict them from the caches.  One region later, after the second
pass, it costs no additional barrier.  Its arithmetic intensity is high, so cold operands do not slow it down.

Invariant: a kernel moves only to a later region, and never past a reader of its results.
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
    """The region of each kernel, and the kernel that it follows within that region: itself unless it was delayed."""

    regions: list[int]
    after: list[int]

    def order(self) -> list[int]:
        return sorted(range(len(self.regions)), key=lambda i: (self.regions[i], self.after[i], self.after[i] != i, i))


def delay_weight_gradients(
    splitter: ThreadPartitioner, split: Sequence[int | None], regions: Sequence[int]
) -> RegionOrder:
    """Delay weight gradients by one region if two passes over a large buffer then follow each other directly."""
    schedule = RegionOrder([*regions], [*range(len(regions))])
    for i, kernel in enumerate(splitter.kernels):
        schedule.regions[i] = max(schedule.regions[i], splitter.region(i, split, schedule.regions))
        same_region = [j for j, _ in splitter.edges[i] if schedule.regions[j] == schedule.regions[i]]
        schedule.after[i] = max([i, *(schedule.after[j] for j in same_region)])
        second = _second_pass(splitter, i, regions) if _can_wait(kernel) else None
        if second is not None:
            schedule.regions[i] += 1
            schedule.after[i] = second
    return schedule


def schedule_late(splitter: ThreadPartitioner, split: Sequence[int | None], schedule: RegionOrder) -> None:
    """If memory is short, run kernels that write more arena bytes than they free as late as their readers permit.

    Without this a value that is rematerialized for the backward pass would be computed as early as possible, and
    would stay in memory after all.
    """
    regions = schedule.regions
    last: dict[int, int] = {}  # buffer -> region of the last kernel that accesses it
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
        written_bytes = sum(splitter.buffers[b].bytes for b in written)
        if written_bytes <= sum(splitter.buffers[b].bytes for b in read if last[b] < latest):
            latest = min([latest, *(last[b] for b in read)])  # no later than the operands are alive anyway
        if written_bytes and latest > regions[i]:
            regions[i] = latest
            for b in read:
                last[b] = max(last[b], latest)


def _reused_buffers(splitter: ThreadPartitioner, buffers: Iterable[int]) -> list[int]:
    """The buffers in the arena, whose bytes other buffers reuse over time."""
    return [b for b in buffers if splitter.buffers[b].space is Space.ARENA]


def _can_wait(kernel: Kernel) -> bool:
    return isinstance(kernel.body, Window) and kernel.body.op in WEIGHTS


def _second_pass(splitter: ThreadPartitioner, i: int, regions: Sequence[int]) -> int | None:
    """The kernel of the next region that reads a large buffer already accessed before, but not accessed by kernel i."""
    own_buffers, next_region = splitter.touches[i].by_buffer, regions[i] + 1
    for j in (j for j, region in enumerate(regions) if region == next_region):
        if splitter.kernels[j].kind is Kind.NEST:
            for b in splitter.touches[j].read_ids - own_buffers.keys():
                cached = any(regions[k] < next_region for k, of in splitter.edges[j] if of == b)
                if cached and splitter.buffers[b].type.bytes(splitter.sizes) >= splitter.settings.delay:
                    return j
    return None
