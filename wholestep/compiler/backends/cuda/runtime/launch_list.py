"""The launches of a step: kernels and library calls with their addresses, added to a CUDA graph with dependencies."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from wholestep.compiler.backends.cuda.driver.driver import Gpu
from wholestep.compiler.backends.cuda.libraries import cublas, cudnn, library_calls
from wholestep.compiler.backends.cuda.runtime.collectives import Collectives
from wholestep.compiler.backends.gpu.grids.gemm_library import product_of, sizes_of_iteration
from wholestep.compiler.backends.gpu.grids.scatter import Preparation
from wholestep.compiler.backends.gpu.kernel_schedule import COUNTERS, Form, schedule_of
from wholestep.compiler.backends.gpu.launch_order import (
    LIBRARIES,
    MULTIPROCESSORS,
    RECORD,
    Order,
    Resource,
    with_double_buffers,
    workspace_of,
)
from wholestep.compiler.backends.gpu.program_memory import DIMS
from wholestep.compiler.backends.gpu.render.source import GpuSource, Rendered
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.bodies import Scatter
from wholestep.compiler.plan.model.kernel import Kernel, Plan
from wholestep.errors import PlanError


@dataclass(frozen=True)
class StepAddresses:
    """Addresses for the kernels of one step."""

    address: Callable[[int], int]  # address of a buffer
    step: int  # address of the step's record
    scratch: int
    counters: int
    arena: int  # base address of library workspaces
    # double-buffered inputs whose second buffer this step reads; earlier steps do not use that buffer
    elsewhere: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Gathering:
    """A launch that replaces a step's launch and also gathers the rows of the next step."""

    number: int  # index of the replaced launch
    launch: Rendered
    function: Any
    arguments: tuple[int, int] = (0, 0)  # addresses of the next step's record and of the data record
    writes: frozenset[Resource] = frozenset()


