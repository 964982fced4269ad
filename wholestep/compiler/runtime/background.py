"""Background threads, for calls that release the interpreter lock: waiting for processes, or NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from threading import Thread
from typing import Generic, TypeVar

from wholestep import platforms

Result = TypeVar("Result")


class Background(Generic[Result]):
    """A call on its own thread (a future); `result` waits and returns its value or raises its error.

    A patient call, and the processes and threads that it starts, run at lower priority.
    """

    def __init__(self, call: Callable[[], Result], patient: bool = False) -> None:
        self._patient = patient
        self._values: list[Result] = []
        self._error: BaseException | None = None
        context = copy_context()  # spans of the call belong to the build that started it
        self._thread = Thread(target=context.run, args=(self._run, call))
        self._thread.start()

    def _run(self, call: Callable[[], Result]) -> None:
        try:
            if self._patient:
                platforms.lower_priority()
            self._values.append(call())
        except BaseException as error:  # raised again by `result`
            self._error = error

    def wait(self) -> None:
        """Return when the call has ended, with a value or an error."""
        self._thread.join()

    def result(self) -> Result:
        """The value of the call; raises its error."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._values[0]


def run_all(calls: Sequence[Callable[[], object]], threads: int) -> None:
    """Run all calls in order on `threads` threads, the caller's included; after an error no further call starts."""
    pending, errors = iter(calls), list[BaseException]()

    def work() -> None:
        try:
            for call in pending:  # a list iterator yields each item to one thread only
                if errors:
                    return
                call()
        except BaseException as error:  # raised below, on the caller's thread
            errors.append(error)

    others = [Thread(target=work) for _ in range(min(threads, len(calls)) - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
