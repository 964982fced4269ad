"""Kernels that take several times the price of their work: measured ones in a profile, estimated ones in a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.plan.io.report import describe_kernel
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.target import Target

SLOW, SLOW_SECONDS = 5.0, 2e-5  # measured / expected time of a slow kernel, and the least seconds that it loses
SLOW_LINES = 8  # most slow kernels that a profile or a report explains


def is_slow(expected: float, seconds: float) -> bool:
    """Does a kernel take several times its expected time, and lose enough time to matter?"""
    return expected > 0 and seconds > max(SLOW * expected, expected + SLOW_SECONDS)


def advice_on(plans: Sequence[Plan], target: Target) -> Mapping[tuple[int, int], str] | None:
    """(program, kernel) -> why its schedule is slow; None if the target's prices are too coarse to judge a kernel."""
    if not target.advice:
        return None
    return {(i, kernel): why for i, plan in enumerate(plans) for kernel, why in target.slow_kernels(plan).items()}


def slow_notes(plan: Plan, target: Target) -> tuple[str, ...]:
    """Report notes: the kernels whose schedule takes several times the price of their work, and why."""
    slow, kernels = target.slow_kernels(plan), {k.id: k for k in plan.kernels}
    notes = [f"kernel {id} ({describe_kernel(kernels[id], plan)}): {why}" for id, why in slow.items()]
    more = [f"{len(notes) - SLOW_LINES} more kernels are slow for their work"] * (len(notes) > SLOW_LINES)
    return (*notes[:SLOW_LINES], *more)
