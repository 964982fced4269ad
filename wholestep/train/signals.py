"""Ctrl-C, SIGTERM and SIGHUP in a run with checkpoints: the current steps are finished and saved first."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from wholestep import platforms
from wholestep.callbacks.run import Run
from wholestep.errors import TrainingInterrupted

log = logging.getLogger("wholestep")


def is_ignored(number: signal.Signals) -> bool:
    """Is it SIGHUP in a process that was started with nohup?  A closed terminal then does not end it."""
    return number not in (signal.SIGINT, signal.SIGTERM) and signal.getsignal(number) == signal.SIG_IGN


class Receiver(Protocol):
    """The target of a signal: one run, or several."""

    def receive(self, signal: int, name: str) -> None:
        """Finish the current steps, save, and end."""


@contextmanager
def finish_before_exit(run: Run) -> Iterator[None]:
    """Turn the first signal into a request to stop, after which the process exits; the second one acts at once.

    Nothing changes without a callback that saves, or outside of the main thread, which alone receives signals.
    """
    saves = run.callbacks is not None and run.callbacks.saves
    if saves and threading.current_thread() is threading.main_thread():
        with handle_signals(run):
            yield
    else:
        yield
    if number := run.signal or run.received:  # the signal may be another worker's
        raise TrainingInterrupted(128 + number)


@contextmanager
def handle_signals(run: Receiver) -> Iterator[None]:
    """Pass the first signal to the run; the second one acts at once."""
    received: list[int] = []

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        run.receive(number, signal.Signals(number).name)
        for each, handler in before.items():
            signal.signal(each, handler)
        log.warning(
            "%s: the current steps are finished and saved; a second one ends at once", signal.Signals(number).name
        )

    before = {each: signal.signal(each, ask_to_stop) for each in platforms.ending_signals() if not is_ignored(each)}
    try:
        yield
    finally:
        if not received:
            for each, handler in before.items():
                signal.signal(each, handler)
