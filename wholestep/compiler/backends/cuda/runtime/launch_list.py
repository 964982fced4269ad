"""What a step is on a GPU: its kernels in order, with their addresses, ready to be put into a stream."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from wholestep.compiler.backends.cuda.driver.cuda_graph import Nodes
from wholestep.compiler.backends.cuda.driver.driver import Gpu
from wholestep.compiler.backends.cuda.libraries import cublas, cudnn, cudnn_graphs
from wholestep.compiler.backends.cuda.libraries.gemm_library import product_of
from wholestep.compiler.backends.cuda.runtime.collectives import Collectives
from wholestep.compiler.backends.cuda.runtime.program_memory import DIMS, HEAD
from wholestep.compiler.backends.gpu.kernel_schedule import EXCHANGE, GRAPH, LIBRARY, schedule_of, sort_grid_blocks
from wholestep.compiler.backends.gpu.render.source import GpuSource, Rendered
from wholestep.compiler.backends.gpu.schedule import COUNTERS
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.bodies import Scatter
from wholestep.compiler.plan.model.kernel import Kernel, Plan, Space
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import PlanError


def write_record(
    record: AnyArray, plan: Plan, sizes: Mapping[str, int], slots: Sequence[float], head: Sequence[int]
) -> None:
    """Fill a record of `ws_step`, 64-bit words: seed, step, position and rows, then sizes and slots."""
    for i, word in enumerate(head):
        record[i] = word
    for i, symbol in enumerate(plan.symbols):
        record[4 + i] = sizes[symbol]
    if slots:
        record[HEAD : HEAD + len(slots)].view(np.float64)[:] = slots


LIBRARIES = "libraries"  # run one after the other: two of them would only take turns
MULTIPROCESSORS = "multiprocessors"  # of kernels whose blocks wait for each other: two of them would wait for ever
Resource = int | str  # a buffer, or something else that kernels share
RECORD = "record"  # of a step, which every kernel reads


class Order:
    """A graph in which a kernel waits for those whose results it reads and for those that still use what it writes.

    Where all stand `in_line`, each waits for the one before it.
    """

    def __init__(self, nodes: Nodes, plan: Plan, in_line: bool = False) -> None:
        self._nodes, self._overlapping, self._in_line = nodes, overlaps_of(plan), in_line
        self.current: Sequence[Kernel] = ()  # the kernels of the plan that are put in
        self._written: dict[Resource, int] = {}
        self._read: dict[Resource, list[int]] = {}
        self._before: list[int] = []  # of each node a set of bits: all that are done before it

    def kernel(
        self,
        function: Any,
        grid: tuple[int, int],
        threads: int,
        given: Sequence[Any],
        reads: set[Resource],
        writes: set[Resource],
        shared: int = 0,
        together: bool = False,
    ) -> None:
        after = self._after(reads, writes)
        node = self._nodes.kernel(function, grid, threads, given, after, shared, together)
        self._finish(node, after, reads, writes)

    def library(self, record: Callable[[int], None], reads: set[Resource], writes: set[Resource]) -> None:
        """What a library puts into a stream."""
        after = self._after(reads, writes)
        self._finish(self._nodes.captured(record, after), after, reads, writes)

    def _after(self, reads: set[Resource], writes: set[Resource]) -> list[int]:
        if self._in_line:
            return [len(self._before) - 1] if self._before else []
        wanted: set[int] = set()
        for resource in reads | writes:
            for other in self._overlapping.get(resource, (resource,)):
                if other in self._written:
                    wanted.add(self._written[other])
                if resource in writes:
                    wanted.update(self._read.get(other, ()))
        return self._nearest(wanted)

    def _finish(self, node: int, after: Sequence[int], reads: set[Resource], writes: set[Resource]) -> None:
        before = 0
        for n in after:
            before |= self._before[n] | 1 << n
        self._before.append(before)
        for resource in writes:
            self._written[resource], self._read[resource] = node, []
        for resource in reads - writes:
            self._read.setdefault(resource, []).append(node)

    def _nearest(self, wanted: set[int]) -> list[int]:
        """Without those that another one of them waits for."""
        covered = 0
        for n in wanted:
            covered |= self._before[n]
        return sorted(n for n in wanted if not covered >> n & 1)


def in_second_place(resources: set[Resource], elsewhere: frozenset[int]) -> set[Resource]:
    """The same, with names of their own for buffers that have a second place."""
    return {f"second {r}" if r in elsewhere else r for r in resources} if elsewhere else resources


def overlaps_of(plan: Plan) -> dict[Resource, tuple[Resource, ...]]:
    """Buffer of the arena, or workspace -> those that share bytes with it, itself among them."""
    held: list[tuple[Resource, int, int]] = [
        (b.id, b.offset, b.offset + b.bytes) for b in plan.buffers if b.space is Space.ARENA
    ]
    for k in plan.kernels:
        if own := schedule_of(k).workspace:
            start = schedule_of(k).workspace_at
            held.append((workspace_of(k), start, start + own))
    return {a: tuple(b for b, low, high in held if start < high and low < end) for a, start, end in held}


def workspace_of(kernel: Kernel) -> str:
    return f"workspace of {kernel.id}"


@dataclass(frozen=True)
class Placed:
    """Where the kernels of one step find things."""

    address: Callable[[int], int]  # of a buffer
    step: int  # its record
    scratch: int
    counters: int
    arena: int  # where the workspaces of libraries are, each in its place
    elsewhere: frozenset[int] = frozenset()  # buffers in a second place, which steps before do not use


@dataclass(frozen=True)
class Gathering:
    """A launch of a step in whose place another one stands, which gathers the rows of the next step besides."""

    number: int  # of the launch
    launch: Rendered
    function: Any
    given: tuple[int, int] = (0, 0)  # the record of the next step, and where its rows are
    writes: frozenset[Resource] = frozenset()


@dataclass(frozen=True)
class Launches:
    """The kernels of a plan on a GPU."""

    gpu: Gpu
    plan: Plan
    source: GpuSource
    functions: Mapping[str, Any]
    collectives: Collectives

    def __post_init__(self) -> None:
        if len(self.plan.symbols) > DIMS:
            raise PlanError(f"a plan for a GPU has at most {DIMS} symbolic sizes; received {len(self.plan.symbols)}.")
        most = max((schedule_of(k).counters for k in self.plan.kernels), default=0)
        if most > COUNTERS:
            raise PlanError(f"a sum is cut for {most} blocks; at most {COUNTERS} can be counted.")

    def add(self, order: Order, place: Placed, sizes: Mapping[str, int], gathering: Gathering | None = None) -> None:
        """Put the launches of one step into a graph; sizes are those of a call, where a library is told them."""
        for _, inside in groupby(self.source.launches, key=lambda launch: launch.kernels[0][0].loop):
            launches = list(inside)
            # Launches behind the end of a loop that is shorter than at capacity do nothing.
            turns = self._turns(launches[0])
            for turn in turns:
                for launch in launches:
                    if gathering is not None and launch is self.source.launches[gathering.number]:
                        order.current = [kernel for kernel, _ in launch.kernels]
                        self._add_gathering(order, place, gathering)
                        continue
                    for kernel, _ in launch.kernels:
                        order.current = (kernel,)
                        if schedule_of(kernel).form == LIBRARY:
                            self._add_product(order, place, kernel, sizes)
                        elif schedule_of(kernel).form == GRAPH:
                            self._add_graph(order, place, kernel, sizes)
                        elif schedule_of(kernel).form == EXCHANGE:
                            self._add_exchange(order, place, kernel, sizes)
                    order.current = [kernel for kernel, _ in launch.kernels]
                    if launch.function:
                        self._add_launch(order, place, launch, turn)

    def _add_gathering(self, order: Order, place: Placed, gathering: Gathering) -> None:
        """The launch that gathers rows of the next step besides."""
        launch, (next, data) = gathering.launch, gathering.given
        given = launch.arguments(place.address, place.step, place.scratch, place.counters, 0)
        reads, writes = self._accesses_of_launch(place, launch)
        more = [ctypes.c_void_p(next), ctypes.c_void_p(data)]
        order.kernel(gathering.function, launch.grid, launch.threads, [*given, *more], reads, writes | gathering.writes)

    def _add_launch(self, order: Order, place: Placed, launch: Rendered, turn: int) -> None:
        given = launch.arguments(place.address, place.step, place.scratch, place.counters, turn)
        reads, writes = self._accesses_of_launch(place, launch)
        if launch.before:
            self._add_sorting(order, place, launch, given)
        if launch.together:
            writes.add(MULTIPROCESSORS)
        function = self.functions[launch.function]
        order.kernel(function, launch.grid, launch.threads, given, reads, writes, launch.shared, launch.together)

    def _turns(self, launch: Rendered) -> range:
        """How often a launch is made in a step: a graph has as many as the longest loop, which may be one kernel."""
        loop = launch.kernels[0][0].loop
        return range(1 if loop is None or launch.together else evaluate(self.plan.loops[loop].length, self.plan.sizes))

    def _accesses_of_launch(self, place: Placed, launch: Rendered) -> tuple[set[Resource], set[Resource]]:
        """What a launch reads and writes."""
        reads: set[Resource] = {RECORD}
        writes: set[Resource] = set()
        for kernel, _ in launch.kernels:
            read, written = (in_second_place(found, place.elsewhere) for found in self._accesses_of_kernel(kernel))
            reads, writes = reads | read, writes | written
        return reads, writes

    def _add_sorting(self, order: Order, place: Placed, launch: Rendered, given: Sequence[Any]) -> None:
        """What a scatter has done before: it waits for nothing but the indices."""
        ((kernel, _),) = launch.kernels
        assert isinstance(kernel.body, Scatter)
        reads = {RECORD, *in_second_place({kernel.body.index.buffer}, place.elsewhere)}
        grid, writes = (sort_grid_blocks(schedule_of(kernel)), 1), {self._scratch_of(kernel)}
        order.kernel(self.functions[launch.before], grid, launch.threads, given, reads, set(writes))

    def _add_product(self, order: Order, place: Placed, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        """A product of the library, into its target or into scratch memory."""
        found, schedule = product_of(self.plan, kernel, sizes), schedule_of(kernel)
        scratch = place.scratch + schedule.scratch_at
        a, b = (place.address(x.buffer) + x.offset * x.dtype.size for x in (found.a, found.b))
        c = scratch if found.c.buffer < 0 else place.address(found.c.buffer) + found.c.offset * found.c.dtype.size
        operands = [found.a, found.b] if found.bias is None else [found.a, found.b, found.bias]
        bias = 0 if found.bias is None else place.address(found.bias.buffer) + found.bias.offset * found.bias.dtype.size
        reads: set[Resource] = in_second_place({x.buffer for x in operands}, place.elsewhere)
        target: Resource = self._scratch_of(kernel) if found.c.buffer < 0 else found.c.buffer
        writes: set[Resource] = {LIBRARIES, workspace_of(kernel), target}
        workspace = place.arena + schedule.workspace_at
        order.library(lambda stream: cublas.run_product(found, a, b, c, workspace, stream, bias), reads, writes)

    def _add_graph(self, order: Order, place: Placed, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        """A graph of cuDNN."""
        found, schedule = cudnn_graphs.call_of(self.plan, kernel, sizes), schedule_of(kernel)
        scratch, workspace = place.scratch + schedule.scratch_at, place.arena + schedule.workspace_at

        def named(buffers: set[int]) -> set[Resource]:
            return {self._scratch_of(kernel) if b == cudnn_graphs.SCRATCH else b for b in buffers}

        addresses = {
            p.name: (scratch if p.buffer == cudnn_graphs.SCRATCH else place.address(p.buffer)) + p.offset
            for p in found.places
        }
        order.library(
            lambda stream: cudnn.run_graph(found.description, addresses, workspace, stream),
            in_second_place(named(found.read), place.elsewhere),
            in_second_place(named(found.written), place.elsewhere) | {LIBRARIES, workspace_of(kernel)},
        )

    def _add_exchange(self, order: Order, place: Placed, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        """What ranks send each other, and their sums."""
        room = place.arena + schedule_of(kernel).workspace_at, workspace_of(kernel)
        self.collectives.add(
            order, kernel, place.address, room, sizes, lambda used: in_second_place(used, place.elsewhere)
        )

    def _accesses_of_kernel(self, kernel: Kernel) -> tuple[set[Resource], set[Resource]]:
        """What a kernel reads and writes: buffers, and scratch memory."""
        reads: set[Resource] = {load.buffer for load, _ in kernel.body.reads()}
        writes: set[Resource] = {load.buffer for load in kernel.body.stores()}
        schedule = schedule_of(kernel)
        if schedule.scratch:
            writes.add(self._scratch_of(kernel))
        return reads, writes

    def _scratch_of(self, kernel: Kernel) -> str:
        return "scratch" if self._shares_scratch else f"scratch of {kernel.id}"

    @cached_property
    def _shares_scratch(self) -> bool:
        """Do kernels have scratch memory or counters in the same place?"""
        used = [schedule_of(k) for k in self.plan.kernels if schedule_of(k).scratch]
        end = max((s.scratch_at + s.scratch for s in used), default=0)
        return sum(s.scratch for s in used) > end or sum(s.counters for s in used) > COUNTERS

    @property
    def count(self) -> int:
        """Launches of one step."""
        return sum(len(self._turns(launch)) for launch in self.source.launches)
