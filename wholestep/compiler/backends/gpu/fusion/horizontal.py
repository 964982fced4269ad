"""Which kernels share a launch: those that wait for nothing of each other.

The end of a launch and the first loads of the next take longer than a small kernel's work, so kernels stand as late as
those behind them allow, and small ones that stand side by side are one launch, in which each has blocks of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from wholestep.compiler.backends.gpu.fusion import row_fusion
from wholestep.compiler.backends.gpu.kernel_schedule import (
    COLUMNS,
    ELEMENTS,
    MIDDLE,
    PRODUCT,
    ROWS,
    SCATTER,
    SCATTER_ROWS,
    SUMS,
    schedule_of,
)
from wholestep.compiler.backends.gpu.persistent import scan
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Plan, Space
from wholestep.errors import PlanError

FORMS = frozenset({ELEMENTS, ROWS, SUMS, COLUMNS, PRODUCT, SCATTER, SCATTER_ROWS})
MOST_BLOCKS = 2112  # of a launch: sixteen for each multiprocessor
FEW_TILES = 264  # of a product of a middle size: two for each multiprocessor
MOST_GIVEN = 500  # addresses: 4 KB of arguments
ROOM = 16 << 20  # bytes of the arena, and this share of it, that standing later may cost
SHARE = 0.1


def reads_and_writes(kernel: Kernel) -> tuple[set[int], set[int]]:
    """The buffers that a kernel reads and those that it writes; its own rows are nobody else's."""
    return {load.buffer for load, _ in kernel.body.reads()}, {load.buffer for load in kernel.body.stores()}


def waits(kernels: Sequence[Kernel], work: frozenset[int]) -> dict[int, set[int]]:
    """Kernel -> those before it that it must come after: they write what it reads or writes, or read what it writes."""
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    found: dict[int, set[int]] = {}
    for k in kernels:
        reads, writes = (buffers - work for buffers in reads_and_writes(k))
        found[k.id] = {writer[b] for b in reads | writes if b in writer}
        found[k.id] |= {r for b in writes for r in readers.get(b, ())}
        for b in writes:
            writer[b], readers[b] = k.id, []
        for b in reads - writes:
            readers.setdefault(b, []).append(k.id)
    return found


Part = Sequence[Kernel]  # a kernel, or several that run one after the other in the same blocks
Launch = Sequence[Part]


def as_late_as_may_be(parts: Sequence[Part], before: Mapping[int, set[int]]) -> list[int]:
    """Of each part, how many launches must follow it."""
    number = {k.id: i for i, part in enumerate(parts) for k in part}
    needs = [{number[o] for k in part for o in before[k.id]} - {i} for i, part in enumerate(parts)]
    left = Counter(o for n in needs for o in n)  # of each, how many behind it are still to be seen
    behind, ready = [0] * len(parts), [i for i in range(len(parts)) if not left[i]]
    while ready:
        part = ready.pop()
        for other in needs[part]:
            behind[other] = max(behind[other], behind[part] + 1)
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    assert not any(left.values()), "no kernel waits for itself"
    return behind


def may_share(draft: Draft, kernel: Kernel) -> bool:
    """Is a kernel one of ours, and small, or an update?"""
    if schedule_of(kernel).form == MIDDLE:
        return is_late_product(draft, kernel)
    if schedule_of(kernel).ahead:
        return False  # it fills the shared memory of a block by itself
    return (is_small(kernel) or is_update(draft, kernel)) and schedule_of(kernel).form in FORMS


def is_small(kernel: Kernel) -> bool:
    own = schedule_of(kernel)
    return (
        kernel.flops <= row_fusion.MOST_FLOPS
        and kernel.bytes <= row_fusion.MOST_BYTES
        and own.blocks * own.chunks <= MOST_BLOCKS
    )


def is_update(draft: Draft, kernel: Kernel) -> bool:
    """Does a kernel write states alone, element by element?  Those of all matrices are one pass, however large."""
    written = {draft.buffers[load.buffer].space for load in kernel.body.stores()}
    return schedule_of(kernel).form == ELEMENTS and kernel.loop is None and written <= {Space.STATE, Space.COPY}


