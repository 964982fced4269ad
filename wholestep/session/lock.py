"""Threads that share a session take turns, from giving inputs to taking results."""

from __future__ import annotations

import os
import time
from types import TracebackType
from weakref import WeakSet

PAUSE = 20e-6  # seconds between two looks of a thread that waits


class Turns:
    """One thread at a time, by a token.  Its holder must not ask for it again.

    Taking a list's only element and putting it back are single operations: a tenth of the time of a lock, which a step
    of a small network would feel.
    """

    def __init__(self) -> None:
        self._tokens = [None]
        self.take_now = self._tokens.pop  # IndexError where another thread has it: then `wait`
        self.give_back = self._tokens.append
        _LIVE.add(self)

    def wait(self) -> None:
        """Take the token when it is there."""
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
        """Nobody has it."""
        self._tokens[:] = [None]


_LIVE: WeakSet[Turns] = WeakSet()


def _after_fork() -> None:
    """In the child there are no threads that could give back what they hold in the parent."""
    for turns in _LIVE:
        turns.renew()


os.register_at_fork(after_in_child=_after_fork)
