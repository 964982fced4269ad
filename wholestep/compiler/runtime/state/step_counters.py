"""Counters of a state: steps, epochs, and the updates of each parameter by each optimizer.

Programs advance one integer per step; the counters of the active session are derived from it lazily.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.records import dataclass


@dataclass(eq=False)
class SessionCounter:
    """The counters of one session: the parameters that its steps update, and the number of its updates."""

    keys: Sequence[str] = ()
    updates: int = 0


class Counting:
    """Programs advance `step`; each step counts for the session that is active (`turn`).

    Counters are brought up to date when another session becomes active or a counter is read, not in every step.
    """

    def __init__(self) -> None:
        self.step = 0  # number of updates so far
        self.epoch = 0  # number of epochs that `run` has finished: the shuffling key of the next epoch
        self.turn: SessionCounter | None = None
        self.shows_raw = False  # are averages of weights temporarily stored under the weights' raw names?
        self._since = 0  # the step up to which the counters are current
        self._updates: dict[str, int] = {}

    def take_turn(self, turn: SessionCounter | None) -> None:
        """Count later steps for the session whose counter is `turn`."""
        self._settle()
        self.turn = turn

    def updates_of(self, key: str) -> int:
        """The number of updates of a parameter by an optimizer; the key is like `"w.adam"`."""
        self._settle()
        return self._updates.get(key, 0)

    def updates_in(self, turn: SessionCounter) -> int:
        """The number of updates by a session."""
        self._settle()
        return turn.updates

    def set_updates(self, counts: Mapping[str, int]) -> None:
        """Overwrite counters; the next session to step becomes active again."""
        self.take_turn(None)
        self._updates |= counts

    def forget_updates(self, name: str) -> None:
        """Reset the counters of a parameter."""
        self.set_updates({key: 0 for key in self._updates if key.startswith(f"{name}.")})

    def set_step(self, step: int) -> None:
        """Set the step without counting updates."""
        self.take_turn(None)
        self.step = self._since = step

    def _settle(self) -> None:
        steps, turn = self.step - self._since, self.turn
        self._since = self.step
        if steps and turn is not None:
            turn.updates += steps
            for key in turn.keys:
                self._updates[key] = self._updates.get(key, 0) + steps
