"""Update counters: how often each optimizer has updated each parameter, as seen by the program being recorded.

A program reads the global step and, for each group of parameters with equal update counts at recording time, one
runtime scalar: the step at which that count was (or would have been) 0.  The count is step - start.  While a session
runs, its step and all counts advance together, so that these scalars stay constant and nothing else is counted.
"""

from __future__ import annotations

from collections.abc import Callable

# If an optimizer averages the weights `w`, its updates are counted as `w.ema`; `w` is the average, and `w.raw` the
# trained weights (optim/core/averages.py).
AVERAGE, RAW = ".ema", ".raw"
# The start of the session's own updates, which schedules count from; a numeric suffix marks a parameter group's start.
START = "step.start"


def is_counter(scalar: str) -> bool:
    """Is this runtime scalar set by the session rather than by the user?"""
    return scalar in ("step", "epoch") or scalar.startswith(START)


class UpdateCounters:
    """Maps a key (`"w.adam"`: parameter and optimizer slot) to the runtime scalar with the start of its count."""

    def __init__(self, inherited: UpdateCounters | None = None, count_of: Callable[[str], int] | None = None) -> None:
        self.starts: dict[str, str] = {} if inherited is None else dict(inherited.starts)
        # The weights whose averages a step computes (optim/core/averages.py).
        self.averaged: set[str] = set() if inherited is None else set(inherited.averaged)
        self._count_of = count_of
        self._of_count: dict[int, str] = {}

    def start_of(self, key: str) -> str:
        """The scalar of a key, shared by all keys with the same count."""
        if key not in self.starts:
            count = 0 if self._count_of is None else self._count_of(key)
            if count not in self._of_count:
                self._of_count[count] = f"{START}{len(set(self.starts.values()))}"
            self.starts[key] = self._of_count[count]
        return self.starts[key]

    def cohorts(self) -> dict[str, list[str]]:
        """The keys that share each scalar."""
        groups: dict[str, list[str]] = {}
        for key, start in self.starts.items():
            groups.setdefault(start, []).append(key)
        return groups
