"""Entry points and their results.  Values are read on access, which waits for an asynchronous device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, NoReturn, Protocol
from weakref import WeakSet, ref

from wholestep import platforms
from wholestep.compiler.backend import IndexRefusedError, Launch, Program
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import UnknownNameError, UsageError
from wholestep.lazy import interop
from wholestep.session.running.inputs import Inputs

PAUSE = 20e-6  # seconds between two attempts of a waiting thread


class SessionLock:
    """A lock as a token in a list.  It is not reentrant.

    `list.pop` and `list.append` are atomic and take a tenth of the time of `threading.Lock`, which is measurable in
    a step of a small network.
    """

    def __init__(self) -> None:
        self._tokens = [None]
        self.take_now = self._tokens.pop  # IndexError if another thread holds it: then `wait`
        self.give_back = self._tokens.append
        _LIVE.add(self)

    def wait(self) -> None:
        """Acquire the lock."""
        while True:
            try:
                return self.take_now()
            except IndexError:
                time.sleep(PAUSE)

    def __enter__(self) -> None:
        self.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back(None)

    def renew(self) -> None:
        """Make the lock free."""
        self._tokens[:] = [None]


_LIVE: WeakSet[SessionLock] = WeakSet()


def _after_fork() -> None:
    """In a forked child: free all locks, whose holders are threads of the parent."""
    for turns in _LIVE:
        turns.renew()


platforms.after_fork(_after_fork)


class Readings(Protocol):
    """The metrics of a session by name."""

    def of(self, result: StepResult) -> dict[str, Any]:
        """The current metrics, with the values that the step itself reports."""


class EntryPoint:
    """A loaded program with the user's inputs and outputs by name."""

    def __init__(self, program: Program, turns: SessionLock, readings: Readings | None = None) -> None:
        self.program = program
        self.turns = turns  # the lock of the threads that share the session
        # On a synchronous device the next step, possibly of another thread, overwrites outputs: readers acquire the
        # lock.
        self.reading: AbstractContextManager[None] = turns if program.synchronous else nullcontext()
        self._take, self._give_back = turns.take_now, turns.give_back
        self.readings = readings
        self.plan = program.plan
        self.inputs = Inputs(program)
        self._bind, self._launch = self.inputs.bind, program.launch
        self.outputs = program.outputs
        first = next(iter(self.outputs.values()), None)
        self.has_loss = first is not None and first.shape == () and first.dtype.is_float
        # On a synchronous device the loss is read immediately, otherwise on access.
        self._loss_now = program.loss if self.has_loss and program.synchronous else _no_loss_yet
        self.ran = False
        self.step_seconds: float | None = None  # seconds per step of the fastest slice of a run
        self._last: Callable[[], StepResult | None] = _no_result

    def __call__(self, arrays: Mapping[str, object]) -> StepResult:
        """Run a step; on an asynchronous device launch it."""
        try:
            self._take()
        except IndexError:
            self.turns.wait()
        try:
            sizes = self._bind(arrays)
            last = self._last()
            if last is not None:
                last.detach()
            launch = self._launch(sizes)
            self.ran = True
            result = StepResult(self, launch, self._loss_now())
            self._last = ref(result)
            return result
        except IndexRefusedError:
            self.inputs.refuse_indices(arrays)
        finally:
            self._give_back(None)

    def parts(self, arrays: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """The arrays in parts that fit the capacity; whole if they fit, or cannot be split by rows."""
        leading = {t.shape[:1] for t in (*(i.type for i in self.inputs.all), *self.outputs.values())}
        rows = {len(a) for a in arrays.values() if isinstance(a, Sized)}
        symbol = str(next(iter(leading))[0]) if len(leading) == 1 and () not in leading else ""
        most = self.plan.sizes.get(symbol, 0)
        if len(rows) != 1 or not 0 < most < (count := rows.pop()):
            yield arrays
            return
        for start in range(0, count, most):
            yield {name: a[start : start + most] for name, a in arrays.items()}  # type: ignore[index]

    def time_slice(self, steps: int, seconds: float) -> None:
        """Record the time of a slice of a run."""
        if steps:
            self.step_seconds = min(seconds / steps, self.step_seconds or seconds / steps)

    def loss(self) -> float:
        """The loss of the last step."""
        return self.program.loss() if self.has_loss else _no_loss()

    def release(self) -> None:
        """Copy the outputs of the last result, if it is still referenced: they are overwritten next."""
        if (last := self._last()) is not None:
            last.detach()
        self._last = _no_result

    def result(self) -> StepResult:
        """The result of the program's last step or epoch."""
        result = StepResult(self, self.program, self._loss_now())
        self._last = ref(result)
        return result

    def read(self, name: str) -> AnyArray:
        """An output of the last step, copied."""
        return self.program.read(self.known(name))

    def known(self, name: str) -> str:
        """Return the name; UnknownNameError if there is no such output."""
        if name not in self.outputs:
            listed = ", ".join(map(repr, self.outputs)) or "none"
            raise UnknownNameError(
                f"there is no output named {name!r}; there are: {listed}. Keep a tensor to read it: tensor.keep()."
            )
        return name


def _no_result() -> None:
    """The last result of an entry point that has not run yet."""


def _no_loss_yet() -> None:
    """A placeholder of the loss, because the step may still be running."""


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

    __slots__ = ("__weakref__", "_entry", "_launch", "_loss")

    def __init__(self, entry: EntryPoint, ticket: Launch, loss: float | None) -> None:
        self._entry, self._launch, self._loss = entry, ticket, loss

    @property
    def loss(self) -> float:
        """The first output; waits for the step."""
        if self._loss is None:
            if not self._entry.has_loss:
                _no_loss()
            with self._entry.reading:
                self._loss = self._launch.loss()
        return self._loss

    def wait(self) -> None:
        """Block until the step is done; raises its error."""
        self._launch.wait()

    @property
    def metrics(self) -> dict[str, Any]:
        """The session's metrics over the epoch so far, at the time of reading; `grad_norm` is the norm of this step."""
        readings = self._entry.readings
        return {} if readings is None else readings.of(self)

    @property
    def outputs(self) -> dict[str, AnyArray]:
        """All outputs of the step, by name."""
        return {name: self[name] for name in self._entry.outputs}

    def detach(self) -> None:
        """Copy the outputs: the next step overwrites their memory."""
        self._launch = self._launch.keep()

    def __getitem__(self, name: str) -> AnyArray:
        output = self._entry.known(name)
        with self._entry.reading:
            return self._launch.read(output)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except UnknownNameError as error:
            if interop.suggestion("the result of a step", name) is None:
                raise AttributeError(str(error)) from None
            return interop.foreign_attribute("the result of a step", self, name)

    def __float__(self) -> float:
        return self.loss

    def __repr__(self) -> str:
        return f"StepResult(loss={self.loss:.6g})" if self._entry.has_loss else "StepResult()"