def is_late_product(draft: Draft, kernel: Kernel) -> bool:
    """Is it a gradient of weights of a middle size, with their update?  Its tiles alone leave half of a GPU idle."""
    written = {draft.buffers[load.buffer].space for load in kernel.body.stores()}
    own = schedule_of(kernel)
    return (
        own.form == MIDDLE and own.blocks <= FEW_TILES and kernel.loop is None and written <= {Space.STATE, Space.COPY}
    )


def count_addresses(kernel: Kernel) -> int:
    """Addresses that a kernel is given, at most."""
    reads, writes = reads_and_writes(kernel)
    return len(reads | writes) + 2


def blocks_of(draft: Draft, part: Part) -> int:
    """Blocks of a part at capacity."""
    if len(part) > 1:
        return row_fusion.rows_of(draft, part[0])
    return schedule_of(part[0]).blocks * schedule_of(part[0]).chunks


def side_by_side(draft: Draft, parts: Sequence[Part]) -> list[list[Part]]:
    """Parts without a path between any two, as launches: small ones with blocks of one size together."""
    launches: list[list[Part]] = []
    open: dict[tuple[int, bool, bool], list[Part]] = {}
    for part in parts:
        if not all(may_share(draft, k) for k in part):
            launches.append([part])
            continue
        updates = not all(map(is_small, part))
        late = schedule_of(part[0]).form == MIDDLE
        kind = (schedule_of(part[0]).threads, updates or late, late)
        group = open.get(kind, [])
        blocks = 0 if updates else sum(blocks_of(draft, p) for p in (*group, part))
        given = sum(count_addresses(k) for p in (*group, part) for k in p)
        if not group or blocks > MOST_BLOCKS or given > MOST_GIVEN:
            group = open[kind] = []
            launches.append(group)
        group.append(part)
    return launches


def launches_of(draft: Draft, kernels: Sequence[Kernel]) -> list[list[Part]]:
    """Kernels as launches, in an order in which each stands as late as those behind it allow."""
    work = frozenset(b.id for b in draft.buffers if b.space is Space.WORK)
    found: list[list[Part]] = []
    for _, inside in groupby(kernels, key=lambda k: k.loop):
        segment = list(inside)
        if together := as_one_kernel(draft, segment):
            found.append(together)
            continue
        before = waits(segment, work)
        parts = list(row_fusion.chains_of(draft, segment, before))
        behind = as_late_as_may_be(parts, before)
        for level in sorted(set(behind), reverse=True):
            found += side_by_side(draft, [p for p, b in zip(parts, behind, strict=True) if b == level])
    return found


def as_one_kernel(draft: Draft, segment: Sequence[Kernel]) -> list[Part]:
    """The kernels of a loop that is one, each marked with what a block of it owns; [] for others."""
    loop = segment[0].loop is not None and scan.find_loop(draft, segment)
    if not isinstance(loop, scan.Looping):
        return []
    return [[replace(k, schedule=replace(schedule_of(k), owns=loop.owns))] for k in segment]


def updates_last(draft: Draft, kernels: Sequence[Kernel], times: int = 1) -> list[list[Part]]:
    """Kernels in their order, but for those that nobody waits for: these stand at the end, side by side.

    Where they do so several times, the gradients of the last layers are gone before those of the first ones come.
    """
    work = frozenset(b.id for b in draft.buffers if b.space is Space.WORK)
    if any(k.loop is not None for k in kernels):
        launches: list[list[Part]] = []
        for _, inside in groupby(kernels, key=lambda k: k.loop):
            segment = list(inside)
            one = as_one_kernel(draft, segment)
            launches += [one] if one else [[[k]] for k in segment]
        return launches
    before = waits(kernels, work)
    wanted = set[int]().union(*before.values())
    first = [k for k in kernels if k.id in wanted or not may_share(draft, k) or is_late_product(draft, k)]
    place = {k.id: i for i, k in enumerate(first)}
    ready = {k.id: max((place[o] for o in before[k.id]), default=0) for k in kernels if k.id not in place}
    ends = sorted((k for k in kernels if k.id in ready), key=lambda k: ready[k.id])
    found: list[list[Part]] = []
    start = 0
    for group in in_equal_parts(ends, times):
        end = len(first) if group[-1] is ends[-1] else ready[group[-1].id] + 1
        found += [[[k]] for k in first[start:end]]
        found += side_by_side(draft, [[k] for k in sorted(group, key=lambda k: k.id)])
        start = end
    return found + [[[k]] for k in first[start:]]


