"""What a step gives back: the loss at once, everything else when it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, NoReturn, Protocol
from weakref import ref

from wholestep.compiler.backend import Program
from wholestep.compiler.ir.types import TensorType, evaluate
from wholestep.compiler.plan.kernel import Layout
from wholestep.compiler.plan.layout import unpack
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import HabitError, UnknownNameError, UsageError
from wholestep.session.inputs import Inputs
from wholestep.session.turns import Turns

HABITS = {
    "backward": "session.step has computed the gradients and applied the update already; go on with the next step",
    "item": "write result.loss, or float(result)",
}


class Readings(Protocol):
    """What a session measures, as numbers by name."""

    def of(self, result: StepResult) -> dict[str, Any]:
        """The metrics at the time of asking, and what the step itself reports."""


class EntryPoint:
    """A loaded program with inputs and outputs as the user knows them."""

    def __init__(
        self, program: Program, turns: Turns, readings: Readings | None = None, last: Program | None = None
    ) -> None:
        self.program = program
        self.turns = turns  # of the threads that share the session
        self._take, self._give_back = turns.take_now, turns.give_back
        self.readings = readings
        results = last or program  # of a window's programs, the last one leaves the outputs
        self.plan = program.plan
        self.inputs = Inputs(program)
        self.outputs = tuple(Outlet(name, results) for name, _ in results.plan.outputs)
        first = self.outputs[0] if self.outputs else None
        self.has_loss = first is not None and first.type.shape == () and first.type.dtype.is_float
        # The bound method of a one-element view: reading the loss costs one call.
        stored = first.stored if first is not None and self.has_loss else None
        self._item = _reader(stored)
        self.ran = False
        self._last: ref[StepResult] | None = None

    def __call__(self, given: Mapping[str, object]) -> StepResult:
        """One step."""
        try:
            self._take()
        except IndexError:
            self.turns.wait()
        try:
            self.inputs.bind(given)
            self.release()
            if not self.program.run():
                self.inputs.refuse_indices(given)
            self.ran = True
            result = StepResult(self, self.inputs.sizes, self._item() if self.has_loss else None)
            self._last = ref(result)
            return result
        finally:
            self._give_back(None)

    def parts(self, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """What is given, cut into parts that fit the capacity; whole where it fits or cannot be cut by rows."""
        leading = {t.shape[:1] for t in (*(i.type for i in self.inputs.all), *(o.type for o in self.outputs))}
        rows = {len(a) for a in given.values() if isinstance(a, Sized)}
        symbol = str(next(iter(leading))[0]) if len(leading) == 1 and () not in leading else ""
        most = self.plan.sizes.get(symbol, 0)
        if len(rows) != 1 or not 0 < most < (count := rows.pop()):
            yield given
            return
        for start in range(0, count, most):
            yield {name: a[start : start + most] for name, a in given.items()}  # type: ignore[index]

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
        raise self.unknown(name)

    def unknown(self, name: str) -> UnknownNameError:
        known = ", ".join(repr(o.name) for o in self.outputs) or "none"
        return UnknownNameError(
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

    def copy(self) -> AnyArray:
        """The stored bytes as they are now."""
        assert self.stored is not None, "a device that cannot run has no outputs"
        return self.stored.copy()

    def read(self, sizes: Mapping[str, int], stored: AnyArray | None = None) -> AnyArray:
        """The output as the user sees it, from what is stored now or was stored before."""
        source = self.stored if stored is None else stored
        assert source is not None, "a device that cannot run has no outputs"
        return unpack(source, [evaluate(e, sizes) for e in self.type.shape], self.layout)


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

    __slots__ = ("__weakref__", "_entry", "_kept", "_loss", "_sizes")

    def __init__(self, entry: EntryPoint, sizes: Mapping[str, int], loss: float | None) -> None:
        self._entry, self._sizes, self._loss = entry, sizes, loss
        self._kept: tuple[AnyArray, ...] | None = None  # the outputs' bytes, once the session's are another step's

    @property
    def loss(self) -> float:
        """The first output."""
        return _no_loss() if self._loss is None else self._loss

    @property
    def metrics(self) -> dict[str, Any]:
        """The session's metrics: over the epoch so far, as they are when this is read; `grad_norm` is this step's."""
        readings = self._entry.readings
        return {} if readings is None else readings.of(self)

    @property
    def outputs(self) -> dict[str, AnyArray]:
        """All outputs by name."""
        return {o.name: self[o.name] for o in self._entry.outputs}

    def detach(self) -> None:
        """Keep the outputs as they are stored; the session's memory is written next."""
        if self._kept is None:
            self._kept = tuple(o.copy() for o in self._entry.outputs)

    def __getitem__(self, name: str) -> AnyArray:
        for i, outlet in enumerate(self._entry.outputs):
            if outlet.name == name:
                with self._entry.turns:  # another thread's step would write while this is read
                    return outlet.read(self._sizes, None if self._kept is None else self._kept[i])
        raise self._entry.unknown(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in HABITS:
            raise HabitError(f"the result of a step has no `{name}`: {HABITS[name]}.")
        try:
            return self[name]
        except UnknownNameError as error:
            raise AttributeError(str(error)) from None

    def __float__(self) -> float:
        return self.loss

    def __repr__(self) -> str:
        return "StepResult()" if self._loss is None else f"StepResult(loss={self._loss:.6g})"
