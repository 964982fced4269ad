"""Schedules under torch's names; see `torch_schedule.py`."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Any

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError
from wholestep.schedules import compose, curves, cycles, functions, plateau
from wholestep.schedules.base import CALL, Schedule, need_choice
from wholestep.schedules.rates import OWN, for_each, rates_of, set_rate
from wholestep.schedules.torch_schedule import Each, TorchSchedule, combine_schedules, unit_of


class ConstantLR(TorchSchedule):
    """lr·factor for `total_iters`, then lr."""

    def __init__(
        self, optimizer: Any, factor: float = 1.0 / 3.0, total_iters: int = 5, *, unit: str | None = None
    ) -> None:
        def make(lr: float, place: int) -> Schedule:
            return compose.Sequence((curves.Constant(lr * factor), curves.Constant(lr)), (total_iters,))

        super().__init__(optimizer, make, unit)


class LinearLR(TorchSchedule):
    """A straight line from lr·start_factor to lr·end_factor in `total_iters`."""

    def __init__(
        self,
        optimizer: Any,
        start_factor: float = 1.0 / 3.0,
        end_factor: float = 1.0,
        total_iters: int = 5,
        *,
        unit: str | None = None,
    ) -> None:
        def make(lr: float, place: int) -> Schedule:
            return curves.Linear(lr * start_factor, lr * end_factor, total_iters)

        super().__init__(optimizer, make, unit)


class PolynomialLR(TorchSchedule):
    """`ws.schedules.Polynomial`"""

    def __init__(self, optimizer: Any, total_iters: int = 5, power: float = 1.0, *, unit: str | None = None) -> None:
        super().__init__(optimizer, curves.Polynomial(None, total_iters, power), unit)


class CosineAnnealingLR(TorchSchedule):
    """`ws.schedules.Cosine`; eta_min is kept after T_max."""

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
    """`ws.schedules.OneCycle` for the learning rate only.  It counts updates in every loop, like torch's."""

    def __init__(
        self,
        optimizer: Any,
        max_lr: Each,
        total_steps: int,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        *,
        unit: str = "step",
    ) -> None:
        count = len(rates_of(optimizer, "OneCycleLR"))

        def make(lr: float, place: int) -> Schedule:
            most = for_each("OneCycleLR", "max_lr", max_lr, place, count)
            return cycles.OneCycle(
                most, total_steps, pct_start, div_factor, final_div_factor, anneal_strategy, three_phase
            )

        super().__init__(optimizer, make, unit)


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
        unit = unit or unit_of("SequentialLR", schedulers)
        make = combine_schedules(
            optimizer, schedulers, unit, lambda s, lr: compose.Sequence(s, tuple(milestones), unit=unit or CALL)
        )
        super().__init__(optimizer, make, unit)


class ChainedScheduler(TorchSchedule):
    """`ws.schedules.Chained` of schedules under torch's names: their effects multiply.  The first has the optimizer."""

    def __init__(self, schedulers: Several[TorchSchedule], optimizer: Any = None, *, unit: str | None = None) -> None:
        if not isinstance(schedulers, Several) or not schedulers or not isinstance(schedulers[0], TorchSchedule):
            fail(
                UsageError,
                "ChainedScheduler takes a list of schedules under torch's names, e.g. "
                f"[StepLR(optimizer, 10), ExponentialLR(optimizer, 0.9)]; received {schedulers!r}.",
            )
        for s in (x.schedule for x in schedulers if isinstance(x, TorchSchedule)):
            if getattr(s, "eta_min", 0.0):
                fail(
                    OptionError,
                    f"ChainedScheduler multiplies, and {type(s).__name__} with eta_min={s.eta_min:g} adds. Give it "
                    "eta_min=0, or one curve after another: SequentialLR.",
                )
        unit = unit or unit_of("ChainedScheduler", schedulers)
        chosen = schedulers[0].optimizer if optimizer is None else optimizer
        make = combine_schedules(chosen, schedulers, unit, lambda s, lr: compose.Chained(s, lr, unit=unit or CALL))
        super().__init__(chosen, make, unit)


