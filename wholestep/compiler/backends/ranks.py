"""What every backend does for a step that several ranks make together: whose rows are whose, and when they look up."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from wholestep.compiler.backend import SLICE_SECONDS
from wholestep.compiler.ir.attrs import DATA, MODEL
from wholestep.compiler.ir.collectives import OWN, ROWS
from wholestep.compiler.plan.bodies import Exchange
from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.runtime.group import Group, GroupFailedError, rows_of_rank

NEVER = 1e9  # seconds: ranks end a slice by its number of steps, which they have agreed on
GROWTH = 8  # steps of a slice, at most, for each of the one before


def takes_part(plan: Plan) -> bool:
    """Is a plan one of a step that ranks make together?"""
    exchanges = any(isinstance(k.body, Exchange) for k in plan.kernels)
    return bool(plan.divided) or exchanges or any(plan.buffers[id].is_part for _, id in plan.states)


def axes_of(plan: Plan) -> frozenset[str]:
    """The axes along which ranks exchange what a plan has computed."""
    return frozenset(k.body.axis for k in plan.kernels if isinstance(k.body, Exchange))


def address_in(group: Group, plan: Plan) -> int:
    """The native group of a plan: of one that has all rows, and exchanges along the model axis alone, no other."""
    if group.grid.model == 1 or plan.divided or DATA in axes_of(plan):
        return group.address
    return group.whole_address


def of_all_ranks(plan: Plan) -> Plan:
    """The plan as callers see it, who give all rows of a batch."""
    sizes = {**plan.sizes, plan.divided: plan.whole}
    return replace(plan, capacity=tuple(sizes.values()))


def of_rank(divided: str, sizes: Mapping[str, int], rank: int, ranks: int) -> dict[str, int]:
    """The sizes of a rank's own step, of those of the whole one."""
    rows = sizes[divided]
    first, count = rows_of_rank(rows, rank, ranks)
    return {divided: count, OWN: first, ROWS: rows}


def paced(group: Group | None, plan: Plan) -> Group | None:
    """Those who make the steps of a plan in lock-step; None: this rank makes them alone."""
    if group is None or group.size == 1:
        return None
    return group if plan.divided or MODEL in axes_of(plan) else None


class Pace:
    """How many steps a slice has.  Alone, a program looks at the clock; ranks agree on a number, by that of rank 0."""

    def __init__(self, group: Group | None) -> None:
        self._group, self._next = group, 1
        self.alone = group is None  # there is nothing to learn from the time of a slice
        self.seconds = SLICE_SECONDS if group is None else NEVER

    def steps(self, left: int) -> int:
        """Of the next slice, at most."""
        if self._group is None:
            return left
        told = self._group.broadcast(struct.pack("<q", self._next))
        return min(left, int(struct.unpack("<q", told)[0]))

    def timed(self, run: Callable[[], int]) -> int:
        """Run a slice, and learn from the time that it takes."""
        began = time.perf_counter()
        try:
            made = run()
        except GroupFailedError:
            if self._group is not None:
                self._group.check()
            raise
        took = time.perf_counter() - began
        if made:
            wanted = int(SLICE_SECONDS / max(took / made, 1e-9))
            self._next = max(1, min(wanted, made * GROWTH))
        return made
