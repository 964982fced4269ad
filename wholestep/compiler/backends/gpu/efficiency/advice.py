"""Advice on slow kernels: those that by their schedule take several times the price of their work, and why.

The estimated time of a kernel is a roofline with three limits that the price by operations and bytes does not have: a
thread waits for the loads that it issues one after the other (rounds), warps move whole sectors (uncoalesced
addresses), and a grid with few threads uses a part of the arithmetic units.  The largest limit names the reason.  The
estimate is coarse, a factor of two; a schedule that leaves the machine idle is off by ten to a thousand.
"""

from __future__ import annotations

from math import ceil

from wholestep.compiler.backends.gpu.efficiency.work import WORK
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


def estimate(plan: Plan, kernel: Kernel) -> Estimate:
    """The estimate of a kernel; of forms without a rule here, such as a library's, the price alone."""
    computing, moving = price_kernel(kernel, plan.buffers, target_of(plan).costs)
    rule, schedule = WORK.get(schedule_of(kernel).form), schedule_of(kernel)
    if rule is None or schedule.owns or schedule.chained:
        return Estimate(max(computing, moving))
    work, machine = rule(plan, kernel), costs_of(plan).efficiency
    multiprocessors = target_of(plan).multiprocessors
    resident = multiprocessors * max(1, machine.resident_threads // schedule.threads)
    waves = ceil(schedule.blocks * schedule.chunks / resident)
    used = min(1.0, work.active / (multiprocessors * machine.busy_threads))
    return Estimate(
        max(computing, moving),
        (waves * work.rounds + work.last) * machine.load_latency,
        work.moving,
        kernel.flops * target_of(plan).costs.operation / used if used else 0.0,
    )


REASONS = {
    "waiting": "its threads wait for loads one after the other, because too few of them share the work",
    "moving": "neighbouring threads read addresses that are far apart, so most of each memory transfer is unused",
    "computing": "it computes without tensor cores, or on few of the GPU's threads",
}


def slow_kernels(plan: Plan) -> dict[int, str]:
    """Kernel id -> why its schedule takes much longer than the price of its work; the one that loses most first."""
    estimates = ((kernel.id, estimate(plan, kernel)) for kernel in plan.kernels)
    slow = [(id, e) for id, e in estimates if is_slow(plan, e)]
    return {id: explain(e) for id, e in sorted(slow, key=lambda pair: pair[1].price - pair[1].ns)}


def is_slow(plan: Plan, estimated: Estimate) -> bool:
    """Does a kernel take several times its price, and enough time to matter?"""
    machine = costs_of(plan).efficiency
    return estimated.ratio > machine.slow and estimated.ns - estimated.price > machine.least_ns


def explain(estimated: Estimate) -> str:
    """Why a kernel is slow: the limit that its estimate follows from."""
    limit = max(REASONS, key=lambda name: getattr(estimated, name))
    return (
        f"by its schedule it takes {1e-3 * estimated.ns:,.0f} us, its work {1e-3 * estimated.price:,.1f} us: "
        f"{REASONS[limit]}"
    )
