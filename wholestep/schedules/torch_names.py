"""Schedules under torch's names: they take the optimizer first and set its lr in `step()`.

Each also is a description, of which `step()` is not called then: `ws.fit(..., schedule=CosineAnnealingLR(optimizer,
T_max=10))` counts epochs, as every loop of epochs does; `ws.build_session(..., schedule=...)` evaluates it in the step
itself and counts updates until a `ws.Trainer` drives it.  `unit="step"` or `unit="epoch"` says otherwise.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence as Several
from typing import Any

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError
from wholestep.schedules import compose, curves, cycles, plateau
from wholestep.schedules.base import CALL, Schedule


class TorchSchedule:
    """A schedule bound to an optimizer: the optimizer's lr is `schedule(n)` after n calls of `step()`.

    Args:
        unit: what a loop counts for it: "epoch", "step", or None, which is epochs in a loop of epochs.
    """

    def __init__(self, optimizer: Any, schedule: Schedule, unit: str | None = None) -> None:
        bound = schedule.bound(rate_of(optimizer, type(self).__name__))
        self.optimizer = optimizer
        self.schedule = bound if isinstance(bound, plateau.ReduceOnPlateau) else bound.counted_in(unit or CALL)
        self.last_epoch = 0
        self._tell_of_groups()
        set_rate(optimizer, self.schedule(0))

    def _tell_of_groups(self) -> None:
        """Torch's schedules change the rate of every group; ours that of the optimizer."""
        own = rates_of_groups(self.optimizer)
        if own:
            listed = ", ".join(f"{name} = {value:g}" for name, value in own.items())
            warnings.warn(
                f"{type(self).__name__} changes the lr of the optimizer and of groups without one of their own; "
                f"{listed} stays as it is. Schedule it too: schedule={{'optimizer.lr': ..., {next(iter(own))!r}: "
                "...}.",
                stacklevel=4,
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.schedule!r})"

    def table(self, steps: int | None = None, every: int | None = None) -> str:
        """The values from 0 to `steps` as text, under the unit that they are counted in."""
        return self.schedule.table(steps, every)

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

    def __init__(
        self, optimizer: Any, factor: float = 1.0 / 3.0, total_iters: int = 5, *, unit: str | None = None
    ) -> None:
        lr = rate_of(optimizer, "ConstantLR")
        first, second = curves.Constant(lr * factor), curves.Constant(lr)
        super().__init__(optimizer, compose.Sequence((first, second), (total_iters,)), unit)


class LinearLR(TorchSchedule):
    """From lr·start_factor to lr·end_factor in `total_iters`."""

    def __init__(
        self,
        optimizer: Any,
        start_factor: float = 1.0 / 3.0,
        end_factor: float = 1.0,
        total_iters: int = 5,
        *,
        unit: str | None = None,
    ) -> None:
        lr = rate_of(optimizer, "LinearLR")
        super().__init__(optimizer, curves.Linear(lr * start_factor, lr * end_factor, total_iters), unit)


class PolynomialLR(TorchSchedule):
    """`ws.schedules.Polynomial`"""

    def __init__(self, optimizer: Any, total_iters: int = 5, power: float = 1.0, *, unit: str | None = None) -> None:
        super().__init__(optimizer, curves.Polynomial(None, total_iters, power), unit)


class CosineAnnealingLR(TorchSchedule):
    """`ws.schedules.Cosine`; eta_min holds after T_max."""

    def __init__(self, optimizer: Any, T_max: int, eta_min: float = 0.0, *, unit: str | None = None) -> None:
        super().__init__(optimizer, curves.Cosine(None, T_max, eta_min), unit)


class ExponentialLR(TorchSchedule):
    """`ws.schedules.Exponential`"""

    def __init__(self, optimizer: Any, gamma: float, *, unit: str | None = None) -> None:
        super().__init__(optimizer, curves.Exponential(None, gamma), unit)


class StepLR(TorchSchedule):
    """`ws.schedules.StepDecay`"""

    def __init__(self, optimizer: Any, step_size: int, gamma: float = 0.1, *, unit: str | None = None) -> None:
        super().__init__(optimizer, curves.StepDecay(None, step_size, gamma), unit)


class MultiStepLR(TorchSchedule):
    """`ws.schedules.MultiStep`"""

    def __init__(
        self, optimizer: Any, milestones: Several[int], gamma: float = 0.1, *, unit: str | None = None
    ) -> None:
        super().__init__(optimizer, curves.MultiStep(None, tuple(milestones), gamma), unit)


