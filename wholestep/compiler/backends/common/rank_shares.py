"""Data-parallel bookkeeping that all backends share: the rows of each rank, its mesh coordinates, and slice lengths."""

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

NEVER = 1e9  # seconds: the ranks end a slice after an agreed number of steps, not by the clock
GROWTH = 8  # a slice may have at most this many times the steps of the one before


def is_collective(plan: Plan) -> bool:
    """Does a plan belong to a step that several ranks run together?"""
    exchanges = any(isinstance(k.body, Exchange) for k in plan.kernels)
    return bool(plan.divided) or exchanges or any(plan.buffers[id].is_part for _, id in plan.states)


def axes_of(plan: Plan) -> frozenset[str]:
    """The mesh axes along which a plan has collectives."""
    return frozenset(k.body.axis for k in plan.kernels if isinstance(k.body, Exchange))


def native_group_address(group: RankGroup, plan: Plan) -> int:
    """The native group of a plan; the group without data ranks if its only collectives are along the model axis."""
    if group.grid.model == 1 or plan.divided or DATA in axes_of(plan):
        return group.address
    return group.whole_address


def global_plan(plan: Plan) -> Plan:
    """The plan as its callers see it: they pass the rows of all ranks."""
    sizes = {**plan.sizes, plan.divided: plan.whole}
    return replace(plan, capacity=tuple(sizes.values()))


def local_sizes(divided: str, sizes: Mapping[str, int], rank: int, ranks: int) -> dict[str, int]:
    """The sizes of a rank's own step, derived from the sizes of the complete step."""
    rows = sizes[divided]
    first, count = rows_of_rank(rows, rank, ranks)
    return {divided: count, OWN: first, ROWS: rows}


def mesh_coordinates(group: RankGroup) -> dict[str, int]:
    """The coordinates of a rank along each mesh axis, by the symbols that plans use for them."""
    return {s: group.grid.coordinate(axis, group.rank) for s, axis in ((RANK, DATA), (MODEL_RANK, MODEL))}


def lockstep_group(group: RankGroup | None, plan: Plan) -> RankGroup | None:
    """The group whose ranks run the steps of a plan in lock-step; None if this rank runs them alone."""
    if group is None or group.size == 1:
        return None
    return group if plan.divided or MODEL in axes_of(plan) else None


def check_row_per_rank(rows: int, ranks: int) -> None:
    """Raise UsageError, in every rank, if one of them would have no row of a batch."""
    if rows < ranks:
        raise UsageError(
            f"a batch has {rows} rows for {ranks} workers, but a GPU's libraries cannot compute zero rows. Drop it "
            f"with drop_last=True, or choose a batch_size= with which the last batch has at least {ranks} rows."
        )


class RankShare:
    """The part of one rank in a step whose callers pass all rows; without a group, all of it.

    With `needs_rows`, a rank cannot run without at least one row.
    """

    def __init__(self, plan: Plan, group: RankGroup | None, needs_rows: bool = False) -> None:
        places = {} if group is None else mesh_coordinates(group)
        self.coordinates = {s: coordinate for s, coordinate in places.items() if s in plan.symbols}
        self.rank, self.ranks = (places[RANK], group.grid.data) if group is not None and plan.divided else (0, 1)
        self.plan = global_plan(plan) if self.ranks > 1 else plan  # the callers' view
        self._divided, self._needs_rows, self._whole_steps = plan.divided, needs_rows, True
        rows = Dim.symbol(plan.divided) if plan.divided else None
        self._cut = frozenset(name for name, id in plan.inputs if rows in plan.buffers[id].type.shape[:1])
        self._cached_sizes: tuple[Mapping[str, int], Mapping[str, int]] = ({}, {})

    def is_given(self) -> None:
        """From now on callers pass only this rank's rows, with their sizes."""
        self.rank, self.ranks, self._divided = 0, 1, ""

    def is_in_parts(self) -> None:
        """From now on callers pass all rows of one micro-batch, and the number of rows of the complete step."""
        self._whole_steps = False

    def rows(self, rows: int) -> tuple[int, int]:
        """This rank's rows of a batch: the first one, and their number."""
        if self._needs_rows:
            check_row_per_rank(rows, self.ranks)
        return rows_of_rank(rows, self.rank, self.ranks)

    def of(self, name: str, array: AnyArray) -> AnyArray:
        """The part of an input that this rank needs."""
        if self.ranks == 1 or name not in self._cut:
            return array
        first, count = self.rows(len(array))
        return array[first : first + count]

    def sizes(self, global_sizes: Mapping[str, int]) -> Mapping[str, int]:
        """The sizes of this rank's step; the same mapping object for the same argument."""
        if not self._divided and not self.coordinates:
            return global_sizes
        if self._cached_sizes[0] is not global_sizes:
            own_sizes = {**global_sizes, **self.coordinates}
            if self._divided:
                self.rows(global_sizes[self._divided])
                rank_sizes = local_sizes(self._divided, global_sizes, self.rank, self.ranks)
                own_sizes |= rank_sizes if self._whole_steps else {s: n for s, n in rank_sizes.items() if s != ROWS}
            self._cached_sizes = global_sizes, own_sizes
        return self._cached_sizes[1]


class SliceLength:
    """The number of steps per slice.  A single program watches the clock; ranks agree on the number rank 0 chose."""

    def __init__(self, group: RankGroup | None) -> None:
        self._group, self._next = group, 1
        self.alone = group is None  # a single program ends its slices by the clock
        self.seconds = SLICE_SECONDS if group is None else NEVER

    def steps(self, left: int) -> int:
        """The largest number of steps of the next slice."""
        if self._group is None:
            return left
        message = self._group.broadcast(struct.pack("<q", self._next))
        return min(left, int(struct.unpack("<q", message)[0]))

    def measure(self, run: Callable[[], int]) -> int:
        """Run a slice, and adapt the length of the next one to the time that this one took."""
        began = time.perf_counter()
        try:
            steps = run()
        except GroupFailedError:
            if self._group is not None:
                self._group.check()
            raise
        took = time.perf_counter() - began
        if steps:
            target = int(SLICE_SECONDS / max(took / steps, 1e-9))
            self._next = max(1, min(target, steps * GROWTH))
        return steps
