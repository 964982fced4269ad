"""What a state counts: its steps, the epochs, and how often each optimizer has updated each parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.records import dataclass


@dataclass(eq=False)
class SessionCounter:
    """A session's part in counting: what its steps update, and how many it has made."""

    keys: Sequence[str] = ()
    updates: int = 0


class Counting:
    """`step` is advanced by programs; whose turn it is says what else the steps count for.

    Counts are brought up to date when the turn passes to another session or someone asks, not step by step.
    """

    def __init__(self) -> None:
        self.step = 0  # updates done
        self.epoch = 0  # epochs finished by `run`: the key of the next one's order
        self.turn: SessionCounter | None = None
        self.shows_raw = False  # is the average of a weight kept under its raw name for a while?
        self._since = 0  # the step up to which counts are up to date
        self._updates: dict[str, int] = {}

    def take_turn(self, turn: SessionCounter | None) -> None:
        """From now on steps count for `turn`."""
        self._settle()
        self.turn = turn

    def updates_of(self, key: str) -> int:
        """How often a parameter was updated by the optimizers of a slot: `"w.adam"`."""
        self._settle()
        return self._updates.get(key, 0)

    def updates_in(self, turn: SessionCounter) -> int:
        """How many updates a session has made."""
        self._settle()
        return turn.updates

    def set_updates(self, counts: Mapping[str, int]) -> None:
        """Other counts; whoever steps next takes the turn anew."""
        self.take_turn(None)
        self._updates |= counts

    def forget_updates(self, name: str) -> None:
        """A parameter begins anew."""
        self.set_updates({key: 0 for key in self._updates if key.startswith(f"{name}.")})

    def set_step(self, step: int) -> None:
        """Another step, without an update being made."""
        self.take_turn(None)
        self.step = self._since = step

    def _settle(self) -> None:
        made, turn = self.step - self._since, self.turn
        self._since = self.step
        if made and turn is not None:
            turn.updates += made
            for key in turn.keys:
                self._updates[key] = self._updates.get(key, 0) + made