class LambdaLR(TorchSchedule):
    """`ws.schedules.Lambda`: lr times a function of the epoch; a list contains one function for each rate."""

    def __init__(
        self, optimizer: Any, lr_lambda: functions.Factor | Several[functions.Factor], *, unit: str | None = None
    ) -> None:
        count = len(rates_of(optimizer, "LambdaLR"))

        def make(lr: float, place: int) -> Schedule:
            return functions.Lambda(for_each("LambdaLR", "lr_lambda", lr_lambda, place, count), lr)

        super().__init__(optimizer, make, unit)

    def state_dict(self) -> dict[str, Any]:
        """The count of steps; functions are not saved, as in torch."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict()`."""
        self.last_epoch = int(state["last_epoch"])
        self._set_rates()


class CyclicLR(TorchSchedule):
    """`ws.schedules.Cyclic` for the learning rate only.  It counts updates in every loop, like torch's."""

    def __init__(
        self,
        optimizer: Any,
        base_lr: Each,
        max_lr: Each,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        *,
        cycle_momentum: bool = False,
        unit: str = "step",
    ) -> None:
        if cycle_momentum:
            fail(
                UsageError,
                "CyclicLR changes the learning rate alone; schedule the momentum as well: schedule={'optimizer.lr': "
                "ws.schedules.Cyclic(0.1, base=0.01), 'optimizer.momentum': ws.schedules.Cyclic(0.8, base=0.9)}.",
            )
        count = len(rates_of(optimizer, "CyclicLR"))

        def make(lr: float, place: int) -> Schedule:
            base, most = (
                for_each("CyclicLR", what, option, place, count)
                for what, option in (("base_lr", base_lr), ("max_lr", max_lr))
            )
            return cycles.Cyclic(most, base, step_size_up, step_size_down, mode, gamma)

        super().__init__(optimizer, make, unit)


class SWALR(TorchSchedule):
    """A transition from lr to `swa_lr` in `anneal_epochs`, then `swa_lr`: the rate for `ws.optim.SWA`."""

    def __init__(
        self,
        optimizer: Any,
        swa_lr: Each,
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        *,
        unit: str | None = None,
    ) -> None:
        need_choice("SWALR", "anneal_strategy", anneal_strategy, ("cos", "linear"))
        count = len(rates_of(optimizer, "SWALR"))

        def make(lr: float, place: int) -> Schedule:
            end = for_each("SWALR", "swa_lr", swa_lr, place, count)
            if not anneal_epochs:
                return curves.Constant(end)
            return (
                curves.Cosine(lr, anneal_epochs, end)
                if anneal_strategy == "cos"
                else curves.Linear(lr, end, anneal_epochs)
            )

        super().__init__(optimizer, make, unit)


class ReduceLROnPlateau(TorchSchedule):
    """`ws.schedules.ReduceOnPlateau`: `step(metric)` observes; a loop of epochs lets it observe `monitor`."""

    def __init__(
        self,
        optimizer: Any,
        mode: str | None = None,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: Each = 0.0,
        eps: float = 1e-8,
        *,
        monitor: str = "",
    ) -> None:
        count = len(rates_of(optimizer, "ReduceLROnPlateau"))

        def make(lr: float, place: int) -> Schedule:
            least = for_each("ReduceLROnPlateau", "min_lr", min_lr, place, count)
            return plateau.ReduceOnPlateau(
                lr, factor, patience, threshold, cooldown, least, eps, mode or "", threshold_mode, monitor
            )

        super().__init__(optimizer, make)
        self._numbers = {
            name: {k: float(v or 0.0) for k, v in s.numbers().items()} for name, s in self.schedules.items()
        }

    def step(self, metric: float | None = None) -> None:
        """Pass a value of the metric to the plateau."""
        if metric is None:
            fail(UsageError, "ReduceLROnPlateau.step takes what it observes, e.g. step(val_loss).")
        self.last_epoch += 1
        for name, s in self.schedules.items():
            assert isinstance(s, plateau.ReduceOnPlateau)
            self._numbers[name] = s.observed(self._numbers[name], float(metric))
            set_rate(self.optimizer, self._numbers[name]["lr"], name)

    def get_lr(self, n: float | None = None) -> float:
        """The current learning rate."""
        return self._numbers[OWN]["lr"]

    def get_last_lr(self) -> list[float]:
        """The current learning rates."""
        return [numbers["lr"] for numbers in self._numbers.values()]

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, the schedules, and the history of the plateau."""
        return {**super().state_dict(), "numbers": {n: dict(v) for n, v in self._numbers.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict()`."""
        super().load_state_dict(state)
        self._numbers = {n: dict(v) for n, v in state["numbers"].items()}
        for name, numbers in self._numbers.items():
            set_rate(self.optimizer, numbers["lr"], name)
