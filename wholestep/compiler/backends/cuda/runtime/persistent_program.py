"""Runs the persistent training kernel; `persistent/eligibility.py` decides which plans have one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from wholestep.compiler.backends.cuda.driver.driver import CooperativeKernel, CudaModule, DeviceMemory, Gpu
from wholestep.compiler.backends.cuda.driver.nvrtc import compile_kernels
from wholestep.compiler.backends.gpu.kernel_schedule import THREADS, schedule_of
from wholestep.compiler.backends.gpu.persistent.eligibility import PersistentStep, find_persistent_step
from wholestep.compiler.backends.gpu.persistent.scan import why_not_resident
from wholestep.compiler.backends.gpu.render.persistent_step import NAME, render_persistent_step
from wholestep.compiler.backends.gpu.render.source import native
from wholestep.compiler.runtime.cache.content_store import ContentStore

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.runtime.program import CudaProgram


class Persistent:
    """A kernel that runs several steps over data on the GPU in one cooperative launch."""

    def __init__(
        self, program: CudaProgram, gpu: Gpu, step: PersistentStep, architecture: str, cache: ContentStore
    ) -> None:
        self._program, self._gpu, self.input = program, gpu, step.input
        self._text = render_persistent_step(program.plan, step)
        body = "\n".join([native("gather.h"), native("persistent_step.h"), self._text.text])
        self._module = CudaModule(gpu, compile_kernels(body, architecture, cache))
        self._kernel = CooperativeKernel(gpu, self._module.function(NAME), step.blocks, THREADS, self._text.bytes)
        self._partial = DeviceMemory(gpu, step.partial_bytes)
        self._barrier = DeviceMemory(gpu, 4)
        self._table = DeviceMemory(gpu, 16 * self._count)
        self._table_inputs: frozenset[int] | None = None  # double-buffered inputs for which the table was written
        self.mapped_bytes = self._partial.size + self._barrier.size + self._table.size

    @property
    def _count(self) -> int:
        return sum(len(buffers) + 2 * scratch for _, buffers, scratch in self._text.calls)

    def forget(self) -> None:
        """Invalidates the address table."""
        self._table_inputs = None

    def launch(
        self, records: int, steps: int, data: int, losses: int, second: Callable[[int], int], elsewhere: frozenset[int]
    ) -> None:
        """Enqueues some steps; every other step reads the inputs `elsewhere` from their second buffer."""
        if elsewhere != self._table_inputs:
            self._write_table(second, elsewhere)
        self._barrier.fill(0)
        pointers = records, self._table.address, data, self._partial.address, losses, self._barrier.address
        first, *rest = map(ctypes.c_void_p, pointers)
        self._kernel.launch([first, ctypes.c_int(steps), *rest])

    def _write_table(self, second: Callable[[int], int], elsewhere: frozenset[int]) -> None:
        """Writes the address tables of even and odd steps."""
        program, table = self._program, list[int]()
        place = program.step_addresses(program.address, 0)
        for odd in (False, True):
            for kernel, buffers, scratch in self._text.calls:
                schedule = schedule_of(kernel)
                if scratch:
                    table += [place.scratch + schedule.scratch_at, place.counters + 4 * schedule.counters_at]
                table += [second(b) if odd and b in elsewhere else program.address(b) for b in buffers]
        self._table.write(0, np.array(table, np.uint64))
        self._table_inputs = elsewhere


def persistent_of(program: CudaProgram, gpu: Gpu, architecture: str, cache: ContentStore) -> Persistent | None:
    """The persistent kernel of a program, if its plan has one and all blocks can be co-resident on the GPU."""
    step = find_persistent_step(program.plan)
    if isinstance(step, str) or why_not_resident(step.blocks, gpu.multiprocessors):
        return None
    return Persistent(program, gpu, step, architecture, cache)
