"""Which kernels share a launch: those that wait for nothing of each other.

The end of a launch and the first loads of the next take longer than a small kernel's work, so kernels stand as late as
those behind them allow, and small ones that stand side by side are one launch, in which each has blocks of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from wholestep.compiler.backends.cuda.scheduled import (
    COLUMNS,
    ELEMENTS,
    PRODUCT,
    ROWS,
    SCATTER,
    SCATTER_ROWS,
    schedule_of,
)
from wholestep.compiler.plan.kernel import Draft, Kernel, Plan, Space
from wholestep.errors import PlanError

FORMS = frozenset({ELEMENTS, ROWS, COLUMNS, PRODUCT, SCATTER, SCATTER_ROWS})
MOST_FLOPS = 50_000_000  # of a kernel that shares: a larger one gains nothing, and needs the registers
MOST_BYTES = 8 << 20
MOST_BLOCKS = 2112  # of a launch: sixteen for each multiprocessor
MOST_GIVEN = 500  # addresses: 4 KB of arguments
ROOM = 16 << 20  # bytes of the arena, and this share of it, that standing later may cost
SHARE = 0.1


def touched(kernel: Kernel) -> tuple[set[int], set[int]]:
    """The buffers that a kernel reads and those that it writes; its own rows are nobody else's."""
    return {load.buffer for load, _ in kernel.body.reads()}, {load.buffer for load in kernel.body.stores()}


def waits(kernels: Sequence[Kernel], work: frozenset[int]) -> dict[int, set[int]]:
    """Kernel -> those before it that it must come after: they write what it reads or writes, or read what it writes."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    found: dict[int, set[int]] = {}
    for k in kernels:
        reads, writes = (buffers - work for buffers in touched(k))
        found[k.id] = {writer[b] for b in reads | writes if b in writer}
        found[k.id] |= {r for b in writes for r in readers.get(b, ())}
        for b in writes:
            writer[b], readers[b] = k.id, []
        for b in reads - writes:
            readers.setdefault(b, []).append(k.id)
    return found


def as_late_as_may_be(kernels: Sequence[Kernel], before: Mapping[int, set[int]]) -> dict[int, int]:
    """Kernel -> how many launches must follow it."""
    behind = {k.id: 0 for k in kernels}
    for k in reversed(kernels):
        for other in before[k.id]:
            behind[other] = max(behind[other], behind[k.id] + 1)
    return behind


def may_share(kernel: Kernel) -> bool:
    """Is a kernel small, and one of ours?"""
    own = schedule_of(kernel)
    small = kernel.flops <= MOST_FLOPS and kernel.bytes <= MOST_BYTES and own.blocks * own.chunks <= MOST_BLOCKS
    return small and own.form in FORMS


def given_count(kernel: Kernel) -> int:
    """Addresses that a kernel is given, at most."""
    reads, writes = touched(kernel)
    return len(reads | writes) + 2


def side_by_side(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """Kernels without a path between any two, as launches: small ones with blocks of one size together."""
    launches: list[list[Kernel]] = []
    open: dict[int, list[Kernel]] = {}
    for k in kernels:
        own = schedule_of(k)
        if not may_share(k):
            launches.append([k])
            continue
        group = open.get(own.threads)
        blocks = sum(schedule_of(o).blocks * schedule_of(o).chunks for o in group or ())
        given = sum(map(given_count, group or ()))
        if group is None or blocks + own.blocks * own.chunks > MOST_BLOCKS or given + given_count(k) > MOST_GIVEN:
            group = open[own.threads] = []
            launches.append(group)
        group.append(k)
    return launches


def launches_of(draft: Draft, kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """Kernels as launches, in an order in which each stands as late as those behind it allow."""
    work = frozenset(b.id for b in draft.buffers if b.space is Space.WORK)
    found: list[list[Kernel]] = []
    for _, inside in groupby(kernels, key=lambda k: k.loop):
        segment = list(inside)
        behind = as_late_as_may_be(segment, waits(segment, work))
        for level in sorted(set(behind.values()), reverse=True):
            found += side_by_side([k for k in segment if behind[k.id] == level])
    return found


def renumbered(launches: Sequence[Sequence[Kernel]]) -> tuple[Kernel, ...]:
    """Kernels in the order of their launches."""
    found: list[Kernel] = []
    for number, launch in enumerate(launches):
        for k in launch:
            schedule = replace(schedule_of(k), launch=number)
            found.append(replace(k, id=len(found), schedule=schedule))
    return tuple(found)


def by_launch(kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, ...]]:
    """The kernels of each launch of a plan."""
    for _, inside in groupby(kernels, key=lambda k: schedule_of(k).launch):
        yield tuple(inside)


def together(kernels: Sequence[Kernel]) -> dict[int, tuple[int, int]]:
    """Kernel -> the first and last of its launch: what one of them uses, nobody else may have meanwhile."""
    return {k.id: (launch[0].id, launch[-1].id) for launch in by_launch(kernels) for k in launch}


def check_launches(plan: Plan) -> None:
    """PlanError where kernels share a launch that must wait for each other."""
    place = {b.id: (b.offset, b.offset + b.bytes) for b in plan.buffers if b.space is Space.ARENA}
    work = frozenset(b.id for b in plan.buffers if b.space is Space.WORK)

    def meet(a: int, b: int) -> bool:
        if a in place and b in place:
            return place[a][0] < place[b][1] and place[b][0] < place[a][1]
        return a == b

    numbers = [schedule_of(k).launch for k in plan.kernels]
    if numbers != sorted(numbers) or len(set(numbers)) != len(list(by_launch(plan.kernels))):
        raise PlanError("the plan is not sound: its launches are not in order.")
    for launch in by_launch(plan.kernels):
        used = [tuple(buffers - work for buffers in touched(k)) for k in launch]
        sound = len({(k.loop, schedule_of(k).threads) for k in launch}) == 1
        for i, (reads, writes) in enumerate(used):
            for others, written in used[:i]:
                sound &= not any(meet(a, b) for a in writes for b in others | written)
                sound &= not any(meet(a, b) for a in reads for b in written)
        if not sound or (len(launch) > 1 and not all(map(may_share, launch))):
            raise PlanError(f"the plan is not sound: kernels {[k.id for k in launch]} cannot share a launch.")
