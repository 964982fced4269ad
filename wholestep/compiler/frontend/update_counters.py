"""How often each optimizer has updated each parameter, as the program that is being recorded sees it.

A program is told the state's step and, for parameters that had equally many updates when it was recorded, the step at
which that count would have been 0: one runtime scalar for all of them.  While a session runs, its step and the counts
of what it updates advance together, so that this scalar stands still and nothing else has to be counted.
"""

from __future__ import annotations

from collections.abc import Callable

# Where an optimizer averages the weights `w`, its updates are counted as `w.ema`; `w` is the average, and `w.raw` what
# is being trained (optim/core/averages.py).
AVERAGE, RAW = ".ema", ".raw"
START = "step.start"  # of the session's own updates, which schedules follow; with a number behind it, of parameters


def is_counter(scalar: str) -> bool:
    """Is it the session that sets this runtime scalar, not its user?"""
    return scalar in ("step", "epoch") or scalar.startswith(START)


class Clocks:
    """key (`"w.adam"`: a parameter and the slot of an optimizer) -> the scalar from which its updates are counted."""

    def __init__(self, known: Clocks | None = None, count_of: Callable[[str], int] | None = None) -> None:
        self.starts: dict[str, str] = {} if known is None else dict(known.starts)
        self.averaged: set[str] = set() if known is None else set(known.averaged)  # weights, see optim/core/averages.py
        self._count_of = count_of
        self._of_count: dict[int, str] = {}

    def start_of(self, key: str) -> str:
        """The scalar of a key: that of the keys before it which have the same count."""
        if key not in self.starts:
            count = 0 if self._count_of is None else self._count_of(key)
            if count not in self._of_count:
                self._of_count[count] = f"{START}{len(set(self.starts.values()))}"
            self.starts[key] = self._of_count[count]
        return self.starts[key]

    def cohorts(self) -> dict[str, list[str]]:
        """The keys of each scalar."""
        found: dict[str, list[str]] = {}
        for key, start in self.starts.items():
            found.setdefault(start, []).append(key)
        return found
