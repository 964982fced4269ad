"""Thread partitioning by local search: which axis of each kernel is divided among the threads.

`ownership.py` decides which kernels need no barrier between them.  Kernels between two barriers form a region.  The
search minimizes an estimated time: work divided by parallelism, barriers, and bytes that move between cores.
The result does not depend on the number of threads at run time, and no choice changes a bit of a result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from heapq import heappop, heappush

from wholestep.compiler.backends.cpu.cost_model import Settings
from wholestep.compiler.backends.cpu.kernel_schedule import partition_among_threads
from wholestep.compiler.backends.cpu.partition.cache_order import delay_weight_gradients, schedule_late
from wholestep.compiler.backends.cpu.partition.memory_barriers import insert_memory_barriers
from wholestep.compiler.backends.cpu.partition.ownership import KernelAccesses, kernel_granule, needs_no_barrier
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.bodies import Dot, Window
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Kind, Space


class ThreadPartitioner:
    def __init__(
        self, kernels: Sequence[Kernel], buffers: Sequence[Buffer], sizes: Mapping[str, int], settings: Settings
    ) -> None:
        self.kernels, self.buffers, self.sizes = kernels, buffers, sizes
        self.settings, self.prices = settings, settings.prices
        self.touches = [KernelAccesses(k, buffers) for k in kernels]
        self.options = [t.options() for t in self.touches]
        self.edges = self._edges()
        self.crossings = [
            (i, j, b) for j, edges in enumerate(self.edges) for i, b in edges if b in self.touches[i].written_ids
        ] + self._loop_carried_buffers()
        self.incident: list[list[tuple[int, int, int]]] = [[] for _ in kernels]
        for c in self.crossings:
            self.incident[c[0]].append(c)
            self.incident[c[1]].append(c)
        self.edges_to: list[list[tuple[int, int]]] = [[] for _ in kernels]  # the same edges, indexed by their source
        for j, edges in enumerate(self.edges):
            for i, b in edges:
                self.edges_to[i].append((j, b))
        self.later = [sorted({j for j, _ in edges}) for edges in self.edges_to]
        self.free = cache(self._free)
        self.parallelism = cache(self._parallelism)
        self.work = [self._work(i) for i in range(len(kernels))]

    def _edges(self) -> list[list[tuple[int, int]]]:
        """The dependences of each kernel: (earlier kernel, buffer) pairs of which one writes the buffer."""
        touching: dict[int, list[int]] = {}
        writing: dict[int, list[int]] = {}
        edges: list[list[tuple[int, int]]] = []
        for j, v in enumerate(self.touches):
            dependences = [(i, b) for b in v.read_ids for i in writing.get(b, ())]
            dependences += [(i, b) for b in v.written_ids for i in touching.get(b, ())]
            edges.append(sorted(set(dependences)))
            for b in v.read_ids | v.written_ids:
                touching.setdefault(b, []).append(j)
            for b in v.written_ids:
                writing.setdefault(b, []).append(j)
        return edges

    def _loop_carried_buffers(self) -> list[tuple[int, int, int]]:
        """(writer, reader, buffer) of states: what one step leaves in the caches for the next one."""
        reading: dict[int, list[int]] = {}
        for j, v in enumerate(self.touches):
            for b in v.read_ids:
                reading.setdefault(b, []).append(j)
        return [
            (i, j, b)
            for i, u in enumerate(self.touches)
            for b in sorted(u.written_ids)
            if self.buffers[b].space in (Space.STATE, Space.COPY)
            for j in reading.get(b, ())
            if j != i
        ]

    def _free(self, i: int, si: int | None, j: int, sj: int | None, buffer: int) -> bool:
        return needs_no_barrier(self.touches[i], si, self.touches[j], sj, buffer)

    # -- regions and price -----------------------------------------------------------------------------------------
    def region(self, j: int, split: Sequence[int | None], regions: Sequence[int]) -> int:
        """The region of a kernel, given the regions of the kernels before it."""
        edges = self.edges[j]
        return max((regions[i] + (not self.free(i, split[i], j, split[j], b)) for i, b in edges), default=0)

    def regions(self, split: Sequence[int | None]) -> list[int]:
        out: list[int] = []
        for j in range(len(self.edges)):
            out.append(self.region(j, split, out))
        return out

    def regions_after(
        self, kernels: Iterable[int], split: Sequence[int | None], regions: list[int]
    ) -> list[tuple[int, int]]:
        """Update the regions incrementally after some kernels changed: only their dependents are visited.

        Returns the kernels whose region changed, with their old regions.
        """
        changed, todo = [], sorted({j for i in kernels for j in (i, *self.later[i])})  # ascending, hence a valid heap
        while todo:
            j = heappop(todo)
            region = self.region(j, split, regions)
            if region != regions[j]:
                changed.append((j, regions[j]))
                regions[j] = region
                for later in self.later[j]:
                    heappush(todo, later)
        return changed

    def removes_barrier(self, i: int, split: Sequence[int | None], other: int | None) -> bool:
        """Would another split of kernel i make a barrier before or after it unnecessary?"""
        current = split[i]
        return any(
            self.free(j, split[j], i, other, b) and not self.free(j, split[j], i, current, b) for j, b in self.edges[i]
        ) or any(
            self.free(i, other, j, split[j], b) and not self.free(i, current, j, split[j], b)
            for j, b in self.edges_to[i]
        )

    def _work(self, i: int) -> dict[int | None, float]:
        """Estimated seconds of a kernel under each of its splits."""
        k, p = self.kernels[i], self.prices
        seconds = k.flops * (p.flop if k.kind in (Kind.DOT, Kind.CALL, Kind.WINDOW) else p.point) + k.bytes * p.byte
        return {s: seconds / self.parallelism(i, s) + self._repeated_reads_cost(i, s) for s in self.options[i]}

    def _repeated_reads_cost(self, i: int, split: int | None) -> float:
        """Tie-breaker between splits of a product with equal work: prefer to divide the larger operand."""
        dot = self.kernels[i].body
        if isinstance(dot, Window) and split is not None:
            return self._weight_copy_cost(dot, split)
        if not isinstance(dot, Dot) or split is None:
            return 0.0
        read_by_all = [x.buffer for x in (dot.a, dot.b) if all(a != split for i in x.index for a, _ in i.terms)]
        return sum(self.buffers[b].bytes for b in read_by_all) * self.prices.repeated_byte

    def _weight_copy_cost(self, window: Window, split: int) -> float:
        """Threads that share images each pack the whole weight; threads that share channels each gather all images."""
        read_by_all = (o.load.buffer for o in window.operands if (o.name == "weight") == (split == 0))
        return sum(self.buffers[b].bytes for b in read_by_all) * self.prices.byte

    def _parallelism(self, i: int, split: int | None) -> float:
        if split is None:
            return 1.0
        extent = self.kernels[i].axes[split]
        count = max(1, -(-evaluate(extent, self.sizes) // kernel_granule(self.kernels[i], split)))
        return max(1.0, count / -(-count // self.prices.threads))

    def price(self, split: Sequence[int | None]) -> float:
        # All threads meet at each barrier, so a region takes as long as its work, divided as its kernels permit.
        total = sum(work[s] for work, s in zip(self.work, split, strict=True))
        total += max(self.regions(split), default=0) * self.prices.barrier
        return total + sum(self.crossing_cost(i, j, b, split) for i, j, b in self.crossings)

    def share(self, i: int, split: Sequence[int | None]) -> float:
        """The part of the price that depends on the split of one kernel, without barriers."""
        return self.work[i][split[i]] + sum(self.crossing_cost(*c, split) for c in self.incident[i])

    def crossing_cost(self, i: int, j: int, b: int, split: Sequence[int | None]) -> float:
        if self.free(i, split[i], j, split[j], b):
            return 0.0
        sj = split[j]
        share = self.parallelism(j, sj) if sj is not None and self.touches[j].traversals(sj, b) else 1.0
        return self.buffers[b].bytes / share * self.prices.crossing_byte

    # -- search ----------------------------------------------------------------------------------------------------
    def starts(self) -> list[list[int | None]]:
        def size(i: int, s: int | None) -> int:
            return 0 if s is None else evaluate(self.kernels[i].axes[s], self.sizes)

        first = [o[0] for o in self.options]
        last = [o[-1] for o in self.options]
        largest = [max(o, key=lambda s: size(i, s)) for i, o in enumerate(self.options)]
        return [first, last, largest]

    def descend(self, start: list[int | None]) -> tuple[float, list[int | None]]:
        """Local search: change the split of one kernel at a time while the price falls."""
        attempt = Attempt(self, start)
        order, improved = list(range(len(start))), True
        while improved:
            improved = False
            for i in order:
                for s in self.options[i]:
                    improved |= s != attempt.split[i] and attempt.change(i, s)
            order.reverse()  # a change favours the same split in its neighbours: propagate in both directions
        return self.price(attempt.split), attempt.split

    def best_split(self) -> list[int | None]:
        """Long plans are searched in pieces: a change moves all later barriers, so the search is quadratic."""
        piece = self.settings.piece
        if len(self.kernels) <= piece:
            return min((self.descend(s) for s in self.starts()), key=lambda candidate: candidate[0])[1]
        pieces = [self.kernels[i : i + piece] for i in range(0, len(self.kernels), piece)]
        return [
            s for part in pieces for s in ThreadPartitioner(part, self.buffers, self.sizes, self.settings).best_split()
        ]

    def search(self) -> list[Kernel]:
        split = self.best_split()
        schedule = delay_weight_gradients(self, split, insert_memory_barriers(self, split))
        if self.settings.frugal:
            schedule_late(self, split, schedule)
        chosen = [
            partition_among_threads(k, s, 1 if s is None else kernel_granule(k, s), r)
            for k, s, r in zip(self.kernels, split, schedule.regions, strict=True)
        ]
        return [chosen[i] for i in schedule.order()]


class Attempt:
    """A choice of splits that is improved stepwise.  One change adds or removes at most two barriers on any path."""

    def __init__(self, splitter: ThreadPartitioner, start: list[int | None]) -> None:
        self.splitter, self.split = splitter, [*start]
        self.regions = splitter.regions(start)
        self.sizes = Counter(self.regions)  # region -> number of kernels in it, without empty regions
        self.unseen: set[int] = set()  # kernels that changed since the regions were updated

    def change(self, i: int, split: int | None) -> bool:
        """Change the split of kernel i if that is cheaper.  Counts barriers only if they can decide the comparison."""
        barrier, before = self.splitter.prices.barrier, self.split[i]
        cost = -self.splitter.share(i, self.split)
        self.split[i] = split
        cost += self.splitter.share(i, self.split)
        if cost + 2 * barrier < -1e-9:
            self.unseen.add(i)
            return True
        self.split[i] = before
        may_pay = cost < -1e-9 or self.splitter.removes_barrier(i, self.split, split)
        return may_pay and cost - 2 * barrier < -1e-9 and self.try_change(i, split, cost)

    def try_change(self, i: int, split: int | None, cost: float) -> bool:
        """Change kernel i, count the barriers, and undo the change if they cost more than it saves."""
        self.update(self.unseen)
        self.unseen.clear()
        before, count = self.split[i], len(self.sizes)
        self.split[i] = split
        changed = self.update([i])
        if cost + (len(self.sizes) - count) * self.splitter.prices.barrier < -1e-9:
            return True
        self.split[i] = before
        self.recount((self.regions[j], old) for j, old in changed)
        for j, old in reversed(changed):
            self.regions[j] = old
        return False

    def update(self, kernels: Iterable[int]) -> list[tuple[int, int]]:
        changed = self.splitter.regions_after(kernels, self.split, self.regions)
        self.recount((old, self.regions[j]) for j, old in changed)
        return changed

    def recount(self, moves: Iterable[tuple[int, int]]) -> None:
        for old, new in moves:
            self.sizes[old] -= 1
            self.sizes[new] += 1
            if not self.sizes[old]:
                del self.sizes[old]


def partition_kernels(
    kernels: Sequence[Kernel], buffers: Sequence[Buffer], sizes: Mapping[str, int], settings: Settings
) -> list[Kernel]:
    """Choose the split of every kernel and order the kernels by region."""
    chosen = ThreadPartitioner(kernels, buffers, sizes, settings).search()
    return [replace(k, id=i) for i, k in enumerate(chosen)]
