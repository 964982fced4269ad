"""Schedules under torch's names: their first argument is the optimizer, whose lr they set in `step()`.

Each also is a description, of which `step()` is not called then: `ws.fit(..., schedule=CosineAnnealingLR(optimizer,
T_max=10))` counts epochs, as every loop of epochs does; `ws.build_session(..., schedule=...)` evaluates it in the step
itself and counts updates until a `ws.Trainer` drives it.  `unit="step"` or `unit="epoch"` says otherwise.  As in torch,
a group with an lr of its own follows the same curve from there.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from functools import wraps
from typing import Any

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.schedules import plateau
from wholestep.schedules.base import CALL, Schedule
from wholestep.schedules.rates import OWN, rates_of, set_rate

# from the initial value of a rate and its index: the optimizer's own rate has index 0
Make = Callable[[float, int], Schedule]
Each = float | Several[float]  # one value for all rates, or one for each


class TorchSchedule:
    """A schedule bound to an optimizer: the optimizer's lr is `schedule(n)` after n calls of `step()`.

    Args:
        make: the schedule, or a function of the first value and the index of each rate.
        unit: the unit that a loop counts in: "epoch", "step", or None, which is epochs in a loop of epochs.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _with_optimizer(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, optimizer: Any, make: Schedule | Make, unit: str | None = None) -> None:
        first, of = rates_of(optimizer, type(self).__name__), make
        schedules = {
            name: (of if isinstance(of, Schedule) else of(rate, place)).bound(rate)
            for place, (name, rate) in enumerate(first.items())
        }
        self.optimizer = optimizer
        self.schedules = {
            name: s if isinstance(s, plateau.ReduceOnPlateau) else s.counted_in(unit or CALL)
            for name, s in schedules.items()
        }
        self.last_epoch = 0
        self._set_rates()

    @property
    def schedule(self) -> Any:
        """The schedule of the optimizer's own rate."""
        return self.schedules[OWN]

    @property
    def of_groups(self) -> dict[str, Schedule]:
        """The schedules of groups with a separate lr, by its runtime scalar."""
        return {name: s for name, s in self.schedules.items() if name != OWN}

    def _set_rates(self) -> None:
        for name, schedule in self.schedules.items():
            set_rate(self.optimizer, schedule(self.last_epoch), name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.schedule!r})"

    def table(self, steps: int | None = None, every: int | None = None) -> str:
        """The values from 0 to `steps` as text, under the unit that they are counted in."""
        text: str = self.schedule.table(steps, every)
        return text

    def step(self) -> None:
        """Advance by one step or epoch."""
        self.last_epoch += 1
        self._set_rates()

    def __call__(self, n: float) -> float:
        return float(self.schedule(n))

    def get_lr(self, n: float | None = None) -> float:
        """The value `schedule(n)`; without n, the current value."""
        return float(self.schedule(self.last_epoch if n is None else n))

    def get_last_lr(self) -> list[float]:
        """The current learning rates: the optimizer's own rate, then the rates of groups with a separate one."""
        return [s(self.last_epoch) for s in self.schedules.values()]

    def state_dict(self) -> dict[str, Any]:
        """The count of steps and the schedules."""
        return {"last_epoch": self.last_epoch, "schedules": {n: s.to_config() for n, s in self.schedules.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict()`."""
        self.schedules = {n: Schedule.from_config(config) for n, config in state["schedules"].items()}
        self.last_epoch = int(state["last_epoch"])
        self._set_rates()


def _with_optimizer(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that raises an error with a hint if the optimizer is missing."""

    @wraps(init)
    def checked(self: Any, *args: Any, **named: Any) -> None:
        if not args and "optimizer" not in named:
            rates_of(None, type(self).__name__)
        init(self, *args, **named)

    return checked


def unit_of(kind: str, schedulers: Several[Any]) -> str | None:
    """The unit that all schedulers count; None if no scheduler has one."""
    units = {s.schedule.unit for s in schedulers if isinstance(s, TorchSchedule)} - {CALL}
    if len(units) > 1:
        fail(OptionError, f"{kind}: its schedules count in {' and '.join(sorted(units))}; give all one unit=.")
    return next(iter(units), None)


def combine_schedules(
    optimizer: Any, schedulers: Several[Any], unit: str | None, of: Callable[[tuple[Any, ...], float], Schedule]
) -> Make:
    """A function that combines the schedules of all schedulers for each rate."""

    def make(lr: float, place: int) -> Schedule:
        name = list(rates_of(optimizer, "a schedule"))[place]
        parts = [s.schedules.get(name, s.schedule) if isinstance(s, TorchSchedule) else s for s in schedulers]
        return of(tuple(s.counted_in(unit or CALL) if isinstance(s, Schedule) else s for s in parts), lr)

    return make
