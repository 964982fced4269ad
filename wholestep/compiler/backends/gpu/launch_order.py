"""The order of a step's launches: dependencies from read, write and reuse hazards of buffers and other resources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.plan.model.kernel import Kernel, Plan, Space

LIBRARIES = "libraries"  # resource: library calls run one after the other, since each fills the GPU
MULTIPROCESSORS = "multiprocessors"  # resource of cooperative kernels: two at once could deadlock
Resource = int | str  # a buffer, or anything else that orders kernels
RECORD = "record"  # the step record, which every kernel reads


class GraphNodes(Protocol):
    """A graph of a vendor's driver under construction; a node is named by its index."""

    def kernel(
        self,
        function: Any,
        grid: tuple[int, int],
        threads: int,
        arguments: Sequence[Any],
        after: Sequence[int],
        shared: int = 0,
        together: bool = False,
    ) -> int:
        """Adds a kernel after other nodes; with `together`, all of its blocks must be resident at once."""

    def capture(self, record: Callable[[int], None], after: Sequence[int]) -> int:
        """Adds the work that a function enqueues into a stream, such as a library's kernels."""


class Order:
    """Adds launches to a graph with edges for their read-after-write, write-after-read and write-after-write hazards.

    With `in_line`, each launch depends on the one before it: a linear graph without forks and joins.
    """

    def __init__(self, nodes: GraphNodes, plan: Plan, in_line: bool = False) -> None:
        self._nodes, self._overlapping, self._in_line = nodes, overlaps_of(plan), in_line
        self.current: Sequence[Kernel] = ()  # the plan's kernels that are currently added
        self._written: dict[Resource, int] = {}
        self._read: dict[Resource, list[int]] = {}
        self._before: list[int] = []  # per node: bit set of all its ancestors

    def kernel(
        self,
        function: Any,
        grid: tuple[int, int],
        threads: int,
        arguments: Sequence[Any],
        reads: set[Resource],
        writes: set[Resource],
        shared: int = 0,
        together: bool = False,
    ) -> None:
        after = self._after(reads, writes)
        node = self._nodes.kernel(function, grid, threads, arguments, after, shared, together)
        self._finish(node, after, reads, writes)

    def library(self, record: Callable[[int], None], reads: set[Resource], writes: set[Resource]) -> None:
        """Adds the work that a library enqueues into a stream."""
        after = self._after(reads, writes)
        self._finish(self._nodes.capture(record, after), after, reads, writes)

    def _after(self, reads: set[Resource], writes: set[Resource]) -> list[int]:
        if self._in_line:
            return [len(self._before) - 1] if self._before else []
        predecessors: set[int] = set()
        for resource in reads | writes:
            for other in self._overlapping.get(resource, (resource,)):
                if other in self._written:
                    predecessors.add(self._written[other])
                if resource in writes:
                    predecessors.update(self._read.get(other, ()))
        return self._nearest(predecessors)

    def _finish(self, node: int, after: Sequence[int], reads: set[Resource], writes: set[Resource]) -> None:
        before = 0
        for n in after:
            before |= self._before[n] | 1 << n
        self._before.append(before)
        for resource in writes:
            self._written[resource], self._read[resource] = node, []
        for resource in reads - writes:
            self._read.setdefault(resource, []).append(node)

    def _nearest(self, predecessors: set[int]) -> list[int]:
        """Transitive reduction: drops nodes that another one of them already depends on."""
        ancestors = 0
        for n in predecessors:
            ancestors |= self._before[n]
        return sorted(n for n in predecessors if not ancestors >> n & 1)


def with_double_buffers(resources: set[Resource], elsewhere: frozenset[int]) -> set[Resource]:
    """The resources, with distinct names for the second buffer of double-buffered inputs."""
    return {f"second {r}" if r in elsewhere else r for r in resources} if elsewhere else resources


def overlaps_of(plan: Plan) -> dict[Resource, tuple[Resource, ...]]:
    """Arena buffer or workspace -> all that share bytes with it, including itself."""
    ranges: list[tuple[Resource, int, int]] = [
        (b.id, b.offset, b.offset + b.bytes) for b in plan.buffers if b.space is Space.ARENA
    ]
    for k in plan.kernels:
        if size := schedule_of(k).workspace:
            start = schedule_of(k).workspace_at
            ranges.append((workspace_of(k), start, start + size))
    return {a: tuple(b for b, low, high in ranges if start < high and low < end) for a, start, end in ranges}


def workspace_of(kernel: Kernel) -> str:
    return f"workspace of {kernel.id}"
