"""Times of kernels: a graph that runs one kernel after the other, with an event behind each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from wholestep.compiler.backends.cpu.recorder import Event as Noted
from wholestep.compiler.backends.cuda.driver import Event, Gpu, Nodes
from wholestep.compiler.backends.cuda.launches import Order, Resource
from wholestep.compiler.plan.kernel import Kernel, Plan


class Recorder:
    """When the kernels of the last launch began and ended."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        # Kernels, and the moment behind them; the first is before all.
        self.events: list[tuple[Sequence[Kernel], Event]] = []
        self._begun = 0.0

    def clear(self) -> None:
        """Begin anew."""
        self._begun = time.perf_counter()

    def take(self) -> list[Noted]:
        """What ran since `clear`; waits for it.  Kernels that share a launch have its time in shares of their work."""
        self._gpu.wait()
        found, at = [], self._begun
        for (_, before), (kernels, behind) in zip(self.events, self.events[1:], strict=False):
            taken, whole = 1e-3 * behind.milliseconds_since(before), sum(map(_work, kernels))
            for kernel in kernels:
                end = at + taken * _work(kernel) / whole
                found.append(Noted(kernel.id, 0, at, end))
                at = end
        return found


def _work(kernel: Kernel) -> float:
    """What a kernel's share of a launch follows: an operation takes as long as a sixteenth of a byte."""
    return 1 + kernel.bytes + kernel.flops / 16


class InTurn(Order):
    """An order without anything side by side: each kernel is followed by an event of a recorder."""

    def __init__(self, nodes: Nodes, plan: Plan, recorder: Recorder, gpu: Gpu) -> None:
        super().__init__(nodes, plan)
        self._recorder, self._gpu = recorder, gpu
        recorder.events = []
        self._last = self._event((), [])

    def _event(self, kernels: Sequence[Kernel], after: Sequence[int]) -> int:
        event = Event(self._gpu, timed=True)
        self._recorder.events.append((kernels, event))
        return self._nodes.event(event, after)

    def kernel(
        self,
        function: Any,
        grid: tuple[int, int],
        threads: int,
        given: Sequence[Any],
        reads: set[Resource],
        writes: set[Resource],
        together: int = 0,
    ) -> None:
        node = self._nodes.kernel(function, grid, threads, given, [self._last], together)
        self._last = self._event(self.current, [node])

    def library(self, record: Callable[[int], None], reads: set[Resource], writes: set[Resource]) -> None:
        node = self._nodes.captured(record, [self._last])
        self._last = self._event(self.current, [node])
