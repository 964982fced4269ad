"""Schedules over a whole run, whose length `ws.fit` fills in: `ws.schedules.cosine(warmup=100)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.schedules.base import Schedule
from wholestep.schedules.compose import Warmup
from wholestep.schedules.curves import Constant, Cosine, Linear, Polynomial
from wholestep.schedules.cycles import OneCycle


@dataclass(frozen=True)
class Planned:
    """A schedule over the whole run, before its number of steps is known."""

    name: str
    warmup: int
    curve: Callable[..., Schedule]  # a partial of a schedule class that lacks its length
    length: str  # the name of the argument for the length

    def over(self, steps: int) -> Schedule:
        """The schedule for a run of the given number of steps."""
        if steps <= self.warmup:
            fail(
                OptionError,
                f"{self.name}: a warm-up of {self.warmup} steps leaves nothing of a run of {steps} steps.",
            )
        curve = self.curve(**{self.length: steps - self.warmup})
        return Warmup(curve, self.warmup) if self.warmup else curve

    def __repr__(self) -> str:
        return f"ws.schedules.{self.name}(...) over a run of unknown length; give steps="


def _need_rate(name: str, lr: float | None) -> None:
    """Raise OptionError for a rate above 1 without a decimal point, which is probably a number of steps."""
    if lr is not None and lr > 1 and not isinstance(lr, float):
        fail(
            OptionError,
            f"{name}({lr}): the first argument is the learning rate. The length of the run is known to ws.fit; where "
            f"it is not, say steps={lr}. If the rate is meant, write {float(lr)}.",
        )


def _with_run_length(
    name: str, steps: int | None, warmup: int, length: str, curve: Callable[..., Schedule]
) -> Schedule | Planned:
    if not isinstance(warmup, int) or isinstance(warmup, bool) or warmup < 0:
        fail(OptionError, f"{name}: warmup must be an integer of steps, 0 or more; received {warmup!r}.")
    planned = Planned(name, warmup, curve, length)
    return planned if steps is None else planned.over(steps)


def cosine(
    lr: float | None = None, steps: int | None = None, *, warmup: int = 0, eta_min: float = 0.0
) -> Schedule | Planned:
    """Warm-up, then cosine decay to `eta_min` at the end of the run.  The default lr is the optimizer's.

    Example: `ws.fit(..., schedule=ws.schedules.cosine(warmup=100))`.
    """
    _need_rate("cosine", lr)
    return _with_run_length("cosine", steps, warmup, "T_max", partial(Cosine, lr, eta_min=eta_min))


def linear(
    lr: float | None = None, steps: int | None = None, *, warmup: int = 0, end: float = 0.0
) -> Schedule | Planned:
    """Warm-up, then linear decay to `end` at the end of the run.  Example: `ws.schedules.linear(warmup=100)`."""
    _need_rate("linear", lr)
    return _with_run_length("linear", steps, warmup, "steps", partial(Linear, lr, end))


def polynomial(
    lr: float | None = None, steps: int | None = None, *, warmup: int = 0, power: float = 2.0
) -> Schedule | Planned:
    """Warm-up, then lr·(1 - n/steps)^power.  Example: `ws.schedules.polynomial(power=0.9)`."""
    _need_rate("polynomial", lr)
    return _with_run_length("polynomial", steps, warmup, "steps", partial(Polynomial, lr, power=power))


def constant(lr: float | None = None, *, warmup: int = 0) -> Schedule:
    """Warm-up, then a constant lr.  Example: `ws.schedules.constant(warmup=100)`."""
    curve = Constant(lr)
    return Warmup(curve, warmup) if warmup else curve


def one_cycle(max_lr: float, steps: int | None = None) -> Schedule | Planned:
    """A rise to `max_lr` in the first 30 % of the run, then a fall (arXiv:1708.07120).

    Example: `ws.schedules.one_cycle(0.1)`.
    """
    return _with_run_length("one_cycle", steps, 0, "total_steps", partial(OneCycle, max_lr))
