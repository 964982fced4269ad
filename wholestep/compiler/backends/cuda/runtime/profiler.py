"""Times of kernels: graphs that run one kernel after the other, with an event behind each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from wholestep.compiler.backends.cpu.runtime.profiler import KernelEvent as Noted
from wholestep.compiler.backends.cuda.driver.cuda_graph import CudaGraph, Nodes
from wholestep.compiler.backends.cuda.driver.driver import CudaEvent, Gpu
from wholestep.compiler.backends.cuda.runtime.launch_list import Order, Resource
from wholestep.compiler.plan.model.kernel import Kernel, Plan

Moments = list[
    tuple[Sequence[Kernel], CudaEvent]
]  # of one graph: kernels, and the moment behind; the first is before all


class GpuKernelTimer:
    """When the kernels of launches began and ended."""

    row = "GPU"  # what runs them

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self.moments = gpu, Moments()  # of the graph that is built
        self._found: list[Noted] = []
        self._launched: tuple[Moments, float] | None = None  # of the last launch, until it is read; when it began

    def clear(self) -> None:
        """Begin anew."""
        self._found, self._launched = [], None

    def graph(self, *given: Any) -> CudaGraph:
        """A graph, given what any is, of which the order is `InTurn`."""
        return TimedGraph(self, *given)

    def begins(self, moments: Moments) -> None:
        """A graph is about to be launched: the launches before are done, and read, since it may be one of theirs."""
        self._read()
        self._launched = moments, time.perf_counter()

    def take(self) -> list[Noted]:
        """What ran since `clear`; waits for it.  Kernels that share a launch have its time in shares of their work."""
        self._read()
        return self._found

    def _read(self) -> None:
        self._gpu.wait()
        if self._launched is None:
            return
        (moments, at), self._launched = self._launched, None
        for (_, before), (kernels, behind) in pairwise(moments):
            taken, whole = 1e-3 * behind.milliseconds_since(before), sum(map(_work, kernels))
            for kernel in kernels:
                end = at + taken * _work(kernel) / whole
                self._found.append(Noted(kernel.id, 0, at, end))
                at = end


def _work(kernel: Kernel) -> float:
    """What a kernel's share of a launch follows: an operation takes as long as a sixteenth of a byte."""
    return 1 + kernel.bytes + kernel.flops / 16


class TimedGraph(CudaGraph):
    """A graph whose launches a recorder reads."""

    def __init__(self, recorder: GpuKernelTimer, *given: Any) -> None:
        self._recorder, self._moments = recorder, Moments()
        recorder.moments = self._moments
        super().__init__(*given)

    def launch(self) -> None:
        self._recorder.begins(self._moments)
        super().launch()


class InTurn(Order):
    """An order without anything side by side: each kernel is followed by a moment that is noted."""

    def __init__(self, nodes: Nodes, plan: Plan, recorder: GpuKernelTimer, gpu: Gpu) -> None:
        super().__init__(nodes, plan)
        self._moments, self._gpu = recorder.moments, gpu
        self._last = self._event((), [])

    def _event(self, kernels: Sequence[Kernel], after: Sequence[int]) -> int:
        event = CudaEvent(self._gpu, timed=True)
        self._moments.append((kernels, event))
        return self._nodes.event(event, after)

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
        node = self._nodes.kernel(function, grid, threads, given, [self._last], shared, together)
        self._last = self._event(self.current, [node])

    def library(self, record: Callable[[int], None], reads: set[Resource], writes: set[Resource]) -> None:
        node = self._nodes.captured(record, [self._last])
        self._last = self._event(self.current, [node])
