"""Kernel times: serialised graphs with a timing event after each launch; NVTX ranges if a profiler is attached."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any

from wholestep.compiler.backend import Epoch, StepRange
from wholestep.compiler.backends.cpu.runtime.profiler import KernelEvent as Noted
from wholestep.compiler.backends.cuda.driver.cuda_graph import CudaGraph, Nodes
from wholestep.compiler.backends.cuda.driver.driver import INSTALL, CudaEvent, Gpu
from wholestep.compiler.backends.cuda.runtime.launch_handles import CudaLaunch
from wholestep.compiler.backends.cuda.runtime.program import CudaProgram
from wholestep.compiler.backends.gpu.launch_order import Order, Resource
from wholestep.compiler.plan.model.kernel import Kernel, Plan

# The launches of one graph: the kernels of each and the event after it; the first event precedes all launches.
Moments = list[tuple[Sequence[Kernel], CudaEvent]]


class GpuKernelTimer:
    """Start and end times of kernels."""

    row = "GPU"  # row of the kernels in a trace

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self.moments = gpu, Moments()  # events of the graph under construction
        self._events: list[Noted] = []
        self._launched: tuple[Moments, float] | None = (
            None  # events and host start time of the last launch, until they are read
        )

    def clear(self) -> None:
        """Discards all times."""
        self._events, self._launched = [], None

    def graph(self, *arguments: Any) -> CudaGraph:
        """Adds a graph to be timed; its order must be a `SerialOrder`."""
        return TimedGraph(self, *arguments)

    def begins(self, moments: Moments) -> None:
        """Reads the times of the earlier launch, whose events this one may reuse, and records the start of this one."""
        self._read()
        self._launched = moments, time.perf_counter()

    def take(self) -> list[Noted]:
        """Times since `clear`, after waiting.  Kernels of a fused launch share its time in proportion to their work."""
        self._read()
        return self._events

    def _read(self) -> None:
        self._gpu.wait()
        if self._launched is None:
            return
        (moments, at), self._launched = self._launched, None
        for (_, before), (kernels, after) in pairwise(moments):
            seconds, total_work = 1e-3 * after.milliseconds_since(before), sum(map(_work, kernels))
            for kernel in kernels:
                end = at + seconds * _work(kernel) / total_work
                self._events.append(Noted(kernel.id, 0, at, end))
                at = end


def _work(kernel: Kernel) -> float:
    """Weight of a kernel in a fused launch: a FLOP counts as a sixteenth of a byte."""
    return 1 + kernel.bytes + kernel.flops / 16


class TimedGraph(CudaGraph):
    """A graph whose launches a timer reads."""

    def __init__(self, recorder: GpuKernelTimer, *arguments: Any) -> None:
        self._recorder, self._moments = recorder, Moments()
        recorder.moments = self._moments
        super().__init__(*arguments)

    def launch(self) -> None:
        self._recorder.begins(self._moments)
        super().launch()


class SerialOrder(Order):
    """A serialised order: each launch is followed by a timing event."""

    def __init__(self, nodes: Nodes, plan: Plan, recorder: GpuKernelTimer, gpu: Gpu) -> None:
        super().__init__(nodes, plan)
        self._graph, self._moments, self._gpu = nodes, recorder.moments, gpu
        self._last = self._event((), [])

    def _event(self, kernels: Sequence[Kernel], after: Sequence[int]) -> int:
        event = CudaEvent(self._gpu, timed=True)
        self._moments.append((kernels, event))
        return self._graph.event(event, after)

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
        node = self._nodes.kernel(function, grid, threads, arguments, [self._last], shared, together)
        self._last = self._event(self.current, [node])

    def library(self, record: Callable[[int], None], reads: set[Resource], writes: set[Resource]) -> None:
        node = self._nodes.capture(record, [self._last])
        self._last = self._event(self.current, [node])


# -- NVTX --------------------------------------------------------------------------------------------------------------


@cache
def _nvtx() -> Any:
    """The module; None, with a warning, if it is not installed."""
    try:
        import nvtx
    except ImportError:
        warnings.warn(
            f"a profiler is attached, and nvtx, which would name steps for it, is missing: {INSTALL}.",
            stacklevel=2,
        )
        return None
    return nvtx


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """Names the enclosed work in a profiler."""
    nvtx = _nvtx()
    if nvtx is None:
        yield
        return
    nvtx.push_range(name, domain="wholestep")
    try:
        yield
    finally:
        nvtx.pop_range(domain="wholestep")


class MarkedProgram(CudaProgram):
    """A program whose launches and epoch slices are NVTX ranges."""

    @property
    def _title(self) -> str:
        return "train" if self.plan.updated else "compute"

    def launch(self, sizes: Mapping[str, int]) -> CudaLaunch:
        """Launches a step inside a range: "train step 12, batch=64"."""
        size_text = ", ".join(f"{name}={size}" for name, size in sizes.items())
        with nvtx_range(f"{self._title} step {self._state.step}, {size_text}"):
            return super().launch(sizes)

    def epoch(self, epoch: Epoch) -> Iterator[StepRange]:
        """Runs an epoch, each slice inside a range."""
        slices = super().epoch(epoch)
        while True:
            with nvtx_range(f"{self._title} epoch {epoch.number}, from step {self._state.step}"):
                steps = next(slices, None)
            if steps is None:
                return
            yield steps
