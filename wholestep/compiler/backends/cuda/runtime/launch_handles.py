"""Launches of a GPU, which may still be under way."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from wholestep.compiler.backends.cuda.runtime.program_memory import is_small
from wholestep.compiler.runtime.arrays import AnyArray

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.driver.staging_ring import DeferredOutput, StagingSlot
    from wholestep.compiler.backends.cuda.runtime.program import CudaProgram


NOTHING: Mapping[str, Any] = MappingProxyType({})


class CudaTicket:
    """A launch, which may still be under way.  Every step makes one: there is little in it."""

    __slots__ = ("__weakref__", "_coming", "_kept", "_program", "_resolved", "_sizes", "_turn")

    def __init__(
        self, program: CudaProgram, turn: StagingSlot, sizes: Mapping[str, int], kept: Mapping[str, AnyArray] = NOTHING
    ) -> None:
        self._program, self._turn, self._sizes, self._kept = program, turn, sizes, kept
        self._coming: Mapping[str, DeferredOutput] = NOTHING  # large outputs on their way
        self._resolved = False

    def wait(self) -> None:
        """Return when the launch is done."""
        if not self._resolved:
            self._program.wait_for(self._turn)

    def loss(self) -> float:
        """The first output, where it is one number."""
        return float(self.read(next(iter(self._program.outputs))))

    def read(self, name: str) -> AnyArray:
        """A copy of an output."""
        if name in self._kept:
            return self._kept[name].copy()
        if name in self._coming:
            return self._coming[name].read()
        self.wait()
        return self._program.output(name, self._turn, self._sizes, self._program.is_latest(self))

    def keep(self) -> CudaTicket:
        """Have what the next launch writes over brought; small outputs have places of their own for some launches."""
        program = self._program
        if program.large_outputs and program.is_latest(self):
            names = [n for n in program.large_outputs if n not in self._kept and n not in self._coming]
            self._coming = {**self._coming, **{name: program.keep_output(name, self._sizes) for name in names}}
        return self

    def resolve(self) -> None:
        """Bring all that is still on the way: its place is needed by another launch."""
        self.wait()
        plan = self._program.plan
        names = [name for name, id in plan.outputs if name not in self._kept and is_small(plan.buffers[id])]
        self._kept = {**self._kept, **{name: self.read(name) for name in names}}
        self._resolved = True
