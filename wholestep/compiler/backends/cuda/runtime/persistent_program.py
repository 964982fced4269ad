"""The kernel of many steps on a GPU: `persistent/eligibility.py` says which plans have one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from wholestep.compiler.backends.cuda.driver.driver import CooperativeKernel, CudaModule, DeviceMemory, Gpu
from wholestep.compiler.backends.cuda.driver.nvrtc import compile_kernels
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.gpu.persistent.eligibility import THREADS, Staying, find_staying, has_room
from wholestep.compiler.backends.gpu.render.persistent_step import NAME, render_staying
from wholestep.compiler.backends.gpu.render.source import native
from wholestep.compiler.runtime.cache.content_store import ContentStore

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.runtime.program import CudaProgram


class Persistent:
    """A kernel that runs some steps over data on the GPU in one launch."""

    def __init__(self, program: CudaProgram, gpu: Gpu, found: Staying, architecture: str, cache: ContentStore) -> None:
        self._program, self._gpu, self.input = program, gpu, found.input
        self._text = render_staying(program.plan, found)
        body = "\n".join([native("gather.h"), native("staying.h"), self._text.text])
        self._module = CudaModule(gpu, compile_kernels(body, architecture, cache))
        self._kernel = CooperativeKernel(gpu, self._module.function(NAME), found.blocks, THREADS, self._text.bytes)
        self._partial = DeviceMemory(gpu, found.partial_bytes)
        self._come = DeviceMemory(gpu, 4)
        self._table = DeviceMemory(gpu, 16 * self._count)
        self._of: frozenset[int] | None = None  # inputs with a second place, as the table has them
        self.mapped_bytes = self._partial.size + self._come.size + self._table.size

    @property
    def _count(self) -> int:
        return sum(len(buffers) + 2 * scratch for _, buffers, scratch in self._text.calls)

    def forget(self) -> None:
        """Addresses have changed."""
        self._of = None

    def launch(
        self, records: int, steps: int, data: int, losses: int, second: Callable[[int], int], elsewhere: frozenset[int]
    ) -> None:
        """Queue some steps; inputs of every other one are `elsewhere`, in their second place."""
        if elsewhere != self._of:
            self._write_table(second, elsewhere)
        self._come.fill(0)
        pointers = records, self._table.address, data, self._partial.address, losses, self._come.address
        first, *rest = map(ctypes.c_void_p, pointers)
        self._kernel.launch([first, ctypes.c_int(steps), *rest])

    def _write_table(self, second: Callable[[int], int], elsewhere: frozenset[int]) -> None:
        """What every kernel is given, in steps of an even number and in the others."""
        program, found = self._program, list[int]()
        place = program.placed(program.address, 0)
        for odd in (False, True):
            for kernel, buffers, scratch in self._text.calls:
                own = schedule_of(kernel)
                if scratch:
                    found += [place.scratch + own.scratch_at, place.counters + 4 * own.counters_at]
                found += [second(b) if odd and b in elsewhere else program.address(b) for b in buffers]
        self._table.write(0, np.array(found, np.uint64))
        self._of = elsewhere


def persistent_of(program: CudaProgram, gpu: Gpu, architecture: str, cache: ContentStore) -> Persistent | None:
    """The kernel of a program's steps, where its plan has one and the GPU has room for all blocks at once."""
    found = find_staying(program.plan)
    if isinstance(found, str) or not has_room(found, gpu.multiprocessors):
        return None
    return Persistent(program, gpu, found, architecture, cache)
