"""Ranks that are threads of this process: `shards=n` makes the steps of n workers here, bit for bit."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from wholestep.compiler.backend import Epoch, LoadContext
from wholestep.compiler.backends.common.rank_shares import Pace
from wholestep.compiler.backends.cpu.layout.stored_layout import is_turned, state_layout
from wholestep.compiler.backends.cpu.runtime import library as native
from wholestep.compiler.backends.cpu.runtime.launch_handles import CpuEpoch, StepOutputs
from wholestep.compiler.backends.cpu.runtime.micro_batches import MicroBatchProgram
from wholestep.compiler.backends.cpu.runtime.program import CpuProgram
from wholestep.compiler.backends.cpu.runtime.scratch import CpuScratch
from wholestep.compiler.ir.mesh import Grid
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.shards import Shards
from wholestep.compiler.runtime.state.storage import HostMemory

TIMEOUT = 600.0  # seconds: what a thread waits for the others


class ThreadRank:
    """One of the threads, as programs see it."""

    engine = "threads"

    def __init__(self, first: int, rank: int, grid: Grid) -> None:
        self.rank, self.size, self.grid = rank, grid.size, grid
        each = ctypes.sizeof(native.NativeGroup)
        self.address, self.whole_address = first + rank * each, first + (2 * grid.size + rank) * each

    def broadcast(self, data: bytes) -> bytes:
        """One program speaks for all of them."""
        return data

    def gather(self, data: bytes) -> Sequence[bytes]:
        return [data] * self.size

    def check(self) -> None:
        """What goes wrong is raised where it happens."""


class ThreadRanks:
    """The threads of a session: where each has its states and its scratch memory."""

    def __init__(self, library: native.Library, grid: Grid) -> None:
        new, free = library.dll.ws_new_threads, library.dll.ws_free_threads
        new.restype, new.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_int, ctypes.c_double]
        free.restype, free.argtypes = None, [ctypes.c_void_p]
        first = new(grid.data, grid.model, TIMEOUT)
        if not first:
            raise MemoryError(f"no memory for {grid.size} ranks")
        weakref.finalize(self, free, first)
        self.members = [ThreadRank(first, rank, grid) for rank in range(grid.size)]
        self.threads = ThreadPoolExecutor(grid.size - 1, "shard") if grid.size > 1 else None
        self._places: dict[bool, list[LoadContext]] = {}  # of programs that are profiled, and of others

    def places(self, place: LoadContext, plan: Plan) -> list[LoadContext]:
        """Where the programs of each rank are loaded; the first has the session's own states."""
        found = self._places.setdefault(place.profile, [])
        if not found:
            for rank, member in enumerate(self.members):
                where = replace(place.where, group=member, threads=1)
                memory = HostMemory(f"cpu, shard {rank}", state_layout, is_turned) if rank else None
                scratch = place.scratch if rank == 0 else CpuScratch()
                found.append(LoadContext(where, place.state, scratch, place.profile, memory, apart=True))
        for own in found[1:]:
            own.scratch.reserve(plan, 1)
        return found

    def together(self, runs: Sequence[Callable[[], int]]) -> list[int]:
        """What the native calls of all ranks return."""
        others = [self.threads.submit(run) for run in runs[1:]] if self.threads is not None else []
        try:
            first = runs[0]()
        finally:
            ended = [other.exception() for other in others]
        for error in ended:
            if error is not None:
                raise error
        return [first, *(other.result() for other in others)]


class ThreadRanksProgram:
    """The programs of all ranks as one: all are given the same, and what the first leaves is the result."""

    synchronous = True

    def __init__(self, programs: Sequence[CpuProgram | MicroBatchProgram], team: ThreadRanks) -> None:
        self.programs, self.team, self._first = tuple(programs), team, programs[0]
        self.plan, self.outputs, self.source = self._first.plan, self._first.outputs, self._first.source
        self.loss, self.staging, self.wait = self._first.loss, self._first.staging, self._first.wait
        self.recorder = getattr(self._first, "recorder", None)
        self.mapped_bytes = sum(p.mapped_bytes for p in programs)
        self._pace = Pace(team.members[0])
        self.count_steps(bool(self.plan.updated))

    def scalar(self, name: str, value: float) -> None:
        """Set a runtime scalar on every rank."""
        for program in self.programs:
            program.scalar(name, value)

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """Does a step count as an update?  It is counted once."""
        for program in self.programs:
            program.count_steps(advances and program is self._first, unless, stop)

    def bind(self, name: str, array: AnyArray) -> None:
        """Let the next step read an input where it lies: each rank its rows."""
        for program in self.programs:
            program.bind(name, array)

    def launch(self, sizes: Mapping[str, int]) -> ThreadRanksProgram:
        """One step, to its end."""
        self._run([program.prepare(sizes) for program in self.programs], lambda program, made: program.count(made))
        return self

    def _run(
        self, runs: Sequence[Callable[[], int]], count: Callable[[CpuProgram | MicroBatchProgram, int], None]
    ) -> int:
        made = self.team.together(runs)
        for program, done in zip(self.programs, made, strict=True):
            count(program, done)
        for program in self.programs:
            program.show()
        return made[0]

    def read(self, name: str) -> AnyArray:
        """An output of the last step, copied."""
        return self._first.read(name)

    def keep(self) -> StepOutputs:
        """The outputs of the last step, copied as they are stored."""
        return self._first.keep()

    def epoch(self, epoch: Epoch) -> CpuEpoch:
        """Steps until the epoch's end, in slices of about 50 ms."""
        return CpuEpoch(epoch, partial(self._run_slice, epoch))

    def _run_slice(self, epoch: Epoch, losses: AnyArray, done: int) -> int:
        """Some steps of an epoch; returns how many."""
        most = self._pace.steps(len(losses) - done)
        # The loops know addresses alone: each rank's losses are held here until they are done.
        held = [losses, *(np.zeros_like(losses) for _ in self.programs[1:])]
        runs: list[Callable[[], int]] = []
        for program, own in zip(self.programs, held, strict=True):
            runs.append(program.prepare_slice(epoch, program._loop(epoch), own, done, most))  # type: ignore[arg-type]
        return self._pace.timed(lambda: self._run(runs, lambda program, made: program.count_slice(made)))


def team_of(shards: Shards, library: native.Library) -> ThreadRanks:
    """The threads of a session, once it has the library."""
    if shards.team is None:
        shards.team = ThreadRanks(library, shards.grid)
    assert isinstance(shards.team, ThreadRanks)
    return shards.team
