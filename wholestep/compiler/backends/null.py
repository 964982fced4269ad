"""A device that plans and reports but cannot run: for machines without a C compiler, and for planning other targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

from wholestep.compiler.backend import Epoch, LoadContext, MicroBatchShape, NoScratch, Program, StepRange, do_nothing
from wholestep.compiler.backends.common.program import ProgramBase
from wholestep.compiler.backends.cpu.target import detect_target
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.state.slot import host_memory
from wholestep.compiler.target import Target
from wholestep.errors import UsageError
from wholestep.options import CompileOptions


class NullProgram(ProgramBase):
    """A plan without compiled code."""

    mapped_bytes = 0

    @property
    def source(self) -> str:
        return _refuse("has no source")

    def scalar(self, name: str, value: float) -> None:
        """Ignored: nothing is computed."""

    def staging(self, name: str) -> AnyArray:
        return _refuse("takes no inputs")

    def launch(self, sizes: Mapping[str, int]) -> NullProgram:
        return _refuse("cannot step")

    def epoch(self, epoch: Epoch) -> Iterator[StepRange]:
        return _refuse("cannot run")

    def wait(self) -> None:
        """Return at once: nothing was started."""

    def loss(self) -> float:
        return _refuse("has no loss")

    def read(self, name: str) -> AnyArray:
        return _refuse("has no outputs")

    def keep(self) -> NullProgram:
        return self


def _refuse(what: str) -> NoReturn:
    raise UsageError(f"a session on the null device plans and reports but {what}. Build it with device='cpu'.")


class NullDevice:
    """The null device for one target, which this machine need not have."""

    runs = False

    def __init__(self, target: Target) -> None:
        self.target, self.memory = target, host_memory()
        self.name = f"null:{target.name}"

    def scratch(self) -> NoScratch:
        return NoScratch()

    def prepare(self, options: CompileOptions) -> None:
        """Nothing to prepare."""

    def load(
        self, plan: Plan, place: LoadContext, key: str = "", meanwhile: Callable[[], None] = do_nothing
    ) -> NullProgram:
        return NullProgram(plan)

    def load_micro_batches(
        self, plan: Plan, programs: Sequence[Program], place: LoadContext, shape: MicroBatchShape
    ) -> NullProgram:
        return NullProgram(plan)

    def program_key(self, plan: Plan, options: CompileOptions, key: str = "") -> str:
        return _refuse("compiles nothing")

    def notes(self, plan: Plan) -> tuple[str, ...]:
        return plan.notes


def default_target() -> Target:
    """The target that `device="null"` plans for: this machine's CPU."""
    return detect_target()


def make_device(target: Target) -> NullDevice:
    """A device that plans for any target."""
    return NullDevice(target)
