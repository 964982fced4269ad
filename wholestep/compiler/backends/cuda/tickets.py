"""Launches of a GPU, which may still be under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from wholestep.compiler.backends.cuda.layout import is_small
from wholestep.compiler.runtime.arrays import AnyArray

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.exchange import Kept, Turn
    from wholestep.compiler.backends.cuda.program import CudaProgram


class CudaTicket:
    """A launch, which may still be under way."""

    def __init__(
        self, program: CudaProgram, turn: Turn, sizes: Mapping[str, int], kept: Mapping[str, AnyArray] | None = None
    ) -> None:
        self._program, self._turn, self._sizes = program, turn, sizes
        self._kept = dict(kept or {})
        self._coming: dict[str, Kept] = {}  # large outputs on their way
        self._resolved = False

    def wait(self) -> None:
        """Return when the launch is done."""
        if not self._resolved:
            self._turn.event.wait()

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
        if self._program.is_latest(self):
            for name in self._program.large_outputs:
                if name not in self._kept and name not in self._coming:
                    self._coming[name] = self._program.keep_output(name, self._sizes)
        return self

    def resolve(self) -> None:
        """Bring all that is still on the way: its place is needed by another launch."""
        self.wait()
        for name, id in self._program.plan.outputs:
            if name not in self._kept and is_small(self._program.plan.buffers[id]):
                self._kept[name] = self.read(name)
        self._resolved = True
