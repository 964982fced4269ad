"""Horizontal fusion: independent small kernels share one launch, in which each has its own blocks.

The end of a launch and the first loads of the next one take longer than a small kernel's work.  Kernels are therefore
scheduled as late as their readers allow (ALAP levels), and small kernels of the same level become one launch.
Invariant: no kernel of a launch reads or overwrites bytes that another one writes, except along a row chain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from wholestep.compiler.backends.gpu.fusion import row_fusion
from wholestep.compiler.backends.gpu.kernel_schedule import Form, schedule_of
from wholestep.compiler.backends.gpu.persistent import scan
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Space

FORMS = frozenset(
    {
        Form.ELEMENTS,
        Form.ROWS,
        Form.SUMS,
        Form.COLUMNS,
        Form.PRODUCT,
        Form.SCATTER,
        Form.SCATTER_ROWS,
        Form.SCATTER_TABLE,
    }
)
MOST_ADDRESSES = 500  # addresses of one launch: 4 KB of kernel parameters (`ws_given` of native/device.h)


def reads_and_writes(kernel: Kernel) -> tuple[set[int], set[int]]:
    """Buffers that a kernel reads, and buffers that it writes."""
    return {load.buffer for load, _ in kernel.body.reads()}, {load.buffer for load in kernel.body.stores()}


def dependencies_of(kernels: Sequence[Kernel], work: frozenset[int]) -> dict[int, set[int]]:
    """Kernel -> earlier kernels that it depends on, because they write its operands or read or write its results."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    predecessors: dict[int, set[int]] = {}
    for k in kernels:
        reads, writes = (buffers - work for buffers in reads_and_writes(k))
        predecessors[k.id] = {writer[b] for b in reads | writes if b in writer}
        predecessors[k.id] |= {r for b in writes for r in readers.get(b, ())}
        for b in writes:
            writer[b], readers[b] = k.id, []
        for b in reads - writes:
            readers.setdefault(b, []).append(k.id)
    return predecessors


Part = Sequence[Kernel]  # a kernel, or a chain of vertically fused kernels that run in the same blocks
Launch = Sequence[Part]


def launches_after(parts: Sequence[Part], before: Mapping[int, set[int]]) -> list[int]:
    """ALAP levels: for each part the number of launches that must follow it (length of its longest dependent path)."""
    number = {k.id: i for i, part in enumerate(parts) for k in part}
    needs = [{number[o] for k in part for o in before[k.id]} - {i} for i, part in enumerate(parts)]
    unvisited_readers = Counter(o for n in needs for o in n)  # per part: dependents not yet visited
    levels, ready = [0] * len(parts), [i for i in range(len(parts)) if not unvisited_readers[i]]
    while ready:
        part = ready.pop()
        for other in needs[part]:
            levels[other] = max(levels[other], levels[part] + 1)
            unvisited_readers[other] -= 1
            if not unvisited_readers[other]:
                ready.append(other)
    assert not any(unvisited_readers.values()), "the dependency graph is acyclic"
    return levels


def may_share(draft: Draft, kernel: Kernel) -> bool:
    """Is the kernel one of our own, and either small or an update?"""
    if schedule_of(kernel).form == Form.MEDIUM:
        return is_late_product(draft, kernel)
    if schedule_of(kernel).ahead:
        return False  # the kernel's row prefetch uses all shared memory of the block
    return (is_small(draft, kernel) or is_update(draft, kernel)) and schedule_of(kernel).form in FORMS


def is_small(draft: Draft, kernel: Kernel) -> bool:
    """Would a launch of its own take longer than the kernel's work?"""
    schedule, costs = schedule_of(kernel), costs_of(draft).fusion
    return (
        kernel.flops <= costs.most_flops
        and kernel.bytes <= costs.most_bytes
        and schedule.blocks * schedule.chunks <= costs.launch_blocks
    )


def is_update(draft: Draft, kernel: Kernel) -> bool:
    """Does a kernel write states only, elementwise?  The updates of all matrices form one pass, whatever their size."""
    written = {draft.buffers[load.buffer].space for load in kernel.body.stores()}
    return schedule_of(kernel).form == Form.ELEMENTS and kernel.loop is None and written <= {Space.STATE, Space.COPY}


def is_late_product(draft: Draft, kernel: Kernel) -> bool:
    """Is the kernel a medium weight gradient fused with its update?  The tiles of one leave half of a GPU idle."""
    written = {draft.buffers[load.buffer].space for load in kernel.body.stores()}
    schedule = schedule_of(kernel)
    return (
        schedule.form == Form.MEDIUM
        and schedule.blocks <= costs_of(draft).fusion.medium_blocks
        and kernel.loop is None
        and written <= {Space.STATE, Space.COPY}
    )


