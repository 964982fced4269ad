"""Simulated ranks as threads of this process: `shards=n` runs the steps of n workers here, bit for bit the same."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from wholestep.compiler.backend import Epoch, LoadContext
from wholestep.compiler.backends.common.program import CombinedProgram
from wholestep.compiler.backends.common.rank_shares import SliceLength
from wholestep.compiler.backends.cpu.layout.stored_layout import is_stored_transposed, state_layout
from wholestep.compiler.backends.cpu.runtime import library as native
from wholestep.compiler.backends.cpu.runtime.launch_handles import CpuEpoch
from wholestep.compiler.backends.cpu.runtime.micro_batches import MicroBatchProgram
from wholestep.compiler.backends.cpu.runtime.program import CpuProgram
from wholestep.compiler.backends.cpu.runtime.scratch import CpuScratch
from wholestep.compiler.ir.mesh import Mesh
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.process_group import InProcessRank, Shards
from wholestep.compiler.runtime.state.storage import HostMemory

TIMEOUT = 600.0  # seconds that a thread waits for the others before the step fails


class ThreadRank(InProcessRank):
    """The process group as one of the threads sees it."""

    def __init__(self, first: int, rank: int, grid: Mesh) -> None:
        super().__init__(rank, grid)
        each = ctypes.sizeof(native.NativeGroup)
        self.address, self.whole_address = first + rank * each, first + (2 * grid.size + rank) * each


class ThreadRanks:
    """The rank threads of a session, each with its own states and scratch memory."""

    def __init__(self, library: native.Library, grid: Mesh) -> None:
        new, free = library.dll.ws_new_threads, library.dll.ws_free_threads
        new.restype, new.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_int, ctypes.c_double]
        free.restype, free.argtypes = None, [ctypes.c_void_p]
        first = new(grid.data, grid.model, TIMEOUT)
        if not first:
            raise MemoryError(
                f"memory does not suffice for the process groups of {grid.size} ranks; use fewer with shards="
            )
        weakref.finalize(self, free, first)
        self.members = [ThreadRank(first, rank, grid) for rank in range(grid.size)]
        self.threads = ThreadPoolExecutor(grid.size - 1, "shard") if grid.size > 1 else None
        self._contexts: dict[bool, list[LoadContext]] = {}  # profiled? -> load context of each rank

    def places(self, place: LoadContext, plan: Plan) -> list[LoadContext]:
        """The load context of each rank; rank 0 uses the session's own states."""
        contexts = self._contexts.setdefault(place.profile, [])
        if not contexts:
            for rank, member in enumerate(self.members):
                where = replace(place.where, group=member, threads=1)
                memory = HostMemory(f"cpu, shard {rank}", state_layout, is_stored_transposed) if rank else None
                scratch = place.scratch if rank == 0 else CpuScratch()
                contexts.append(LoadContext(where, place.state, scratch, place.profile, memory, apart=True))
        for context in contexts[1:]:
            context.scratch.reserve(plan, 1)
        return contexts

    def together(self, runs: Sequence[Callable[[], int]]) -> list[int]:
        """Run the native calls of all ranks concurrently; returns their results."""
        others = [self.threads.submit(run) for run in runs[1:]] if self.threads is not None else []
        try:
            first = runs[0]()
        finally:
            ended = [other.exception() for other in others]
        for error in ended:
            if error is not None:
                raise error
        return [first, *(other.result() for other in others)]


class ThreadRanksProgram(CombinedProgram):
    """The programs of all ranks as one: all receive the same arguments, and rank 0's outputs are the result."""

    def __init__(self, programs: Sequence[CpuProgram | MicroBatchProgram], team: ThreadRanks) -> None:
        first = programs[0]
        super().__init__(first.plan, programs, first)
        self.team, self._first, self._staging = team, first, first._staging
        self.recorder = getattr(first, "recorder", None)
        self.pace: SliceLength = SliceLength(team.members[0])
        self.count_steps(bool(self.plan.updated))

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """Does a step count as an update?  Only rank 0 counts updates."""
        for program in self.programs:
            program.count_steps(advances and program is self._first, unless, stop)

    def bind(self, name: str, array: AnyArray) -> None:
        """Let the next step read an input in place; each rank reads its own rows."""
        for program in self.programs:
            program.bind(name, array)

    def launch(self, sizes: Mapping[str, int]) -> ThreadRanksProgram:
        """Run one step to completion."""
        self._run([program.prepare(sizes) for program in self.programs], lambda program, result: program.count(result))
        return self

    def _run(
        self, runs: Sequence[Callable[[], int]], count: Callable[[CpuProgram | MicroBatchProgram, int], None]
    ) -> int:
        results = self.team.together(runs)
        for program, result in zip(self.programs, results, strict=True):
            count(program, result)
        for program in self.programs:
            program.show()
        return results[0]

    def epoch(self, epoch: Epoch) -> CpuEpoch:
        """Run steps until the end of the epoch, in slices of about 50 ms."""
        return CpuEpoch(epoch, partial(self._run_slice, epoch))

    def _run_slice(self, epoch: Epoch, losses: AnyArray, done: int) -> int:
        """Run some steps of an epoch; returns how many."""
        most = self.pace.steps(len(losses) - done)
        # The native loops hold only addresses: this list keeps each rank's losses alive until the loops return.
        rank_losses = [losses, *(np.zeros_like(losses) for _ in self.programs[1:])]
        runs: list[Callable[[], int]] = []
        for program, own_losses in zip(self.programs, rank_losses, strict=True):
            runs.append(program.prepare_slice(epoch, program.loop_of(epoch), own_losses, done, most))
        return self.pace.measure(lambda: self._run(runs, lambda program, steps: program.count_slice(steps)))


def rank_threads_of(shards: Shards, library: native.Library) -> ThreadRanks:
    """The rank threads of a session, created when the library is loaded."""
    if shards.team is None:
        shards.team = ThreadRanks(library, shards.grid)
    assert isinstance(shards.team, ThreadRanks)
    return shards.team
