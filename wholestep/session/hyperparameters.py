"""The parts of a session that a training loop may change between steps: hyper-parameters, schedules, the optimizer."""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.frontend.graph import Graph
from wholestep.errors import UsageError
from wholestep.optim import Optimizer
from wholestep.schedules.bind import PREFIX
from wholestep.session.programs import Programs
from wholestep.session.runtime_scalars import LiveOptimizer, LiveSchedule
from wholestep.steps.options import RATE, as_schedules


class Hyperparameters:
    """The part of a session with optimizers and schedules."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    @property
    def optimizer(self) -> LiveOptimizer:
        """The only optimizer, or the one called "optimizer"."""
        live = self.optimizers
        if len(live) == 1:
            return next(iter(live.values()))
        if "optimizer" in live:
            return live["optimizer"]
        raise UsageError(f"this session has {len(live)} optimizers ({', '.join(live)}); use session.optimizers[name].")

    @property
    def optimizers(self) -> dict[str, LiveOptimizer]:
        """The optimizers by name: all prefixes of scalars that end in `.lr`."""
        live = self._programs.scalars
        scalars = [*(name for name, _ in live.items()), *live.governed]
        names = [name.removesuffix(".lr") for name in scalars if name.endswith(".lr") and not name.startswith(PREFIX)]
        return {name: LiveOptimizer(name, live) for name in names}

    @property
    def schedule(self) -> LiveSchedule:
        """The schedule of the learning rate, or else the only schedule."""
        live = self.schedules
        if not live:
            raise UsageError("this session has no schedule; build it with schedule=ws.schedules.Cosine(1e-3, 1000).")
        return live.get(RATE) or next(iter(live.values()))

    @property
    def schedules(self) -> dict[str, LiveSchedule]:
        """The schedules of the step, by runtime scalar."""
        scalars, schedules = self._programs.scalars, self._programs.step_options.schedules
        return {target: LiveSchedule(target, schedule, scalars) for target, schedule in schedules.items()}

    def set_schedule(self, schedule: object) -> None:
        """Set other schedules, as `build_session(schedule=...)` takes them; None removes all.

        If only numbers differ nothing is compiled; else the step is recompiled, and all states are kept.
        """
        programs, new = self._programs, as_schedules(schedule)
        compiled = programs.need("another schedule")
        definition = compiled.definition
        if definition.same_schedules(new):
            for target, item in new.items():
                self.schedules[target].set_numbers({k: v for k, v in item.numbers().items() if v is not None})
            return
        programs.scalars.drop(PREFIX)
        changed = definition.with_step_options(replace(definition.step_options, schedules=new))
        with programs.turns:
            programs.recompile(compiled.of(changed), "another schedule")

    def set_learning_rate(self, lr: float) -> None:
        """Change the learning rate from the next step on; nothing else changes and nothing is compiled."""
        self.optimizer.lr = lr

    def set_adam(self, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        """Train with Adam.  If the optimizer was another, the step is recompiled; parameters are kept."""
        from wholestep.optim import Adam

        self.set_optimizer(Adam(lr=lr, betas=(beta1, beta2), eps=eps))

    def set_optimizer(self, optimizer: Optimizer | str) -> None:
        """Train with another optimizer; parameters are kept.

        If only its hyperparameters differ, its states are kept and nothing is compiled; otherwise its states are reset,
        as by `reset_optimizer`.
        """
        programs = self._programs
        compiled = programs.need("another optimizer")
        from wholestep.optim.core.names import get  # imported here because few sessions change their optimizer

        optimizer = get(optimizer)
        definition, scalars = compiled.definition, programs.scalars
        if definition.same_program(optimizer):
            present = dict(scalars.items())  # weight decay that acts on no parameter is not part of the program
            for name, value in optimizer.runtime_values().items():
                if name in present and name not in scalars.governed:
                    scalars[name] = value
            return
        for name in definition.optimizer.runtime_values() if definition.optimizer is not None else ():
            scalars.drop(name)
        with programs.turns:
            programs.recompile(compiled.of(definition.with_optimizer(optimizer)), repr(optimizer))
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Reset moments, update counts and schedules, as with a new optimizer; parameters are kept.

        Example: `session.reset_optimizer()`.
        """
        programs = self._programs
        definition = programs.need("the optimizer's first state").definition
        if not isinstance(definition.model, Graph):
            raise UsageError("a @ws.step function declares its own states; reset them with session.set(name, array).")
        definition.reset_optimizer_state(programs.state, definition.model.states, programs.plans)
        self.restart_schedules()

    def restart_schedules(self) -> None:
        """Restart schedules by steps at the next step; schedules by epochs restart when `state.epoch` is 0."""
        self._programs.state.take_turn(None)  # the next step sets its counters
        self._programs.turn.updates = 0