def count_addresses(kernel: Kernel) -> int:
    """Upper bound of the addresses that a kernel takes as parameters."""
    reads, writes = reads_and_writes(kernel)
    return len(reads | writes) + 2


def blocks_of(draft: Draft, part: Part) -> int:
    """The number of blocks of a part at capacity."""
    if len(part) > 1:
        return row_fusion.rows_of(draft, part[0])
    return schedule_of(part[0]).blocks * schedule_of(part[0]).chunks


def group_independent(draft: Draft, parts: Sequence[Part]) -> list[list[Part]]:
    """Groups independent parts into launches: small parts with the same block size share a launch."""
    launches: list[list[Part]] = []
    open_groups: dict[tuple[int, bool, bool], list[Part]] = {}
    most_blocks = costs_of(draft).fusion.launch_blocks
    for part in parts:
        if not all(may_share(draft, k) for k in part):
            launches.append([part])
            continue
        updates = not all(is_small(draft, k) for k in part)
        late = schedule_of(part[0]).form == Form.MEDIUM
        group_key = (schedule_of(part[0]).threads, updates or late, late)
        group = open_groups.get(group_key, [])
        blocks = 0 if updates else sum(blocks_of(draft, p) for p in (*group, part))
        addresses = sum(count_addresses(k) for p in (*group, part) for k in p)
        if not group or blocks > most_blocks or addresses > MOST_ADDRESSES:
            group = open_groups[group_key] = []
            launches.append(group)
        group.append(part)
    return launches


def launches_of(draft: Draft, kernels: Sequence[Kernel]) -> list[list[Part]]:
    """Launches in ALAP order: each kernel as late as the kernels that depend on it allow."""
    work = frozenset(b.id for b in draft.buffers if b.space is Space.WORK)
    launches: list[list[Part]] = []
    for _, inside in groupby(kernels, key=lambda k: k.loop):
        segment = list(inside)
        if persistent := persistent_loop_of(draft, segment):
            launches.append(persistent)
            continue
        predecessors = dependencies_of(segment, work)
        parts = list(row_fusion.chains_of(draft, segment, predecessors))
        levels = launches_after(parts, predecessors)
        for level in sorted(set(levels), reverse=True):
            launches += group_independent(draft, [p for p, b in zip(parts, levels, strict=True) if b == level])
    return launches


def persistent_loop_of(draft: Draft, segment: Sequence[Kernel]) -> list[Part]:
    """The kernels of a loop that runs as one persistent kernel, annotated with each block's share; [] for others."""
    loop = segment[0].loop is not None and scan.find_persistent_scan(draft, segment)
    if not isinstance(loop, scan.PersistentScan):
        return []
    return [[replace(k, schedule=replace(schedule_of(k), owns=loop.owns))] for k in segment]


def defer_updates(draft: Draft, kernels: Sequence[Kernel], times: int = 1) -> list[list[Part]]:
    """Keeps the kernel order, except that kernels without dependents run at the end, in shared launches.

    Args:
        times: number of such groups.  With several, the gradients of the last layers are dead before the first layers'
            gradients are computed.
    """
    work = frozenset(b.id for b in draft.buffers if b.space is Space.WORK)
    if any(k.loop is not None for k in kernels):
        launches: list[list[Part]] = []
        for _, inside in groupby(kernels, key=lambda k: k.loop):
            segment = list(inside)
            persistent = persistent_loop_of(draft, segment)
            launches += [persistent] if persistent else [[[k]] for k in segment]
        return launches
    predecessors = dependencies_of(kernels, work)
    awaited = set[int]().union(*predecessors.values())
    in_order = [k for k in kernels if k.id in awaited or not may_share(draft, k) or is_late_product(draft, k)]
    position = {k.id: i for i, k in enumerate(in_order)}
    ready = {k.id: max((position[o] for o in predecessors[k.id]), default=0) for k in kernels if k.id not in position}
    updates = sorted((k for k in kernels if k.id in ready), key=lambda k: ready[k.id])
    launches_so_far: list[list[Part]] = []
    start = 0
    for group in split_by_bytes(updates, times):
        end = len(in_order) if group[-1] is updates[-1] else ready[group[-1].id] + 1
        launches_so_far += [[[k]] for k in in_order[start:end]]
        launches_so_far += group_independent(draft, [[k] for k in sorted(group, key=lambda k: k.id)])
        start = end
    return launches_so_far + [[[k]] for k in in_order[start:]]


def split_by_bytes(kernels: Sequence[Kernel], parts: int) -> list[list[Kernel]]:
    """Splits kernels, in order, into groups of about equal memory traffic."""
    total, done = sum(k.bytes for k in kernels), 0
    groups: dict[int, list[Kernel]] = {}
    for k in kernels:
        groups.setdefault(min(parts - 1, done * parts // max(1, total)), []).append(k)
        done += k.bytes
    return list(groups.values())
