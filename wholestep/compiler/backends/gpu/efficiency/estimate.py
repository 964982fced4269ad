"""Estimated time of a scheduled kernel, compared with the cost of its work: does its grid use the machine?

A roofline with three limits that the price by operations and bytes does not have: a thread waits for the loads that
it issues one after the other (rounds), warps move whole sectors (uncoalesced addresses), and a grid with few threads
uses a part of the arithmetic units.  The estimate is coarse, a factor of two; a schedule that leaves the machine idle
is slower than its price by a factor of ten to a thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from wholestep.compiler.backends.gpu.efficiency.work import WORK, KernelWork
from wholestep.compiler.backends.gpu.fusion.launches import by_launch
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.gpu.target import costs_of, target_of
from wholestep.compiler.plan.io.traffic import price_kernel
from wholestep.compiler.plan.model.kernel import Kernel, Plan
from wholestep.records import dataclass


@dataclass(frozen=True)
class Estimate:
    """Nanoseconds of one execution at capacity: the price of the work, and the limits that the schedule sets."""

    price: float  # operations and bytes at the machine's full speed
    waiting: float = 0.0  # rounds of loads that a thread issues one after the other, in all waves of blocks
    moving: float = 0.0  # sectors between caches and multiprocessors
    computing: float = 0.0  # operations on the arithmetic units that the grid's threads use

    @property
    def ns(self) -> float:
        return max(self.price, self.waiting, self.moving, self.computing)

    @property
    def ratio(self) -> float:
        """Estimated time / price."""
        return self.ns / self.price if self.price else 1.0


def estimates(plan: Plan) -> Iterator[tuple[int, Estimate]]:
    """Kernel id -> its estimate.  Kernels that share a launch run at the same time and fill the machine together."""
    for launch in by_launch(plan.kernels):
        works = {kernel.id: work_of(plan, kernel) for kernel in launch}
        active = sum(work.active for work in works.values() if work is not None)
        for kernel in launch:
            yield kernel.id, estimate(plan, kernel, works[kernel.id], active)


def work_of(plan: Plan, kernel: Kernel) -> KernelWork | None:
    """The work of a kernel's schedule; None for forms without a rule here, such as a library's."""
    rule, schedule = WORK.get(schedule_of(kernel).form), schedule_of(kernel)
    return None if rule is None or schedule.owns or schedule.chained else rule(plan, kernel)


def estimate(plan: Plan, kernel: Kernel, work: KernelWork | None, active: float) -> Estimate:
    """The estimate of a kernel from the active threads of its launch; if the work is unknown, its cost alone."""
    computing, moving = price_kernel(kernel, plan.buffers, target_of(plan).costs)
    if work is None:
        return Estimate(max(computing, moving))
    schedule, machine = schedule_of(kernel), costs_of(plan).efficiency
    multiprocessors = target_of(plan).multiprocessors
    resident = multiprocessors * max(1, machine.resident_threads // schedule.threads)
    waves = ceil(schedule.blocks * schedule.chunks / resident)
    used = min(1.0, active / (multiprocessors * machine.busy_threads))
    return Estimate(
        max(computing, moving),
        (waves * work.rounds + work.last) * machine.load_latency,
        work.moving,
        kernel.flops * target_of(plan).costs.operation / used if used else 0.0,
    )
