"""Launch handles: futures of steps on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from wholestep.compiler.backends.gpu.program_memory import is_small
from wholestep.compiler.runtime.arrays import AnyArray

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.driver.staging_ring import DeferredOutput, StagingSlot
    from wholestep.compiler.backends.cuda.runtime.program import CudaProgram


NOTHING: Mapping[str, Any] = MappingProxyType({})


class CudaLaunch:
    """Handle of a launch that may still be running.  One is created per step, so it is small."""

    __slots__ = ("__weakref__", "_coming", "_program", "_resolved", "_saved", "_sizes", "_turn")

    def __init__(
        self, program: CudaProgram, turn: StagingSlot, sizes: Mapping[str, int], saved: Mapping[str, AnyArray] = NOTHING
    ) -> None:
        self._program, self._turn, self._sizes, self._saved = program, turn, sizes, saved
        self._coming: Mapping[str, DeferredOutput] = NOTHING  # large outputs being copied to the host
        self._resolved = False

    def wait(self) -> None:
        """Waits until the launch is done."""
        if not self._resolved:
            self._program.wait_for(self._turn)

    def loss(self) -> float:
        """The first output, a scalar."""
        return float(self.read(next(iter(self._program.outputs))))

    def read(self, name: str) -> AnyArray:
        """A copy of an output."""
        if name in self._saved:
            return self._saved[name].copy()
        if name in self._coming:
            return self._coming[name].read()
        self.wait()
        return self._program.output(name, self._turn, self._sizes, self._program.is_latest(self))

    def keep(self) -> CudaLaunch:
        """Starts copying the outputs that the next launch overwrites; small outputs stay in their staging slot."""
        program = self._program
        if program.large_outputs and program.is_latest(self):
            names = [n for n in program.large_outputs if n not in self._saved and n not in self._coming]
            self._coming = {**self._coming, **{name: program.keep_output(name, self._sizes) for name in names}}
        return self

    def resolve(self) -> None:
        """Copies all remaining small outputs, because another launch needs the staging slot."""
        self.wait()
        plan = self._program.plan
        names = [name for name, id in plan.outputs if name not in self._saved and is_small(plan.buffers[id])]
        self._saved = {**self._saved, **{name: self.read(name) for name in names}}
        self._resolved = True
