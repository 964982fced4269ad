"""The reference backend: interprets a plan in NumPy, kernel by kernel.  Nothing is compiled or parallel.

It is slow and simple on purpose.  Its results follow from the plan alone, so it checks that a plan is complete, and it
shows the minimum that a backend has to implement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from wholestep.compiler.backends.common.numpy_program import HostDevice, HostProgram, LaunchMemory
from wholestep.compiler.backends.reference.kernels import run_kernel
from wholestep.compiler.backends.reference.target import REFERENCE
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.kernel import Loop
from wholestep.compiler.target import Target


class ReferenceProgram(HostProgram):
    """Runs the kernels in order; the kernels of a loop run once per iteration."""

    def run(self, memory: LaunchMemory) -> None:
        for loop, kernels in groupby(self.plan.kernels, attrgetter("loop")):
            inside = tuple(kernels)
            for scope in [memory] if loop is None else steps(self.plan.loops[loop], memory):
                for kernel in inside:
                    run_kernel(kernel, scope)


def steps(loop: Loop, memory: LaunchMemory) -> Iterator[LaunchMemory]:
    """The memory of each iteration of a loop, in which `loop.symbol` has the iteration's number."""
    numbers = range(evaluate(loop.length, memory.sizes))
    for number in reversed(numbers) if loop.reverse else numbers:
        yield replace(memory, sizes={**memory.sizes, loop.symbol: number})


def default_target() -> Target:
    return REFERENCE


def make_device(target: Target) -> HostDevice:
    return HostDevice(target, ReferenceProgram)
