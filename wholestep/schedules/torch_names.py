"""Schedules under torch's names: they take the optimizer first and set its lr in `step()`.

Each also is a description: `ws.build_session(..., schedule=CosineAnnealingLR(optimizer, T_max=100))` evaluates it in
the step itself, and `step()` is not called then.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Any

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError
from wholestep.schedules import compose, curves, cycles, plateau
from wholestep.schedules.base import Schedule


class TorchSchedule:
    """A schedule bound to an optimizer: the optimizer's lr is `schedule(n)` after n calls of `step()`."""

    def __init__(self, optimizer: Any, schedule: Schedule, base: float | None = None) -> None:
        self.optimizer = optimizer
        self.schedule = schedule.bound(rate_of(optimizer, type(self).__name__) if base is None else base)
        self.last_epoch = 0
        set_rate(optimizer, self.schedule(0))

    def step(self) -> None:
        """One further."""
        self.last_epoch += 1
        set_rate(self.optimizer, self.schedule(self.last_epoch))

    def __call__(self, n: float) -> float:
        return self.schedule(n)

    def get_lr(self, n: float | None = None) -> float:
        """`schedule(n)`; without n, the value now."""
        return self.schedule(self.last_epoch if n is None else n)

    def get_last_lr(self) -> list[float]:
        """The value now, in a list as torch has it."""
        return [self.get_lr()]

    def state_dict(self) -> dict[str, Any]:
        """How far it has come."""
        return {"last_epoch": self.last_epoch, "schedule": self.schedule.to_config()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.schedule = Schedule.from_config(state["schedule"])
        self.last_epoch = int(state["last_epoch"])
        set_rate(self.optimizer, self.get_lr())


class ConstantLR(TorchSchedule):
    """lr·factor for `total_iters`, then lr."""

    def __init__(self, optimizer: Any, factor: float = 1.0 / 3.0, total_iters: int = 5) -> None:
        lr = rate_of(optimizer, "ConstantLR")
        first, second = curves.Constant(lr * factor), curves.Constant(lr)
        super().__init__(optimizer, compose.Sequence((first, second), (total_iters,)))


class LinearLR(TorchSchedule):
    """From lr·start_factor to lr·end_factor in `total_iters`."""

    def __init__(
        self, optimizer: Any, start_factor: float = 1.0 / 3.0, end_factor: float = 1.0, total_iters: int = 5
    ) -> None:
        lr = rate_of(optimizer, "LinearLR")
        super().__init__(optimizer, curves.Linear(lr * start_factor, lr * end_factor, total_iters))


class PolynomialLR(TorchSchedule):
    """`ws.schedules.Polynomial`"""

    def __init__(self, optimizer: Any, total_iters: int = 5, power: float = 1.0) -> None:
        super().__init__(optimizer, curves.Polynomial(None, total_iters, power))


class CosineAnnealingLR(TorchSchedule):
    """`ws.schedules.Cosine`; eta_min holds after T_max."""

    def __init__(self, optimizer: Any, T_max: int, eta_min: float = 0.0) -> None:
        super().__init__(optimizer, curves.Cosine(None, T_max, eta_min))


class ExponentialLR(TorchSchedule):
    """`ws.schedules.Exponential`"""

    def __init__(self, optimizer: Any, gamma: float) -> None:
        super().__init__(optimizer, curves.Exponential(None, gamma))


class StepLR(TorchSchedule):
    """`ws.schedules.StepDecay`"""

    def __init__(self, optimizer: Any, step_size: int, gamma: float = 0.1) -> None:
        super().__init__(optimizer, curves.StepDecay(None, step_size, gamma))


class MultiStepLR(TorchSchedule):
    """`ws.schedules.MultiStep`"""

    def __init__(self, optimizer: Any, milestones: Several[int], gamma: float = 0.1) -> None:
        super().__init__(optimizer, curves.MultiStep(None, tuple(milestones), gamma))


class OneCycleLR(TorchSchedule):
    """`ws.schedules.OneCycle`, of the learning rate alone."""

    def __init__(
        self,
        optimizer: Any,
        max_lr: float,
        total_steps: int,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        schedule = cycles.OneCycle(
            max_lr, total_steps, pct_start, div_factor, final_div_factor, anneal_strategy, three_phase
        )
        super().__init__(optimizer, schedule)


class CosineAnnealingWarmRestarts(TorchSchedule):
    """`ws.schedules.WarmRestarts`"""

    def __init__(self, optimizer: Any, T_0: int, T_mult: int = 1, eta_min: float = 0.0) -> None:
        super().__init__(optimizer, cycles.WarmRestarts(None, T_0, T_mult, eta_min))


class SequentialLR(TorchSchedule):
    """`ws.schedules.Sequence` of schedules under torch's names."""

    def __init__(self, optimizer: Any, schedulers: Several[TorchSchedule], milestones: Several[int]) -> None:
        parts = tuple(s.schedule if isinstance(s, TorchSchedule) else s for s in schedulers)
        super().__init__(optimizer, compose.Sequence(parts, tuple(milestones)), base=0.0)


class ReduceLROnPlateau(TorchSchedule):
    """`ws.schedules.ReduceOnPlateau`: `step(metric)` observes."""

    schedule: plateau.ReduceOnPlateau

    def __init__(
        self,
        optimizer: Any,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        schedule = plateau.ReduceOnPlateau(
            None, factor, patience, threshold, cooldown, min_lr, eps, mode=mode, threshold_mode=threshold_mode
        )
        super().__init__(optimizer, schedule)
        self._numbers = {k: float(v or 0.0) for k, v in self.schedule.numbers().items()}

    def step(self, metric: float | None = None) -> None:
        """Observe the metric."""
        if metric is None:
            fail(UsageError, "ReduceLROnPlateau.step takes what it observes, e.g. step(val_loss).")
        self.last_epoch += 1
        self._numbers = self.schedule.observed(self._numbers, float(metric))
        set_rate(self.optimizer, self._numbers["lr"])

    def get_lr(self, n: float | None = None) -> float:
        """The value now."""
        return self._numbers["lr"]

    def state_dict(self) -> dict[str, Any]:
        """How far it has come and what it has seen."""
        return {**super().state_dict(), "numbers": dict(self._numbers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._numbers = dict(state["numbers"])
        super().load_state_dict(state)


def rate_of(optimizer: Any, kind: str) -> float:
    """The lr of an optimizer: a description, the live one of a session, or one on a graph."""
    value = optimizer.get_lr() if hasattr(optimizer, "get_lr") else getattr(optimizer, "lr", None)
    if value is None:
        fail(
            UsageError,
            f"{kind} takes the optimizer first, e.g. {kind}(session.optimizer, ...); received {optimizer!r}.",
        )
    return float(getattr(value, "value", value))


def set_rate(optimizer: Any, lr: float) -> None:
    """Change it."""
    if hasattr(optimizer, "set_lr"):
        optimizer.set_lr(lr)
    else:
        optimizer.lr = lr
