"""What every backend does for a step that several ranks make together: whose rows are whose, and when they look up."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from wholestep.compiler.backend import SLICE_SECONDS
from wholestep.compiler.ir.attrs import DATA, MODEL
from wholestep.compiler.ir.type_rules.collectives import MODEL_RANK, OWN, RANK, ROWS
from wholestep.compiler.ir.types import Dim
from wholestep.compiler.plan.model.bodies import Exchange
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.process_group import GroupFailedError, RankGroup, rows_of_rank
from wholestep.errors import UsageError

NEVER = 1e9  # seconds: ranks end a slice by its number of steps, which they have agreed on
GROWTH = 8  # steps of a slice, at most, for each of the one before


def takes_part(plan: Plan) -> bool:
    """Is a plan one of a step that ranks make together?"""
    exchanges = any(isinstance(k.body, Exchange) for k in plan.kernels)
    return bool(plan.divided) or exchanges or any(plan.buffers[id].is_part for _, id in plan.states)


def axes_of(plan: Plan) -> frozenset[str]:
    """The axes along which ranks exchange what a plan has computed."""
    return frozenset(k.body.axis for k in plan.kernels if isinstance(k.body, Exchange))


def address_in(group: RankGroup, plan: Plan) -> int:
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


def places_of(group: RankGroup) -> dict[str, int]:
    """Where a rank stands along each axis, by the symbols that steps have for it."""
    return {s: group.grid.place(axis, group.rank) for s, axis in ((RANK, DATA), (MODEL_RANK, MODEL))}


def lockstep_group(group: RankGroup | None, plan: Plan) -> RankGroup | None:
    """Those who make the steps of a plan in lock-step; None: this rank makes them alone."""
    if group is None or group.size == 1:
        return None
    return group if plan.divided or MODEL in axes_of(plan) else None


def need_row_each(rows: int, ranks: int) -> None:
    """UsageError, in every rank, where one of them would have no row of a batch."""
    if rows < ranks:
        raise UsageError(
            f"a batch has {rows} rows for {ranks} workers, and libraries of a GPU compute nothing of no rows. Leave it "
            f"out, drop_last=True, or give a batch_size= with which the last one has at least {ranks}."
        )


class RankShare:
    """What the program of one rank has of a step that callers give all rows of; without a group, all of it.

    Where `needs_rows`, it cannot run without any.
    """

    def __init__(self, plan: Plan, group: RankGroup | None, needs_rows: bool = False) -> None:
        places = {} if group is None else places_of(group)
        self._places = {s: number for s, number in places.items() if s in plan.symbols}
        self.rank, self.ranks = (places[RANK], group.grid.data) if group is not None and plan.divided else (0, 1)
        self.plan = of_all_ranks(plan) if self.ranks > 1 else plan  # as callers see it
        self._divided, self._needs_rows, self._whole_steps = plan.divided, needs_rows, True
        rows = Dim.symbol(plan.divided) if plan.divided else None
        self._cut = frozenset(name for name, id in plan.inputs if rows in plan.buffers[id].type.shape[:1])
        self._known: tuple[Mapping[str, int], Mapping[str, int]] = ({}, {})

    def is_given(self) -> None:
        """From now on callers give this rank's own rows, and their sizes."""
        self.rank, self.ranks, self._divided = 0, 1, ""

    def is_in_parts(self) -> None:
        """From now on callers give all rows of a part of a step, and say how many the step has."""
        self._whole_steps = False

    def rows(self, rows: int) -> tuple[int, int]:
        """Of a batch: the first of this rank's, and how many."""
        if self._needs_rows:
            need_row_each(rows, self.ranks)
        return rows_of_rank(rows, self.rank, self.ranks)

    def of(self, name: str, array: AnyArray) -> AnyArray:
        """Of an input what this rank needs."""
        if self.ranks == 1 or name not in self._cut:
            return array
        first, count = self.rows(len(array))
        return array[first : first + count]

    def sizes(self, whole: Mapping[str, int]) -> Mapping[str, int]:
        """Those of this rank's step, the same mapping for the same one."""
        if not self._divided and not self._places:
            return whole
        if self._known[0] is not whole:
            own = {**whole, **self._places}
            if self._divided:
                self.rows(whole[self._divided])
                found = of_rank(self._divided, whole, self.rank, self.ranks)
                own |= found if self._whole_steps else {s: n for s, n in found.items() if s != ROWS}
            self._known = whole, own
        return self._known[1]


class Pace:
    """How many steps a slice has.  Alone, a program looks at the clock; ranks agree on a number, by that of rank 0."""

    def __init__(self, group: RankGroup | None) -> None:
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
