"""State storage on a GPU, and the scratch memory that the programs of a session share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np

from wholestep.compiler.backends.cuda.driver.driver import CudaModule, DeviceMemory, Gpu
from wholestep.compiler.backends.cuda.runtime.device_init import draw
from wholestep.compiler.backends.gpu.kernel_schedule import COUNTERS
from wholestep.compiler.backends.gpu.program_memory import align_size
from wholestep.compiler.frontend.initializers import InitialValue
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.plan.model.kernel import Layout, Plan
from wholestep.compiler.plan.model.layout import layout_bytes
from wholestep.compiler.runtime.arrays import AnyArray


class CudaArray:
    """A state on a GPU, dense and row-major."""

    def __init__(self, type: TensorType, block: DeviceMemory, offset: int) -> None:
        self.block, self.offset, self._dtype = block, offset, type.dtype
        self._shape = tuple(int(e) for e in type.shape)

    @property
    def address(self) -> int:
        return self.block.address + self.offset

    def read(self) -> AnyArray:
        """A copy of the state on the host, after all launched steps."""
        array = np.empty(self._shape, self._dtype.numpy)
        self.block.read(self.offset, array)
        return array

    def write(self, value: AnyArray) -> None:
        self.block.write(self.offset, np.ascontiguousarray(value))

    def fill(self, numbers: AnyArray) -> None:
        self.write(np.resize(numbers, self._shape).astype(self._dtype.numpy))

    def take(self, at: tuple[Any, ...]) -> AnyArray:
        return np.array(self.read()[at])

    def is_finite(self) -> bool:
        return not self._dtype.is_float or bool(np.isfinite(self.read()).all())


class CudaMemory:
    """State memory of one GPU."""

    turns = False

    def __init__(self, gpu: Gpu, whose: str = "") -> None:
        self.gpu, self.kind = gpu, f"cuda:{gpu.number}{whose}"
        self.drawing: Callable[[], CudaModule] | None = (
            None  # the module with the random initialisation; set by a loaded program
        )

    @property
    def free_bytes(self) -> int:
        """Free bytes of the GPU."""
        return self.gpu.free_bytes

    def hold(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> list[CudaArray]:
        """Allocates zeroed states in one block."""
        offsets, end = [], 0
        for type in types:
            offsets.append(end)
            end += align_size(layout_bytes(type, Layout.ROWS, {}))
        block = DeviceMemory(self.gpu, end)
        return [CudaArray(type, block, offset) for type, offset in zip(types, offsets, strict=True)]

    def draw(self, into: CudaArray, first: InitialValue) -> bool:
        """Computes a state's initial value on the GPU; False if it cannot."""
        return self.drawing is not None and draw(self.drawing, into.block, into.offset, first)


class ScratchUser(Protocol):
    """A program that stores addresses of scratch memory."""

    def place_scratch(self) -> None:
        """Updates its addresses."""


class CudaScratch:
    """The arena, as large as the largest plan needs, and the arrival counters of split sums."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.arena = DeviceMemory(gpu, 1)
        self.counters = DeviceMemory(gpu, 4 * COUNTERS)
        self.users: WeakSet[ScratchUser] = WeakSet()

    @property
    def mapped_bytes(self) -> int:
        return self.arena.size + self.counters.size

    def reserve(self, plan: Plan, threads: int) -> None:
        """Grows the arena for a plan.  If addresses change, the programs that use it are updated."""
        if plan.arena_bytes > self.arena.size:
            self._gpu.wait()  # a launch may still use the old one
            self.arena = DeviceMemory(self._gpu, plan.arena_bytes)
            for user in list(self.users):
                user.place_scratch()

    def spoil(self) -> None:
        """Fills the arena with NaN: no kernel may rely on zeros."""
        self.arena.fill(255)
