"""Advice on slow kernels: those that by their schedule take several times the price of their work, and why.

The limit that sets the estimate names the reason: a thread that waits for its loads one after the other, neighbouring
threads whose addresses are far apart, or a grid too small for the machine.
"""

from __future__ import annotations

from wholestep.compiler.backends.gpu.efficiency.estimate import Estimate, estimates
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.plan.model.kernel import Plan

REASONS = {
    "waiting": "its threads wait for loads one after the other, because too few of them share the work",
    "moving": "neighbouring threads read addresses that are far apart, so most of each memory transfer is unused",
    "computing": "it computes without tensor cores, or on few of the GPU's threads",
}


def slow_kernels(plan: Plan) -> dict[int, str]:
    """Kernel id -> why its schedule takes much longer than the price of its work; largest loss first."""
    slow = [(id, e) for id, e in estimates(plan) if is_slow(plan, e)]
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
