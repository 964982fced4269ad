"""Background threads, for calls that release the interpreter lock: waiting for processes, or NumPy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from threading import Thread, get_native_id
from typing import Generic, TypeVar

Result = TypeVar("Result")

# Nice value of background work: about half of the CPU share of normal threads.  A smaller share would delay callers
# that wait for the result on a busy machine.
PATIENCE = 3


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
                _be_patient()
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


def _be_patient() -> None:
    """Lower the priority of this thread (Linux has priorities per thread), unless it is lower already."""
    if sys.platform == "linux":
        thread = get_native_id()
        with suppress(OSError):  # a container may refuse it
            os.setpriority(os.PRIO_PROCESS, thread, max(PATIENCE, os.getpriority(os.PRIO_PROCESS, thread)))


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
