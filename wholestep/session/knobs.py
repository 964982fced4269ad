"""What can change between steps: hyper-parameters, schedules, the optimizer; and the metrics of an epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wholestep.compiler.frontend.graph import Graph
from wholestep.errors import UsageError
from wholestep.optim import Optimizer
from wholestep.schedules.bind import PREFIX
from wholestep.session.entries import Programs
from wholestep.session.scalars import LiveOptimizer, LiveSchedule, Scalars
from wholestep.steps.recipe import RATE, as_schedules
from wholestep.steps.train import SKIPPED


class Tunable(Programs):
    """The part of a session that a training loop turns its knobs on."""

    # -- hyper-parameters ----------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> LiveOptimizer:
        """The live numbers of the optimizer: `session.optimizer.lr = 1e-4`."""
        live = self.optimizers
        if len(live) == 1:
            return next(iter(live.values()))
        if "optimizer" in live:
            return live["optimizer"]
        raise UsageError(f"this session has {len(live)} optimizers ({', '.join(live)}); use session.optimizers[name].")

    @property
    def optimizers(self) -> dict[str, LiveOptimizer]:
        """Every optimizer of the step by its name."""
        scalars = [*(name for name, _ in self._scalars.items()), *self._scalars.governed]
        names = [name.removesuffix(".lr") for name in scalars if name.endswith(".lr") and not name.startswith(PREFIX)]
        return {name: LiveOptimizer(name, self._scalars) for name in names}

    @property
    def schedule(self) -> LiveSchedule:
        """The schedule of the learning rate, or the only one there is."""
        live = self.schedules
        if not live:
            raise UsageError("this session has no schedule; build it with schedule=ws.schedules.Cosine(1e-3, 1000).")
        return live.get(RATE) or next(iter(live.values()))

    @property
    def schedules(self) -> dict[str, LiveSchedule]:
        """Every schedule by the runtime scalar that it governs."""
        found = self._recipe.schedules
        return {target: LiveSchedule(target, schedule, self._scalars) for target, schedule in found.items()}

    def set_schedule(self, schedule: object) -> None:
        """Follow other schedules, as `build_session(schedule=...)` takes them; None ends them all.

        Where only numbers differ nothing is compiled; else the step is compiled once more and all states are kept.
        """
        source, new = self._need_source("another schedule"), as_schedules(schedule)
        if source.same_schedules(new):
            for target, item in new.items():
                self.schedules[target].set_numbers({k: v for k, v in item.numbers().items() if v is not None})
            return
        self._scalars.drop(PREFIX)
        self._recompile(source.with_recipe(replace(source.recipe, schedules=new)), "another schedule")

    @property
    def scalars(self) -> Scalars:
        """All runtime scalars by name."""
        return self._scalars

    def set_learning_rate(self, lr: float) -> None:
        """Change the learning rate from the next step on; nothing else changes and nothing is compiled."""
        self.optimizer.lr = lr

    def set_adam(self, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        """Train with Adam.  If the optimizer was another, the step is compiled once more; parameters are kept."""
        from wholestep.optim import Adam

        self.set_optimizer(Adam(lr=lr, betas=(beta1, beta2), eps=eps))

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Train with another optimizer: without a recompile where only numbers differ; parameters are kept.

        Where only numbers differ it goes on; else it begins as a new one, with `reset_optimizer`, also if an optimizer
        of its kind was at work before.
        """
        source = self._need_source("another optimizer")
        if not isinstance(optimizer, Optimizer):
            raise UsageError(f"an optimizer is a description such as ws.Adam(lr=1e-3); received {optimizer!r}.")
        if source.same_program(optimizer):
            present = dict(self._scalars.items())  # decay that acts on no parameter is not part of the program
            for name, value in source.hyperparameters(optimizer).items():
                if name in present and name not in self._scalars.governed:
                    self._scalars[name] = value
            return
        for name in source.hyperparameters(source.optimizer):
            self._scalars.drop(name)
        self._recompile(source.with_optimizer(optimizer), repr(optimizer))
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Begin as with a new optimizer: moments, counts of updates and schedules start anew; parameters are kept.

        Example: `session.reset_optimizer()`.
        """
        source = self._need_source("the optimizer's first state")
        if not isinstance(source.model, Graph):
            raise UsageError("a @ws.step function declares its own states; set those that are to start anew.")
        source.reset_optimizer_state(self.state, source.model.states, self.plans)
        self.restart_schedules()

    def restart_schedules(self) -> None:
        """Schedules by steps begin anew with the next step, as those by epochs do where `state.epoch` is 0."""
        self.state.take_turn(None)  # whoever steps next says what it counts from
        self._turn.updates = 0

    @property
    def updates_made(self) -> int:
        """By this session, since its optimizer or its schedules began."""
        return self.state.updates_in(self._turn)

    # -- metrics -------------------------------------------------------------------------------------------------

    def metrics(self, entry: str = "main") -> dict[str, Any]:
        """The metrics of the epoch so far; of the last `evaluate` where entry="evaluate"."""
        if entry not in self._measured:
            raise UsageError(f"metrics of {entry!r}: expected 'main', or 'evaluate' after session.evaluate.")
        return self._measured[entry].values()

    @property
    def metric_modes(self) -> dict[str, str]:
        """Of every metric that says it: is less of it better, "min", or more, "max"?"""
        known = {m.metric.name: m.metric.higher_is_better for m in self._recipe.measures}
        return {name: "max" if up else "min" for name, up in known.items() if up is not None}

    def reset_metrics(self, entry: str = "main") -> None:
        """Count anew; `run` does it before each epoch, `evaluate` each time."""
        if entry in self._measured:
            self._measured[entry].reset()

    def end_epoch(self) -> dict[str, Any]:
        """Of a loop over `step`: the epoch's metrics, which start anew, and schedules in epochs advance."""
        values = self.metrics()
        self.reset_metrics()
        self.state.epoch += 1
        return values

    @property
    def nonfinite(self) -> str:
        """What the step was built to do about gradients that are not finite: "ignore", "skip" or "raise"."""
        return self._recipe.nonfinite

    @property
    def skipped_steps(self) -> int:
        """How many steps changed nothing since a gradient was not finite (nonfinite="skip")."""
        return int(self.state.get(SKIPPED)) if SKIPPED in self.state else 0