class OneCycleLR(TorchSchedule):
    """`ws.schedules.OneCycle`, of the learning rate alone.  It counts updates in every loop, as torch's does."""

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
        *,
        unit: str = "step",
    ) -> None:
        schedule = cycles.OneCycle(
            max_lr, total_steps, pct_start, div_factor, final_div_factor, anneal_strategy, three_phase
        )
        super().__init__(optimizer, schedule, unit)


class CosineAnnealingWarmRestarts(TorchSchedule):
    """`ws.schedules.WarmRestarts`"""

    def __init__(
        self, optimizer: Any, T_0: int, T_mult: int = 1, eta_min: float = 0.0, *, unit: str | None = None
    ) -> None:
        super().__init__(optimizer, cycles.WarmRestarts(None, T_0, T_mult, eta_min), unit)


class SequentialLR(TorchSchedule):
    """`ws.schedules.Sequence` of schedules under torch's names."""

    def __init__(
        self,
        optimizer: Any,
        schedulers: Several[TorchSchedule],
        milestones: Several[int],
        *,
        unit: str | None = None,
    ) -> None:
        parts = [s.schedule if isinstance(s, TorchSchedule) else s for s in schedulers]
        told = {s.unit for s in parts if isinstance(s, Schedule)} - {CALL}
        if unit is None and len(told) > 1:
            fail(OptionError, f"SequentialLR: its schedules count in {' and '.join(sorted(told))}; give all one unit=.")
        unit = unit or next(iter(told), None)
        same = tuple(s.counted_in(unit or CALL) if isinstance(s, Schedule) else s for s in parts)
        super().__init__(optimizer, compose.Sequence(same, tuple(milestones), unit=unit or CALL), unit)


class ReduceLROnPlateau(TorchSchedule):
    """`ws.schedules.ReduceOnPlateau`: `step(metric)` observes; a loop of epochs lets it observe `monitor`."""

    schedule: plateau.ReduceOnPlateau

    def __init__(
        self,
        optimizer: Any,
        mode: str | None = None,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
        *,
        monitor: str = "",
    ) -> None:
        schedule = plateau.ReduceOnPlateau(
            None, factor, patience, threshold, cooldown, min_lr, eps, mode or "", threshold_mode, monitor
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
    """The lr that an optimizer (a description, the live one of a session, or one on a graph) began with.

    As in torch, a second schedule takes the lr from before the first one changed it, unless it was set since then.
    """
    now = _rate_now(optimizer)
    if now is None:
        fail(
            UsageError,
            f"{kind} takes the optimizer first, e.g. {kind}(session.optimizer, ...); received {optimizer!r}.",
        )
    kept, name = _kept_with(optimizer)
    begun, left = kept.get(name, (now, now))
    return begun if left == now else now


def rates_of_groups(optimizer: Any) -> dict[str, float]:
    """The rates that groups of an optimizer have of their own, by runtime scalar."""
    if hasattr(optimizer, "runtime_values"):
        found: dict[str, float] = optimizer.runtime_values()
        return {n: v for n, v in found.items() if n.endswith(".lr") and n != f"{optimizer.name}.lr"}
    prefix = vars(optimizer).get("_prefix")
    if prefix is None:
        return {}
    return {prefix + n: v for n, v in optimizer._fields().items() if n.endswith(".lr")}


def set_rate(optimizer: Any, lr: float) -> None:
    """Change it, and remember what it was before any schedule did."""
    begun = rate_of(optimizer, "a schedule")
    if hasattr(optimizer, "set_lr"):
        optimizer.set_lr(lr)
    else:
        optimizer.lr = lr
    kept, name = _kept_with(optimizer)
    kept[name] = begun, _rate_now(optimizer)


def _rate_now(optimizer: Any) -> float | None:
    value = optimizer.get_lr() if hasattr(optimizer, "get_lr") else getattr(optimizer, "lr", None)
    return None if value is None else float(getattr(value, "value", value))


def _kept_with(optimizer: Any) -> tuple[dict[str, Any], str]:
    """Where, and as what, rates are kept as long as the optimizer is; live ones are made anew when asked for."""
    own = vars(optimizer)
    return vars(own.get("_scalars", optimizer)), f"_rates_of_schedules {own.get('_prefix', '')}"