def in_equal_parts(kernels: Sequence[Kernel], parts: int) -> list[list[Kernel]]:
    """Kernels in their order, in parts of about as many bytes."""
    whole, done = sum(k.bytes for k in kernels), 0
    found: dict[int, list[Kernel]] = {}
    for k in kernels:
        found.setdefault(min(parts - 1, done * parts // max(1, whole)), []).append(k)
        done += k.bytes
    return list(found.values())


def renumber_by_launch(launches: Sequence[Launch]) -> tuple[Kernel, ...]:
    """Kernels in the order of their launches."""
    found: list[Kernel] = []
    for number, launch in enumerate(launches):
        for part in launch:
            for place, k in enumerate(part, start=1):
                own = replace(schedule_of(k), launch=number, chained=place if len(part) > 1 else 0)
                found.append(replace(k, id=len(found), schedule=own))
    return tuple(found)


def parts_of(launch: Sequence[Kernel]) -> list[list[Kernel]]:
    """The kernels of a launch: those of a chain together."""
    found: list[list[Kernel]] = []
    for k in launch:
        if schedule_of(k).chained > 1:
            found[-1].append(k)
        else:
            found.append([k])
    return found


def by_launch(kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, ...]]:
    """The kernels of each launch of a plan."""
    for _, inside in groupby(kernels, key=lambda k: schedule_of(k).launch):
        yield tuple(inside)


def together(kernels: Sequence[Kernel]) -> dict[int, tuple[int, int]]:
    """Kernel -> the first and last of its launch: what one of them uses, nobody else may have meanwhile."""
    return {k.id: (launch[0].id, launch[-1].id) for launch in by_launch(kernels) for k in launch}


def notes_of(plan: Plan) -> tuple[str, ...]:
    """How many launches a step has, and why they are fewer than its kernels."""
    launches = [parts_of(launch) for launch in by_launch(plan.kernels) if not schedule_of(launch[0]).owns]
    beside = sum(len(part) for parts in launches if len(parts) > 1 for part in parts)
    chained = sum(schedule_of(k).chained > 0 for k in plan.kernels)
    if not beside and not chained:
        return ()
    why = [f"{beside} wait for nothing of those that they share one with"] if beside else []
    why += [f"{chained} run one after the other in the same blocks, a row each"] if chained else []
    return (f"{len(plan.kernels)} kernels in {plan.regions} launches: {', '.join(why)}",)


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
        if any(schedule_of(k).owns for k in launch):
            check_loop(plan, launch)
            continue
        sound = len({(k.loop, schedule_of(k).threads) for k in launch}) == 1
        sound &= len(launch) == 1 or all(may_share(plan, k) for k in launch)
        sound &= all(is_chain(plan, part) for part in parts_of(launch))
        used = [(number, k) for number, part in enumerate(parts_of(launch)) for k in part]
        for i, (part, k) in enumerate(used):
            reads, writes = (buffers - work for buffers in reads_and_writes(k))
            for other, o in used[:i]:
                others, written = (buffers - work for buffers in reads_and_writes(o))
                same = part == other  # what one of a chain writes, those behind it may use, but no other in its place
                sound &= not any(meet(a, b) for a in writes for b in others | written if not (same and a == b))
                sound &= not any(meet(a, b) for a in reads for b in written if not (same and a == b))
        if not sound:
            raise PlanError(f"the plan is not sound: kernels {[k.id for k in launch]} cannot share a launch.")


def check_loop(plan: Plan, launch: Sequence[Kernel]) -> None:
    """PlanError where a launch is not a whole loop whose blocks own what we would let them own."""
    whole = launch[0].loop is not None and [k.id for k in plan.kernels if k.loop == launch[0].loop]
    found = whole == [k.id for k in launch] and scan.find_loop(plan, launch)
    if not isinstance(found, scan.Looping) or any(schedule_of(k).owns != found.owns for k in launch):
        raise PlanError(f"the plan is not sound: kernels {[k.id for k in launch]} are not a loop that is one kernel.")


def is_chain(plan: Plan, part: Part) -> bool:
    """Is it one kernel, or do the rows of all need nothing but the same rows?"""
    places = [schedule_of(k).chained for k in part]
    if len(part) == 1:
        return places == [0]
    rows = all(row_fusion.can_be_rows(plan, k) for k in part)
    return rows and places == list(range(1, 1 + len(part))) and row_fusion.is_sound(plan, part)