@dataclass(frozen=True)
class Launches:
    """The launches of a plan on a GPU."""

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
            raise PlanError(f"a sum is split over {most} blocks; there are {COUNTERS} arrival counters.")

    def add(
        self, order: Order, place: StepAddresses, sizes: Mapping[str, int], gathering: Gathering | None = None
    ) -> None:
        """Adds the launches of one step to a graph; `sizes` are the sizes of this call, if a library needs them."""
        for _, inside in groupby(self.source.launches, key=lambda launch: launch.kernels[0][0].loop):
            launches = list(inside)
            # Launches past the end of a loop that is shorter than at capacity return at once.
            iterations = self._iterations(launches[0])
            for iteration in iterations:
                for launch in launches:
                    if gathering is not None and launch is self.source.launches[gathering.number]:
                        order.current = [kernel for kernel, _ in launch.kernels]
                        self._add_gathering(order, place, gathering)
                        continue
                    for kernel, _ in launch.kernels:
                        order.current = (kernel,)
                        if schedule_of(kernel).form == Form.LIBRARY:
                            now = sizes_of_iteration(self.plan, kernel, sizes, iteration)
                            if now or not sizes:
                                self._add_product(order, place, kernel, now)
                        elif schedule_of(kernel).form == Form.GRAPH:
                            self._add_graph(order, place, kernel, sizes)
                        elif schedule_of(kernel).form == Form.EXCHANGE:
                            self._add_exchange(order, place, kernel, sizes)
                    order.current = [kernel for kernel, _ in launch.kernels]
                    if launch.function:
                        self._add_launch(order, place, launch, iteration)

    def _add_gathering(self, order: Order, place: StepAddresses, gathering: Gathering) -> None:
        """Adds the launch that also gathers the rows of the next step."""
        launch, (next, data) = gathering.launch, gathering.arguments
        arguments = launch.arguments(place.address, place.step, place.scratch, place.counters, 0)
        reads, writes = self._accesses_of_launch(place, launch)
        gather_arguments = [ctypes.c_void_p(next), ctypes.c_void_p(data)]
        order.kernel(
            gathering.function,
            launch.grid,
            launch.threads,
            [*arguments, *gather_arguments],
            reads,
            writes | gathering.writes,
        )

    def _add_launch(self, order: Order, place: StepAddresses, launch: Rendered, turn: int) -> None:
        arguments = launch.arguments(place.address, place.step, place.scratch, place.counters, turn)
        reads, writes = self._accesses_of_launch(place, launch)
        for name, step in launch.before:
            self._add_preparation(order, place, launch, arguments, name, step)
        if launch.together:
            writes.add(MULTIPROCESSORS)
        function = self.functions[launch.function]
        order.kernel(function, launch.grid, launch.threads, arguments, reads, writes, launch.shared, launch.together)

    def _iterations(self, launch: Rendered) -> range:
        """Iterations of a launch in a step: a graph has as many as the loop at capacity; a persistent loop has one."""
        loop = launch.kernels[0][0].loop
        return range(1 if loop is None or launch.together else evaluate(self.plan.loops[loop].length, self.plan.sizes))

    def _accesses_of_launch(self, place: StepAddresses, launch: Rendered) -> tuple[set[Resource], set[Resource]]:
        """Resources that a launch reads and writes."""
        reads: set[Resource] = {RECORD}
        writes: set[Resource] = set()
        for kernel, _ in launch.kernels:
            read, written = (with_double_buffers(used, place.elsewhere) for used in self._accesses_of_kernel(kernel))
            reads, writes = reads | read, writes | written
        return reads, writes

    def _add_preparation(
        self,
        order: Order,
        place: StepAddresses,
        launch: Rendered,
        arguments: Sequence[Any],
        name: str,
        step: Preparation,
    ) -> None:
        """Adds a launch before a scatter: steps of the sort depend on nothing but the indices."""
        ((kernel, _),) = launch.kernels
        assert isinstance(kernel.body, Scatter)
        read: set[Resource] = {kernel.body.index.buffer, *([kernel.body.updates.buffer] if step.reads_updates else [])}
        reads, writes = {RECORD, *with_double_buffers(read, place.elsewhere)}, {self._scratch_of(kernel)}
        order.kernel(self.functions[name], (step.blocks, 1), launch.threads, arguments, reads, set(writes))

    def _add_product(self, order: Order, place: StepAddresses, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        """Adds a cuBLASLt product, into its destination or into scratch memory."""
        product, schedule = product_of(self.plan, kernel, sizes), schedule_of(kernel)
        scratch = place.scratch + schedule.scratch_at
        a, b = (place.address(x.buffer) + x.offset * x.dtype.size for x in (product.a, product.b))
        c = (
            scratch
            if product.c.buffer < 0
            else place.address(product.c.buffer) + product.c.offset * product.c.dtype.size
        )
        operands = [product.a, product.b] if product.bias is None else [product.a, product.b, product.bias]
        bias = (
            0
            if product.bias is None
            else place.address(product.bias.buffer) + product.bias.offset * product.bias.dtype.size
        )
        reads: set[Resource] = with_double_buffers({x.buffer for x in operands}, place.elsewhere)
        target: Resource = self._scratch_of(kernel) if product.c.buffer < 0 else product.c.buffer
        writes: set[Resource] = {LIBRARIES, workspace_of(kernel), target}
        workspace = place.arena + schedule.workspace_at
        order.library(lambda stream: cublas.run_product(product, a, b, c, workspace, stream, bias), reads, writes)

    def _add_graph(self, order: Order, place: StepAddresses, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        """Adds a cuDNN graph."""
        library_call, schedule = library_calls.call_of(self.plan, kernel, sizes), schedule_of(kernel)
        scratch, workspace = place.scratch + schedule.scratch_at, place.arena + schedule.workspace_at

        def resources(buffers: set[int]) -> set[Resource]:
            return {self._scratch_of(kernel) if b == cudnn.SCRATCH else b for b in buffers}

        addresses = {
            p.name: (scratch if p.buffer == cudnn.SCRATCH else place.address(p.buffer)) + p.offset
            for p in library_call.places
        }
        order.library(
            lambda stream: cudnn.run_graph(library_call.description, addresses, workspace, stream),
            with_double_buffers(resources(library_call.reads), place.elsewhere),
            with_double_buffers(resources(library_call.writes), place.elsewhere) | {LIBRARIES, workspace_of(kernel)},
        )

    def _add_exchange(self, order: Order, place: StepAddresses, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        """Adds a collective: transfers between ranks, and their sums."""
        workspace = place.arena + schedule_of(kernel).workspace_at, workspace_of(kernel)
        self.collectives.add(
            order, kernel, place.address, workspace, sizes, lambda used: with_double_buffers(used, place.elsewhere)
        )

    def _accesses_of_kernel(self, kernel: Kernel) -> tuple[set[Resource], set[Resource]]:
        """Resources that a kernel reads and writes: buffers and scratch memory."""
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
        """Do kernels reuse the same scratch bytes or counters?"""
        schedules = [schedule_of(k) for k in self.plan.kernels if schedule_of(k).scratch]
        end = max((s.scratch_at + s.scratch for s in schedules), default=0)
        return sum(s.scratch for s in schedules) > end or sum(s.counters for s in schedules) > COUNTERS

    @property
    def count(self) -> int:
        """Launches per step."""
        return sum(len(self._iterations(launch)) for launch in self.source.launches)
