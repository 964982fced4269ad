"""Gradient accumulation as a loop over launches, for backends without a native loop over micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.backend import Launch, MicroBatchShape, Program, check_indices
from wholestep.compiler.backends.common.program import CombinedProgram, staging_arrays
from wholestep.compiler.backends.common.rank_shares import SliceLength, check_row_per_rank
from wholestep.compiler.ir.attrs import DATA
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.process_group import RankGroup, rows_of_rank
from wholestep.compiler.runtime.state.state import State


class LaunchedMicroBatches(CombinedProgram):
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
        super().__init__(plan, programs, programs[-1])
        self._state, self._shape = state, shape
        grid = None if group is None else group.grid
        self._rank, self._ranks = (
            (0, 1) if grid is None or group is None else (grid.coordinate(DATA, group.rank), grid.data)
        )
        self.pace, self._needs_rows = None if group is None else SliceLength(group), needs_rows
        self.synchronous = all(p.synchronous for p in programs)
        self._cut = {name for name, id in plan.inputs if shape.is_cut(plan.buffers[id].type.shape)}
        self._staging = staging_arrays(plan)
        self.own_bytes = sum(array.nbytes for array in self._staging.values())
        for program in programs:
            program.count_steps(False)  # only all programs together count as a step
        self.count_steps(True)

    def launch(self, sizes: Mapping[str, int]) -> Launch:
        """One step: its programs in order, each for all micro-batches."""
        check_indices(self.plan, self._inputs, sizes)
        rows = sizes[self._shape.batch]
        part = min(self._shape.part, rows)
        for program in self.programs:
            for first in range(0, 1 if program is self.programs[-1] else rows, part):
                launch = self._launch_part(program, sizes, first, min(part, rows - first), rows, -(-rows // part))
        self._state.step += self.counts(launch)
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
