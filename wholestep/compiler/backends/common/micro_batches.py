"""Gradient accumulation as a loop over launches, for backends without a native loop over micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from wholestep.compiler.backend import (
    Epoch,
    Launch,
    MicroBatchShape,
    Program,
    StepRange,
    check_indices,
    epoch_of_launches,
)
from wholestep.compiler.backends.common.rank_shares import SliceLength, check_row_per_rank
from wholestep.compiler.ir.attrs import DATA
from wholestep.compiler.ir.types import TensorType, evaluate
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.process_group import RankGroup, rows_of_rank
from wholestep.compiler.runtime.state.state import State


class LaunchedMicroBatches:
    """The programs of a step as one program.  `plan` is the callers' view: inputs as large as all micro-batches.

    Each program runs for every micro-batch, except the last one, which runs once and computes the outputs.  Every rank
    of a group has its own rows of each micro-batch; with `needs_rows`, at least one.
    """

    def __init__(
        self,
        plan: Plan,
        programs: Sequence[Program],
        state: State,
        shape: MicroBatchShape,
        group: RankGroup | None = None,
        needs_rows: bool = False,
    ) -> None:
        self.plan, self._programs, self._state, self._shape = plan, tuple(programs), state, shape
        grid = None if group is None else group.grid
        self._rank, self._ranks = (0, 1) if grid is None or group is None else (grid.place(DATA, group.rank), grid.data)
        self._pace, self._needs_rows = None if group is None else SliceLength(group), needs_rows
        self._last = programs[-1]
        self.synchronous = all(p.synchronous for p in programs)
        self.outputs: Mapping[str, TensorType] = self._last.outputs
        types = {name: plan.buffers[id].type for name, id in plan.inputs}
        self._cut = {name for name, type in types.items() if shape.is_cut(type.shape)}
        self._staging = {n: np.empty(evaluate(t.elements, plan.sizes), t.dtype.numpy) for n, t in types.items()}
        self._inputs: dict[str, AnyArray] = {}
        self.mapped_bytes = sum(p.mapped_bytes for p in programs) + sum(a.nbytes for a in self._staging.values())
        for program in programs:
            program.count_steps(False)  # only all of them together are a step
        self.count_steps(True)

    @property
    def source(self) -> str:
        """The source that runs, program after program."""
        return "\n".join(p.source for p in self._programs)

    def scalar(self, name: str, value: float) -> None:
        """Set a runtime scalar of every program that uses it."""
        for program in self._programs:
            program.scalar(name, value)

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """Does a step count as an update?  Not if its output `unless` is nonzero; `stop` then ends a slice."""
        self._advances, self._unless, self._stop = advances, unless, stop

    def staging(self, name: str) -> AnyArray:
        """The array into which an input is converted or copied."""
        return self._staging[name]

    def bind(self, name: str, array: AnyArray) -> None:
        """Bind all rows of an input for the next step."""
        self._inputs[name] = array

    def launch(self, sizes: Mapping[str, int]) -> Launch:
        """One step: its programs in order, each for all micro-batches."""
        check_indices(self.plan, self._inputs, sizes)
        rows = sizes[self._shape.batch]
        part = min(self._shape.part, rows)
        for program in self._programs:
            for first in range(0, 1 if program is self._last else rows, part):
                launch = self._launch_part(program, sizes, first, min(part, rows - first), rows, -(-rows // part))
        if self._advances and (self._unless is None or not launch.read(self._unless)):
            self._state.step += 1
        return launch

    def _launch_part(
        self, program: Program, sizes: Mapping[str, int], first: int, count: int, rows: int, parts: int
    ) -> Launch:
        if self._needs_rows:
            check_row_per_rank(count, self._ranks)
        offset, own_count = rows_of_rank(count, self._rank, self._ranks)
        own_rows = slice(first + offset, first + offset + own_count)
        for name, _ in program.plan.inputs:
            array = self._inputs[name]
            program.bind(name, array[own_rows] if name in self._cut else array)
        dims = {"batch_dim": own_count, "first_dim": first, "rows_dim": rows, "parts_dim": parts, "own_dim": offset}
        dims["whole_dim"] = count
        own_sizes = {self._shape.dims[name]: value for name, value in dims.items()}
        return program.launch({**sizes, **own_sizes})

    def epoch(self, epoch: Epoch) -> Iterator[StepRange]:
        """Run steps until the end of the epoch."""
        return epoch_of_launches(self, epoch, self._unless if self._stop else None, self._pace)

    def wait(self) -> None:
        for program in self._programs:
            program.wait()

    def loss(self) -> float:
        return self._last.loss()

    def read(self, name: str) -> AnyArray:
        return self._last.read(name)

    def keep(self) -> Launch:
        return self._last.keep()
