"""A device that plans and reports but cannot run: for machines without a compiler, and for looking before building."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from wholestep.compiler.backend import Epoch, IndexBound, Place, Program, WindowShape, nothing
from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import UsageError
from wholestep.options import CompileOptions


class NullProgram:
    """A plan that was loaded nowhere."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.mapped_bytes = 0
        self.dims: list[int] = list(plan.capacity)
        self.addresses: list[int] = [0 for _ in plan.pointer_buffers()]
        self.slots: dict[str, int] = {}
        self.staging: dict[str, AnyArray] = {}
        self.outputs: dict[str, AnyArray] = {}

    @property
    def source(self) -> str:
        return _refuse("has no source")

    def bind(self) -> None:
        """It has no memory to bind."""

    def set_scalar(self, name: str, value: float) -> bool:
        return any(s.name == name for s in self.plan.scalars)

    def set_bounds(self, bounds: Sequence[IndexBound]) -> None:
        """It is never given anything."""

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """It makes no steps."""

    def run(self) -> bool:
        return _refuse("cannot step")

    def run_epoch(self, epoch: Epoch) -> Iterator[None]:
        _refuse("cannot run")


def _refuse(what: str) -> NoReturn:
    raise UsageError(f"a session on the null device plans and reports but {what}. Build it with device='cpu'.")


class NullDevice:
    name = "null"
    runs = False

    def prepare(self, options: CompileOptions) -> None:
        """Nothing is needed."""

    def load(self, plan: Plan, place: Place, key: str = "", meanwhile: Callable[[], None] = nothing) -> NullProgram:
        return NullProgram(plan)

    def load_window(self, plan: Plan, programs: Sequence[Program], place: Place, shape: WindowShape) -> NullProgram:
        return NullProgram(plan)

    def program_key(self, plan: Plan, options: CompileOptions, key: str = "") -> str:
        return _refuse("compiles nothing")


DEVICE = NullDevice()
