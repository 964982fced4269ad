"""Launches on the CPU: outputs in place, saved outputs of a step, and epochs that run natively in slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from wholestep.compiler.backend import Epoch, StepRange
from wholestep.compiler.backends.common.program import ProgramBase
from wholestep.compiler.backends.common.rank_shares import SliceLength
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.kernel import Buffer
from wholestep.compiler.plan.model.layout import unpack
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.state.state import State
from wholestep.records import dataclass


@dataclass(frozen=True)
class StoredOutput:
    """An output: its type, its layout, and its bytes."""

    buffer: Buffer
    stored: AnyArray

    def copy(self) -> StoredOutput:
        """A copy of the output, with bytes of its own."""
        return StoredOutput(self.buffer, self.stored.copy())

    def read(self, sizes: Mapping[str, int]) -> AnyArray:
        """A copy of the output in the user's shape and type."""
        type = self.buffer.type
        return unpack(self.stored, [evaluate(e, sizes) for e in type.shape], self.buffer.layout)


@dataclass(frozen=True)
class StepOutputs:
    """The saved outputs of a step."""

    outlets: Mapping[str, StoredOutput]
    sizes: Mapping[str, int]

    def wait(self) -> None:
        """Return at once: the step is complete."""

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


class NativeProgram(ProgramBase):
    """A program whose steps are complete when `launch` returns, and whose epochs are native loops over slices."""

    _state: State
    pace: SliceLength
    _seen_version = -1  # the version of the state that the copies were made from

    def stored_output(self, name: str) -> AnyArray:
        """The flat array of an output."""
        raise NotImplementedError

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """Does a step count as an update?  Not if its output `unless` is nonzero; `stop` then ends an epoch."""
        super().count_steps(advances, unless, stop)
        self._refused = None if unless is None else self.stored_output(unless)

    def wait(self) -> None:
        """Return at once: a step is complete when `launch` returns."""

    def show(self) -> None:
        """Mark the copies of states as current: the ranks of one process have all made the same steps."""
        self._seen_version = self._state.family.version

    def epoch(self, epoch: Epoch) -> CpuEpoch:
        """Run steps until the end of the epoch, in slices of about 50 ms."""
        return CpuEpoch(epoch, partial(self._run_slice, epoch, self.loop_of(epoch)))

    def _run_slice(self, epoch: Epoch, loop: Any, losses: AnyArray, done: int) -> int:
        """Run some steps of an epoch; returns how many.  Rewrites all arguments: other programs may have run before."""
        run = self.prepare_slice(epoch, loop, losses, done, self.pace.steps(len(losses) - done))
        steps = run() if self.pace.alone else self.pace.measure(run)
        self.count_slice(steps)
        self.show()
        return steps

    @staticmethod
    def place_slice(loop: Any, epoch: Epoch, losses: AnyArray, done: int, most: int) -> None:
        """Let a native loop begin after `done` steps of an epoch, run `most`, and write their losses."""
        loop.position = (epoch.first + done) * epoch.batch
        loop.steps = min(most, epoch.every or len(losses))
        loop.losses = losses.ctypes.data + done * losses.itemsize

    def loop_of(self, epoch: Epoch) -> Any:
        """The native loop's description of an epoch, without the start of a slice."""
        raise NotImplementedError

    def prepare_slice(self, epoch: Epoch, loop: Any, losses: AnyArray, done: int, most: int) -> Callable[[], int]:
        """Prepare a slice, and return its native call."""
        raise NotImplementedError

    def count_slice(self, steps: int) -> None:
        """Finish a slice after its native call."""
        raise NotImplementedError
