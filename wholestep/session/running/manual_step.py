"""Manual steps: forward, backward, clip and apply, each a program over the state that `step` trains."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import OptionError, UsageError
from wholestep.session.hyperparameters import Hyperparameters
from wholestep.session.programs import Programs
from wholestep.session.state_dict import undone_steps
from wholestep.steps.definition import FORWARD, TRAIN

if TYPE_CHECKING:
    from wholestep.session.inspect.statistics import Stats


class ManualStep:
    """The parts of a step, with the inputs and gradients that they pass on."""

    def __init__(self, programs: Programs, hyperparameters: Hyperparameters) -> None:
        self._programs, self._hyperparameters = programs, hyperparameters
        self._batch: Mapping[str, object] | None = None  # the inputs of the last `forward`
        self._gradients: dict[str, AnyArray] | None = None  # gradients from the last `backward` or `gradient_stats`

    def forward(self, batch: Mapping[str, object] | None = None, /, **inputs: object) -> Any:
        """The outputs other than the loss, as in training but without dropout; stores the inputs for `backward`.

        Example: `out = session.forward(x=xb)`.
        """
        named = {**(batch or {}), **inputs}
        entry = self._programs.entry(FORWARD if self._programs.clocks.averaged else "predict")
        outputs = entry({i.name: named[i.name] for i in entry.inputs.all if i.name in named}).outputs
        self._batch = named
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def backward(self, grad_output: object) -> None:
        """The gradients of Σ output·grad_output for the inputs of the last `forward`; stored until the next call.

        Example: `session.backward(2 * (out - target) / out.size)`.
        """
        if self._batch is None:
            raise UsageError("backward needs the inputs of a forward pass: call session.forward(...) first.")
        from wholestep.steps.manual_step import UPSTREAM

        entry = self._programs.entry("backward")
        names = {i.name for i in entry.inputs.all}
        self._gradients = entry({**{n: a for n, a in self._batch.items() if n in names}, UPSTREAM: grad_output}).outputs

    def clip_gradients(self, max_norm: float) -> float:
        """Clip all stored gradients together to a global norm; returns the norm before clipping."""
        if not max_norm > 0:
            raise OptionError(f"clip_gradients: max_norm must be above 0; received {max_norm!r}.")
        from wholestep.steps.manual_step import MAX_NORM, NORM

        gradients = self._need_gradients()
        entry = self._programs.entry("clip")
        self._programs.scalars[MAX_NORM] = float(max_norm)
        outputs = entry(gradients).outputs
        norm = float(outputs.pop(NORM))
        self._gradients = outputs
        return norm

    def apply_gradients(self, lr: float) -> None:
        """Update the parameters along the stored gradients by the session's optimizer, with this learning rate."""
        gradients, programs = self._need_gradients(), self._programs
        entry = programs.entry("apply")
        self._hyperparameters.optimizer.lr = lr
        if programs.state.turn is not programs.turn:
            with programs.turns:
                programs.take_turn()
        entry({i.name: gradients[i.name] for i in entry.inputs.all})
        programs.state.step += 1
        programs.state.version += 1  # programs with a copy of a parameter in another layout compare versions

    def gradients(self, batch: Mapping[str, object] | None = None, /, **inputs: object) -> dict[str, AnyArray]:
        """The gradient of the loss on these inputs for every parameter, by name; no state changes.

        Example: `session.gradients(x=xb, labels=yb)["w1"]`.
        """
        from wholestep.steps.manual_step import PREFIX

        named = {**(batch or {}), **inputs}
        outputs = self._programs.entry_with_room("gradients", named)(named).outputs
        return {name.removeprefix(PREFIX): array for name, array in outputs.items() if name.startswith(PREFIX)}

    def gradient_stats(
        self, batch: Mapping[str, object] | None = None, /, *, per: str = "parameter", **inputs: object
    ) -> dict[str, Stats]:
        """Statistics of every parameter's gradient: of the loss on these inputs, or of the last `backward`.

        With inputs also of the update that `step` would make: it is computed and undone.

        Args:
            per: "parameter", or "layer": the gradients of a module's parameters together.

        Example: `session.gradient_stats(x=xb, labels=yb)["w1"].norm`.
        """
        from wholestep.session.inspect.statistics import need_grouping, stats_of_gradients, stats_per_layer
        from wholestep.steps.manual_step import PREFIX

        need_grouping("gradient_stats", per)

        named = {**(batch or {}), **inputs}
        if named:
            self._gradients = self._programs.entry_with_room("gradients", named)(named).outputs
        gradients = {name.removeprefix(PREFIX): array for name, array in self._need_gradients().items()}
        stats = stats_of_gradients(gradients, self._changes(named, gradients) if named else {})
        return stats_per_layer(stats) if per == "layer" else stats

    def _changes(self, named: Mapping[str, object], parameters: Iterable[str]) -> dict[str, tuple[AnyArray, AnyArray]]:
        """Parameters before and after a step over these inputs, which is undone; {} if the rows exceed its capacity."""
        programs = self._programs
        definition = programs.need("a step").definition
        if definition.main != TRAIN or programs.where.group is not None or not definition.fits(named):
            return {}
        with undone_steps(programs) as before:
            programs.main(named).wait()
            return {name: (before[name], programs.state.get(name).copy()) for name in parameters if name in before}

    def print_gradient_stats(
        self, batch: Mapping[str, object] | None = None, /, *, per: str = "parameter", **inputs: object
    ) -> None:
        """Print `gradient_stats` as a table, with a line for each parameter, or each layer (`per="layer"`)."""
        from wholestep.session.inspect.statistics import table

        stats = self.gradient_stats(batch, per=per, **inputs)
        sys.stdout.write(table("gradient of", list(stats.values())) + "\n")

    def _need_gradients(self) -> dict[str, AnyArray]:
        if not self._gradients:
            raise UsageError("there are no gradients yet: call session.backward(grad_output) first.")
        return self._gradients
