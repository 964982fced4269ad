"""The measurements of a session: metrics of its steps, the gradient norm, the check for non-finite gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.state.state import State
from wholestep.errors import NonFiniteError, UsageError
from wholestep.session.running.entry_point import EntryPoint, StepResult
from wholestep.steps.evaluate import WEIGHT, WEIGHTED
from wholestep.steps.loss_scale import LOSS_SCALE, SMALLEST
from wholestep.steps.options import BUFFERS, GRAD_NORM, ROW_OUTPUTS, STORED, RowValues, StepOptions, modes_of
from wholestep.steps.states import first_values
from wholestep.steps.train import NONFINITE

if TYPE_CHECKING:
    from wholestep.session.programs import Programs


class EntryMetrics:
    """The metrics of one entry point.  Their states are in the model's state, with a `prefix` for `evaluate`."""

    def __init__(self, options: StepOptions, state: State, plans: Sequence[Plan], prefix: str) -> None:
        weighted = f"{WEIGHTED}." if any(name == WEIGHT for name, _ in plans[0].inputs) else ""
        scope = (f"{prefix}." if prefix else "") + weighted
        self._metrics = [(m.metric, scope + m.metric.state_name("")) for m in options.measures]
        if options.gradient_norm and not prefix:
            from wholestep.steps.gradient_norm import GradientNorm

            self._metrics.append((norm := GradientNorm(), norm.state_name("")))
        self._state, self._plans = state, plans
        self.row_values = options.per_row if not prefix else RowValues()
        normed = options.gradient_norm or options.clip_norm is not None
        reported = {GRAD_NORM: normed, LOSS_SCALE: options.loss_scale is not None}
        self._reported = [name for name, on in reported.items() if on and not prefix]

    @property
    def state_prefixes(self) -> list[tuple[Any, str]]:
        """The metrics, each with the beginning of the names of its states."""
        return self._metrics

    def values(self) -> dict[str, Any]:
        """Every metric by name."""
        results: dict[str, Any] = {}
        for metric, prefix in self._metrics:
            parts = {n.removeprefix(prefix): self._state.get(n) for n in self._state.names if n.startswith(prefix)}
            results[metric.name] = metric.result(parts)
        return results

    def of(self, result: StepResult) -> dict[str, Any]:
        """The metrics after a step, with the values that the step itself reports."""
        return {**self.values(), **{name: float(result[name]) for name in self._reported}}

    def reset(self) -> None:
        """Reset the states of all metrics."""
        prefixes = tuple(name for _, name in self._metrics) + ((BUFFERS,) if self.row_values.capacity else ())
        for plan in self._plans if prefixes else ():
            fresh = first_values(plan, 0)
            for name, _ in plan.states:
                if name.startswith(prefixes):
                    self._state.set(name, fresh(name))


class Measurements:
    """The part of a session that reads and resets metrics."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def metrics(self, entry: str = "main") -> dict[str, Any]:
        """The metrics of the epoch so far; of the last `evaluate` where entry="evaluate"."""
        if entry not in self._programs.measured:
            raise UsageError(f"metrics of {entry!r}: expected 'main', or 'evaluate' after session.evaluate.")
        return self._programs.measured[entry].values()

    def reset_metrics(self, entry: str = "main") -> None:
        """Reset the metrics; `run` does it before each epoch, `evaluate` at each call."""
        if entry in self._programs.measured:
            self._programs.measured[entry].reset()

    def row_values(self) -> dict[str, AnyArray]:
        """The values of the rows of the epoch so far, in the order of the steps: "loss" and "gradient_norm".

        A session of `ws.fit(..., per_row=...)` stores them; a session of your own returns them from every step.
        """
        wanted, state = self._programs.measured["main"].row_values, self._programs.state
        if not wanted.capacity:
            raise UsageError("this session stores no values of rows: train with ws.fit(..., per_row=['loss']).")
        stored = int(state.get(STORED))
        return {name: state.get(BUFFERS + ROW_OUTPUTS[name])[:stored].copy() for name in wanted.names}

    def end_epoch(self) -> dict[str, Any]:
        """For a loop over `step`: return and reset the epoch's metrics, and advance schedules in epochs."""
        values = self.metrics()
        self.reset_metrics()
        self._programs.state.epoch += 1
        return values

    @property
    def modes(self) -> dict[str, str]:
        """The modes of metrics, "min" or "max", for all that have a direction."""
        return modes_of(self._programs.step_options.measures)


def raise_if_refused(entry: EntryPoint, state: State) -> None:
    """Raise NonFiniteError if the last step was skipped with nonfinite="raise"."""
    bad = float(entry.read(NONFINITE))
    curable = LOSS_SCALE in entry.outputs and math.isfinite(entry.loss()) and entry.read(LOSS_SCALE) > SMALLEST
    if bad and not curable:  # a step that lowers the loss scale is not a failure
        raise NonFiniteError(
            f"step {state.step}: {bad:.0f} elements of the loss and the gradients are infinite or not a number. No "
            "state was changed; session.first_nonfinite(...) of the same inputs names the operation. Lower the "
            'learning rate, clip (clip_norm=1.0), or build with nonfinite="skip".'
        )
