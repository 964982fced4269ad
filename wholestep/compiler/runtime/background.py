"""Work on several threads of Python: calls that wait for processes or for NumPy, which let others run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from threading import Thread, get_native_id
from typing import Generic, TypeVar

Result = TypeVar("Result")

PATIENCE = 3  # as `nice` counts.  Half of what others get, no less: on a machine that is busy, someone may wait for it


class Background(Generic[Result]):
    """A call on a thread of its own; `result` waits for it and gives its value or its error.

    A patient one, and the processes and threads that it starts, has the time that others leave.
    """

    def __init__(self, call: Callable[[], Result], patient: bool = False) -> None:
        self._patient = patient
        self._values: list[Result] = []
        self._error: BaseException | None = None
        context = copy_context()  # spans of the call belong to the build that began it
        self._thread = Thread(target=context.run, args=(self._run, call))
        self._thread.start()

    def _run(self, call: Callable[[], Result]) -> None:
        try:
            if self._patient:
                _be_patient()
            self._values.append(call())
        except BaseException as error:  # handed to whoever asks for the result
            self._error = error

    def wait(self) -> None:
        """Return when the call has, whatever came of it."""
        self._thread.join()

    def result(self) -> Result:
        """What the call gave."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._values[0]


def _be_patient() -> None:
    """Give way to others, where every thread has a priority of its own, and unless the process does so already."""
    if sys.platform == "linux":
        thread = get_native_id()
        with suppress(OSError):  # a container may refuse it
            os.setpriority(os.PRIO_PROCESS, thread, max(PATIENCE, os.getpriority(os.PRIO_PROCESS, thread)))


def run_all(calls: Sequence[Callable[[], object]], threads: int) -> None:
    """Make all calls, the first ones first, so many at a time; after an error no further one begins."""
    waiting, errors = iter(calls), list[BaseException]()

    def work() -> None:
        try:
            for call in waiting:  # a list's iterator gives each item to one thread
                if errors:
                    return
                call()
        except BaseException as error:  # raised below, where the caller sees it
            errors.append(error)

    others = [Thread(target=work) for _ in range(min(threads, len(calls)) - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
