"""The CPU as a device: its memory, its runtime library (loaded in the background), and the loading of plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from functools import cache, partial
from typing import Any, TypeGuard

from wholestep.compiler.backend import LoadContext, MicroBatchShape, Program, do_nothing
from wholestep.compiler.backends.common.rank_shares import is_collective
from wholestep.compiler.backends.cpu.layout.stored_layout import MEMORY
from wholestep.compiler.backends.cpu.runtime import library as native
from wholestep.compiler.backends.cpu.runtime.object_loader import PlanCode, compiler_of, program_key
from wholestep.compiler.backends.cpu.runtime.program import CpuProgram
from wholestep.compiler.backends.cpu.runtime.scratch import CpuScratch
from wholestep.compiler.backends.cpu.target import TARGETS, check_available, detect_target
from wholestep.compiler.plan.memory.peak_memory import host_footprint
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.background import Background
from wholestep.compiler.runtime.cache.content_store import open_cache
from wholestep.compiler.runtime.memory import expect_region
from wholestep.compiler.runtime.process_group import RankGroup, Shards
from wholestep.compiler.target import Target
from wholestep.errors import PlanError
from wholestep.options import CompileOptions


class CpuDevice:
    """A CPU target whose plans are compiled and run in this process."""

    runs = True
    memory = MEMORY

    def __init__(self, target: Target) -> None:
        self.target = target
        self.name = target.name
        self._coming: Background[native.Library] | None = None

    def scratch(self) -> CpuScratch:
        """The arena and the threads' workspaces."""
        return CpuScratch()

    def prepare(self, options: CompileOptions) -> None:
        """Find or compile the runtime library on a background thread."""
        if self._coming is None and not native.is_loaded(self.name):
            # The call runs in an empty context: its spans do not belong to the build.  `patient` yields to planning.
            self._coming = Background(lambda: Context().run(load_library, self.name, options), patient=True)

    def library(self, options: CompileOptions) -> native.Library:
        """The library, when it is ready.  If `prepare` failed, perhaps with another compiler, the build is repeated."""
        loading, self._coming = self._coming, None
        if loading is not None:
            loading.wait()
        return load_library(self.name, options)

    def load(
        self, plan: Plan, place: LoadContext, key: str = "", meanwhile: Callable[[], None] = do_nothing
    ) -> Program:
        """The program of a plan, compiled for the plan's target."""
        if plan.target != self.name:
            if plan.target not in TARGETS:
                raise PlanError(
                    f"the plan is for {plan.target!r} and cannot run on {self.name!r}; plan it again with "
                    f"device={self.name!r}."
                )
            check_available(TARGETS[plan.target])
        _expect_memory(plan, place)
        device, options = device_for(plan.target), place.where.options
        device.prepare(options)  # a cold start compiles the library and the plan in parallel
        library = partial(device.library, options)
        code = PlanCode(plan, options, key=key, profile=place.profile, library=library, meanwhile=meanwhile)
        if _are_threads(place.where.group) and is_collective(plan):
            from wholestep.compiler.backends.cpu.runtime.simulated_ranks import ThreadRanksProgram, rank_threads_of

            team = rank_threads_of(place.where.group, code.library)
            return ThreadRanksProgram([CpuProgram(plan, context, code) for context in team.places(place, plan)], team)
        return CpuProgram(plan, place, code)

    def load_micro_batches(
        self, plan: Plan, programs: Sequence[Any], place: LoadContext, shape: MicroBatchShape
    ) -> Program:
        from wholestep.compiler.backends.cpu.runtime.micro_batches import MicroBatchProgram  # most steps have none

        if _are_threads(place.where.group):
            from wholestep.compiler.backends.cpu.runtime.simulated_ranks import ThreadRanksProgram, rank_threads_of

            team = rank_threads_of(place.where.group, self.library(place.where.options))
            of_ranks: list[list[Any]] = [
                [p.programs[r] if isinstance(p, ThreadRanksProgram) else p for p in programs]
                for r in range(len(team.members))
            ]
            if any(isinstance(p, ThreadRanksProgram) for p in programs):
                rank_programs = [
                    MicroBatchProgram(plan, o, w, shape)
                    for o, w in zip(of_ranks, team.places(place, plan), strict=True)
                ]
                return ThreadRanksProgram(rank_programs, team)
        return MicroBatchProgram(plan, programs, place, shape)

    def program_key(self, plan: Plan, options: CompileOptions, key: str = "") -> str:
        return program_key(plan, options, key)

    def notes(self, plan: Plan) -> tuple[str, ...]:
        return plan.notes


def _expect_memory(plan: Plan, place: LoadContext) -> None:
    """Start to allocate the program's memory and the scratch memory: the operating system may take seconds."""
    assert isinstance(place.scratch, CpuScratch), "a CPU program needs CPU scratch memory"
    threads, segments = place.where.threads, place.scratch.segments
    needed = segments.grown(plan.arena_bytes, plan.work_bytes, threads)
    if needed != segments:
        expect_region(needed.total)
    expect_region(host_footprint(plan, threads).private_mapped)


def _are_threads(group: RankGroup | None) -> TypeGuard[Shards]:
    """Are the ranks of a step threads of this process?"""
    return group is not None and group.engine == "threads"


def load_library(target: str, options: CompileOptions) -> native.Library:
    """The runtime library of a target in this process."""
    return native.load_library(target, open_cache(options), compiler_of(options))


@cache
def device_for(name: str) -> CpuDevice:
    """The device of a target by name: one per process, since it holds the library that is being loaded."""
    return CpuDevice(TARGETS[name])


def default_target() -> Target:
    """The target that `device="cpu"` selects on this machine."""
    return detect_target()


def make_device(target: Target) -> CpuDevice:
    """The CPU device of a target; raises if this machine cannot run its code."""
    check_available(target)
    return device_for(target.name) if target == TARGETS[target.name] else CpuDevice(target)
