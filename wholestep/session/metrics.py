"""What a session measures: metrics that its steps count, the norm of gradients, gradients that are not finite."""

from __future__ import annotations

from typing import Any

from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.runtime.state import State
from wholestep.errors import NonFiniteError
from wholestep.session.results import EntryPoint, StepResult
from wholestep.steps.recipe import Recipe
from wholestep.steps.states import first_values
from wholestep.steps.train import GRAD_NORM, NONFINITE


class Measured:
    """The metrics of one entry point.  Its states are the model's own; `prefix` tells those of `evaluate` apart."""

    def __init__(self, recipe: Recipe, state: State, plan: Plan, prefix: str) -> None:
        self._metrics = [m.metric for m in recipe.measures]
        self._prefix = f"{prefix}." if prefix else ""
        self._state, self._plan = state, plan
        self._reports_norm = recipe.clip_norm is not None and not prefix

    def values(self) -> dict[str, Any]:
        """Every metric by name."""
        found: dict[str, Any] = {}
        for metric in self._metrics:
            own = self._prefix + metric.state_name("")
            parts = {n.removeprefix(own): self._state.get(n) for n in self._state.names if n.startswith(own)}
            found[metric.name] = metric.result(parts)
        return found

    def of(self, result: StepResult) -> dict[str, Any]:
        """The metrics, and what the step itself reports."""
        norm = {GRAD_NORM: float(result[GRAD_NORM])} if self._reports_norm else {}
        return {**self.values(), **norm}

    def reset(self) -> None:
        """Count anew."""
        fresh = first_values(self._plan, 0)
        for metric in self._metrics:
            own = self._prefix + metric.state_name("")
            for name, _ in self._plan.states:
                if name.startswith(own):
                    self._state.set(name, fresh(name))


def raise_if_refused(entry: EntryPoint, state: State) -> None:
    """Of nonfinite="raise": the last step met a gradient that is not finite and changed nothing."""
    bad = float(entry.read(NONFINITE))
    if bad:
        raise NonFiniteError(
            f"step {state.step}: {bad:.0f} elements of the loss and the gradients are infinite or not a number. No "
            'state was changed. Lower the learning rate, clip (clip_norm=1.0), or build with nonfinite="skip".'
        )
