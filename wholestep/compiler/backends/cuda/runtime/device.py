"""GPU devices: what `device="cuda"` selects, and how plans are loaded on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeGuard

from wholestep.compiler.backend import LoadContext, MicroBatchShape, Program, do_nothing
from wholestep.compiler.backends.common.micro_batches import LaunchedMicroBatches
from wholestep.compiler.backends.common.rank_shares import is_collective
from wholestep.compiler.backends.cuda.driver import host_copies
from wholestep.compiler.backends.cuda.driver.driver import CudaModule, gpu
from wholestep.compiler.backends.cuda.driver.memory import CudaMemory, CudaScratch
from wholestep.compiler.backends.cuda.driver.nvrtc import compile_kernels, nvrtc_version
from wholestep.compiler.backends.cuda.runtime.program import CudaProgram
from wholestep.compiler.backends.cuda.target import TARGETS, kind_of, target_of
from wholestep.compiler.backends.gpu.kernel_schedule import calls_library
from wholestep.compiler.backends.gpu.render.source import native
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.cache.content_store import key_of, open_cache
from wholestep.compiler.runtime.process_group import RankGroup, Shards
from wholestep.compiler.runtime.sources import compiler_version
from wholestep.compiler.spans import inner_span
from wholestep.compiler.target import Target
from wholestep.errors import OptionError, PlanError
from wholestep.options import CompileOptions, is_profiled


class CudaDevice:
    """One GPU with a target."""

    runs = True

    def __init__(self, target: Target, number: int) -> None:
        self.target, self.gpu = target, gpu(number)
        self.name = f"cuda:{number}"
        self.memory = CudaMemory(self.gpu)
        self.machine = f"{self.gpu.name}, NVRTC {nvrtc_version()}"  # the bits of a step depend on both
        self._modules: dict[str, CudaModule] = {}  # shared by all programs, by native file

    @property
    def architecture(self) -> str:
        """The architecture that code is compiled for: machine code of this GPU, or PTX that the driver translates."""
        kind = kind_of(self.target)
        major, minor = self.gpu.capability
        return kind if kind == f"sm_{major}{minor}" else kind.replace("sm_", "compute_")

    def scratch(self) -> CudaScratch:
        return CudaScratch(self.gpu)

    def moves(self, options: CompileOptions) -> CudaModule:
        """Kernels that fetch the arguments of a launch and gather the rows of an update."""
        return self._module("gather.h", options)

    def draws(self, options: CompileOptions) -> CudaModule:
        """Kernel that computes random initial values."""
        return self._module("draw.h", options)

    def copies(self, options: CompileOptions) -> CudaModule:
        """Kernel that computes half-precision copies of states."""
        return self._module("copies.h", options)

    def ranks(self, options: CompileOptions) -> CudaModule:
        """Kernels that add the data that ranks send."""
        return self._module("ranks.h", options)

    def _module(self, file: str, options: CompileOptions) -> CudaModule:
        if file not in self._modules:
            code = compile_kernels(native(file), self.architecture, open_cache(options))
            self._modules[file] = CudaModule(self.gpu, code)
        return self._modules[file]

    def prepare(self, options: CompileOptions) -> None:
        """Do nothing: NVRTC is a library, which needs no preparation."""

    def load(
        self, plan: Plan, place: LoadContext, key: str = "", meanwhile: Callable[[], None] = do_nothing
    ) -> Program:
        if plan.target != self.target.name:
            raise PlanError(
                f"the plan is for {plan.target!r} and cannot run on {self.name!r} ({self.target.name}); plan it again "
                f"with device={self.name!r}."
            )
        with inner_span("gpu_init"):
            return self._load_plan(plan, place, meanwhile)

    def _load_plan(self, plan: Plan, place: LoadContext, meanwhile: Callable[[], None]) -> Program:
        self.memory.drawing = partial(self.draws, place.where.options)
        if _are_here(place.where.group) and is_collective(plan):
            from wholestep.compiler.backends.cuda.runtime.simulated_ranks import (  # imported here: rarely needed
                GpuRanksProgram,
                team_of,
            )

            team = team_of(place.where.group, self, self.scratch)
            return GpuRanksProgram(self, plan, place, team, meanwhile)
        if is_profiled():
            from wholestep.compiler.backends.cuda.runtime.profiler import MarkedProgram  # imported here: rarely needed

            return MarkedProgram(self, plan, place, meanwhile)
        return CudaProgram(self, plan, place, meanwhile)

    def load_micro_batches(
        self, plan: Plan, programs: Sequence[Program], place: LoadContext, shape: MicroBatchShape
    ) -> LaunchedMicroBatches:
        group = place.where.group if any(is_collective(p.plan) for p in programs) else None
        if _are_here(group):
            return self._micro_batches_here(plan, programs, place, shape)
        needs_rows = group is not None and any(calls_library(p.plan) for p in programs)
        for program in programs:
            assert isinstance(program, CudaProgram)
            program.share.is_given()
        return LaunchedMicroBatches(plan, programs, place.state, shape, group, needs_rows)

    def _micro_batches_here(
        self, plan: Plan, programs: Sequence[Program], place: LoadContext, shape: MicroBatchShape
    ) -> LaunchedMicroBatches:
        """The micro-batch program of simulated ranks, whose programs take their rows of each micro-batch themselves."""
        from wholestep.compiler.backends.cuda.runtime.simulated_ranks import GpuRanksProgram

        for program in programs:
            if isinstance(program, GpuRanksProgram):
                program.is_in_parts()
        return LaunchedMicroBatches(plan, programs, place.state, shape)

    def program_key(self, plan: Plan, options: CompileOptions, key: str = "") -> str:
        """Cache key: plan, our version, compiler and architecture."""
        return key_of("cuda", key or serialize.dump(plan), compiler_version("cuda"), nvrtc_version(), self.architecture)

    def notes(self, plan: Plan) -> tuple[str, ...]:
        """The plan's notes, corrected for this GPU, which may be smaller than the target, and for its host."""
        from wholestep.compiler.backends.gpu.persistent import (
            eligibility,  # imported here: a cached step does not need it
        )

        return *eligibility.notes_on(plan, self.gpu.multiprocessors), *host_copies.notes_on(plan)


def _are_here(group: RankGroup | None) -> TypeGuard[Shards]:
    """Are all ranks simulated in this process?"""
    return group is not None and group.engine == "threads"


_own = [0]  # number of the GPU that `device="cuda"` selects in this process


def prefer_gpu(number: int) -> None:
    """Selects the GPU of `device="cuda"`: each rank of a machine selects a GPU of its own."""
    _own[0] = number


def default_target() -> Target:
    """The target of `device="cuda"`."""
    return numbered_target(_own[0])


def numbered_target(number: int) -> Target:
    """The target of a GPU."""
    return target_of(gpu(number).capability)


def make_device(target: Target) -> CudaDevice:
    """This process's GPU as a device for a target."""
    return make_numbered(target, _own[0])


def make_numbered(target: Target, number: int) -> CudaDevice:
    """A GPU as a device for a target; OptionError if the GPU is older than the target."""
    selected, newest_first = gpu(number), [kind_of(other) for other in TARGETS.values()]
    best = target_of(selected.capability)
    if target.name in TARGETS and newest_first.index(kind_of(target)) < newest_first.index(kind_of(best)):
        raise OptionError(f"device={target.name!r}: this GPU, {selected.name}, is {best.name}.")
    return _device(target, number)


@cache
def _device(target: Target, number: int) -> CudaDevice:
    return CudaDevice(target, number)
