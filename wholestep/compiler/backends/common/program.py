"""Base classes of programs: properties that follow from a plan alone, and programs that combine others.

A backend's program adds memory and `launch`.  `ProgramBase` implements the rest of the interface
(`wholestep/compiler/backend.py`) by the handle of the last launch, `_last`; a backend overrides what it does natively.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from wholestep.compiler.backend import Epoch, Launch, Slicing, StepRange, epoch_of_launches
from wholestep.compiler.ir.types import TensorType, evaluate
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray


class ProgramBase:
    """A plan whose inputs are bound by name; its outputs are the outputs of the last launch."""

    synchronous = True
    _last: Launch  # the handle of the last launch
    pace: Slicing | None = None  # how ranks agree on the steps of a range; None: this program runs alone

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.outputs: Mapping[str, TensorType] = {name: plan.buffers[id].type for name, id in plan.outputs}
        self._inputs: dict[str, AnyArray] = {}  # bound for the next launch
        self._staging: Mapping[str, AnyArray] = {}

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """Does a launch count as an update?  Not if its output `unless` is nonzero; `stop` then ends a range."""
        self._advances, self._unless, self._stop = advances, unless, stop

    def counts(self, launch: Launch) -> bool:
        """Is this launch an update?  Waits for it if an output decides that."""
        return self._advances and (self._unless is None or not launch.read(self._unless))

    def staging(self, name: str) -> AnyArray:
        """The array into which an input is converted, copied or gathered."""
        return self._staging[name]

    def bind(self, name: str, array: AnyArray) -> None:
        """Set an input of the next launch."""
        self._inputs[name] = array

    def epoch(self, epoch: Epoch) -> Iterator[StepRange]:
        """Run the steps of an epoch, one launch after the other."""
        return epoch_of_launches(self, epoch, self._unless if self._stop else None, self.pace)  # type: ignore[arg-type]

    def wait(self) -> None:
        """Return when all launches are done."""
        self._last.wait()

    def loss(self) -> float:
        """The first output of the last launch."""
        return self._last.loss()

    def read(self, name: str) -> AnyArray:
        """A copy of an output of the last launch."""
        return self._last.read(name)

    def keep(self) -> Launch:
        """The outputs of the last launch, valid after the next one."""
        return self._last.keep()


class CombinedProgram(ProgramBase):
    """Several programs combined into one, with the outputs of one of them: phases of a step, or simulated ranks."""

    own_bytes = 0  # mapped in addition to the memory of the programs

    def __init__(self, plan: Plan, programs: Sequence[Any], result: Any) -> None:
        super().__init__(plan)
        self.programs, self._last = tuple(programs), result
        self.outputs = result.outputs
        self.loss = result.loss  # type: ignore[method-assign]  # reading the loss costs one call

    @property
    def source(self) -> str:
        """The distinct sources of all programs, one after another."""
        return "\n".join(dict.fromkeys(program.source for program in self.programs))

    @property
    def mapped_bytes(self) -> int:
        """The bytes of all programs."""
        return self.own_bytes + sum(int(program.mapped_bytes) for program in self.programs)

    def scalar(self, name: str, value: float) -> None:
        """Set a runtime scalar of every program that uses it."""
        for program in self.programs:
            program.scalar(name, value)

    def wait(self) -> None:
        """Return when all launches of all programs are done."""
        for program in self.programs:
            program.wait()


def staging_arrays(plan: Plan) -> dict[str, AnyArray]:
    """A flat array for every input of a plan, with room for its capacity."""
    types = {name: plan.buffers[id].type for name, id in plan.inputs}
    return {name: np.empty(evaluate(t.elements, plan.sizes), t.dtype.numpy) for name, t in types.items()}
