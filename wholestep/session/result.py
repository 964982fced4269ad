"""What a step gives back: the loss at once, everything else when it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from weakref import ref

from wholestep.compiler.ir.types import TensorType, evaluate
from wholestep.compiler.plan.kernel import Layout
from wholestep.compiler.plan.layout import unpack
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.device import Program
from wholestep.errors import UnknownNameError, UsageError
from wholestep.session.inputs import Inputs


class EntryPoint:
    """A loaded program with inputs and outputs as the user knows them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.plan = program.plan
        self.inputs = Inputs(program)
        self.outputs = tuple(Outlet(name, program) for name, _ in program.plan.outputs)
        first = self.outputs[0] if self.outputs else None
        self.has_loss = first is not None and first.type.shape == () and first.type.dtype.is_float
        # The bound method of a one-element view: reading the loss costs one call.
        stored = first.stored if first is not None and self.has_loss else None
        self._item = _reader(stored)
        self.ran = False
        self._last: ref[StepResult] | None = None

    def __call__(self, given: Mapping[str, object]) -> StepResult:
        """One step."""
        self.inputs.bind(given)
        self.release()
        self.program.run()
        self.ran = True
        result = StepResult(self, self.inputs.sizes, self._item() if self.has_loss else None)
        self._last = ref(result)
        return result

    def loss(self) -> float:
        """The loss of the last step."""
        return self._item()

    def release(self) -> None:
        """Copy what the last result has not read yet, if anyone still holds it: its buffers are written next."""
        if self._last is not None and (held := self._last()) is not None:
            held.detach()
        self._last = None

    def read(self, name: str, sizes: Mapping[str, int]) -> AnyArray:
        """An output of the last step, copied."""
        for outlet in self.outputs:
            if outlet.name == name:
                return outlet.read(sizes)
        known = ", ".join(repr(o.name) for o in self.outputs) or "none"
        raise UnknownNameError(
            f"there is no output named {name!r}; there are: {known}. Keep a tensor to read it: tensor.keep()."
        )


class Outlet:
    """An output: its type and where a program leaves it."""

    def __init__(self, name: str, program: Program) -> None:
        buffer = program.plan.buffers[dict(program.plan.outputs)[name]]
        self.name = name
        self.type: TensorType = buffer.type
        self.layout: Layout = buffer.layout
        self.stored: AnyArray | None = program.outputs.get(name)
        if self.stored is not None and self.type.shape == ():
            self.stored = self.stored[:1]  # one number, without what pads its buffer

    def read(self, sizes: Mapping[str, int]) -> AnyArray:
        assert self.stored is not None, "a device that cannot run has no outputs"
        return unpack(self.stored, [evaluate(e, sizes) for e in self.type.shape], self.layout)


def _reader(stored: AnyArray | None) -> Callable[[], float]:
    return _no_loss if stored is None else stored.item  # type: ignore[return-value]


def _no_loss() -> NoReturn:
    raise UsageError(
        "this program has no loss: its first output is not a scalar float. Put the loss first in g.set_outputs."
    )


class StepResult:
    """The outcome of one step.  `float(result)` and `result.loss` are the loss; outputs are read by name.

    Example::

        result = session.step(x=xb, labels=yb)
        print(result.loss, result["logits"].argmax(axis=1))
    """

    __slots__ = ("__weakref__", "_entry", "_loss", "_sizes", "_values")

    def __init__(self, entry: EntryPoint, sizes: Mapping[str, int], loss: float | None) -> None:
        self._entry: EntryPoint | None = entry
        self._sizes, self._loss = sizes, loss
        self._values: dict[str, AnyArray] | None = None

    @property
    def loss(self) -> float:
        """The first output."""
        return _no_loss() if self._loss is None else self._loss

    @property
    def metrics(self) -> dict[str, float]:
        """The values of the session's metrics."""
        return {}

    @property
    def outputs(self) -> dict[str, AnyArray]:
        """All outputs by name."""
        self.detach()
        assert self._values is not None
        return dict(self._values)

    def detach(self) -> None:
        """Copy all outputs out of the session's memory; afterwards the result stands on its own."""
        if self._entry is not None:
            self._values = {o.name: o.read(self._sizes) for o in self._entry.outputs}
            self._entry = None

    def __getitem__(self, name: str) -> AnyArray:
        if self._entry is not None:
            return self._entry.read(name, self._sizes)
        assert self._values is not None
        if name not in self._values:
            raise UnknownNameError(
                f"there is no output named {name!r}; there are: {', '.join(map(repr, self._values))}."
            )
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except UnknownNameError as error:
            raise AttributeError(str(error)) from None

    def __float__(self) -> float:
        return self.loss

    def __repr__(self) -> str:
        return "StepResult()" if self._loss is None else f"StepResult(loss={self._loss:.6g})"
