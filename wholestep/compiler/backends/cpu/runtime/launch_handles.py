"""Handles of CPU launches: outputs in place, saved outputs of a step, and the slices of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from wholestep.compiler.backend import Epoch, StepRange
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.kernel import Buffer
from wholestep.compiler.plan.model.layout import unpack
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.records import dataclass


@dataclass(frozen=True)
class StoredOutput:
    """An output: its type, its layout, and its bytes."""

    buffer: Buffer
    stored: AnyArray

    def copy(self) -> StoredOutput:
        """The same output with its own bytes."""
        return StoredOutput(self.buffer, self.stored.copy())

    def read(self, sizes: Mapping[str, int]) -> AnyArray:
        """The output as the user sees it, copied."""
        type = self.buffer.type
        return unpack(self.stored, [evaluate(e, sizes) for e in type.shape], self.buffer.layout)


@dataclass(frozen=True)
class StepOutputs:
    """The saved outputs of a step."""

    outlets: Mapping[str, StoredOutput]
    sizes: Mapping[str, int]

    def wait(self) -> None:
        """Returns at once: the step is complete."""

    def loss(self) -> float:
        """The first output."""
        return float(next(iter(self.outlets.values())).stored[0])

    def read(self, name: str) -> AnyArray:
        """An output, copied."""
        return self.outlets[name].read(self.sizes)

    def keep(self) -> StepOutputs:
        """The outputs are already saved."""
        return self


class CpuEpoch:
    """Iterates over the slices of an epoch; each runs when it is requested."""

    def __init__(self, epoch: Epoch, run: Callable[[AnyArray, int], int]) -> None:
        """`run(losses, done)` runs steps after the first `done`, writes their losses, and returns how many it ran."""
        self._epoch, self._run, self._done = epoch, run, 0
        self._losses = np.zeros(epoch.end - epoch.first)

    def __iter__(self) -> CpuEpoch:
        return self

    def __next__(self) -> StepRange:
        epoch, done = self._epoch, self._done
        if done == len(self._losses):
            raise StopIteration
        self._done += self._run(self._losses, done)
        return StepRange.of(epoch, epoch.first + done, self._losses[done : self._done])
