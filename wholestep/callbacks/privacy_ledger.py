"""`PrivacyLedger`: the privacy that a run has spent, in its history and in its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.run import Logs
from wholestep.errors import UsageError
from wholestep.privacy.accountant import Phase
from wholestep.privacy.settings import Privacy, total_epsilon

NOISE = "privacy.noise"  # the runtime scalar


class PrivacyLedger(Callback):
    """Counts the private steps of a run, including steps before a resume, and logs their `epsilon` after each epoch.

    `ws.fit(..., privacy=...)` has one.

    Args:
        privacy: the settings, with the noise multiplier.
        rate: the probability with which a step draws a row.
        steps: the number of steps of the whole run; 0 if it is unknown.
    """

    def __init__(self, privacy: Privacy, rate: float, steps: int = 0) -> None:
        self.privacy, self.rate, self.steps = privacy, rate, steps
        self.phases: list[Phase] = []

    def on_train_begin(self) -> None:
        """Raise UsageError if the rest of a resumed run would spend more than `epsilon`."""
        left = self.steps - sum(p.steps for p in self.phases)
        if self.privacy.epsilon is None or not self.phases or left <= 0:
            return
        total = total_epsilon([*self.phases, Phase(self._noise, self.rate, left)], self.privacy.delta)
        if total > self.privacy.epsilon * (1 + 1e-3):
            raise UsageError(
                f"privacy=: the run so far has spent an epsilon of {self.epsilon:.4g}, and its {left} remaining steps "
                f"would bring it to {total:.4g}, with the noise that it began with; epsilon={self.privacy.epsilon:g} "
                "allows less. Resume with fewer epochs, or with a larger epsilon."
            )

    def on_slice(self, steps: int, loss: float) -> None:
        *before, last = self.phases or [Phase(self._noise, self.rate, 0)]
        if (last.noise, last.rate) == (self._noise, self.rate):
            self.phases = [*before, Phase(last.noise, last.rate, last.steps + steps)]
        else:
            self.phases = [*before, last, Phase(self._noise, self.rate, steps)]

    @property
    def _noise(self) -> float:
        """The multiplier that the session uses: a checkpoint restores it."""
        return self.session.scalars[NOISE]

    @property
    def epsilon(self) -> float:
        """The ε that the steps so far have spent, at the run's δ."""
        return total_epsilon(self.phases, self.privacy.delta)

    def epoch_numbers(self, epoch: int) -> Logs:
        return {"epsilon": self.epsilon}

    def state_dict(self) -> dict[str, Any]:
        return {"phases": [[p.noise, p.rate, p.steps] for p in self.phases]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.phases = [Phase(float(noise), float(rate), int(steps)) for noise, rate, steps in state["phases"]]
