"""Runtime scalars of a session, and optimizers and schedules over them: setting one never recompiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wholestep.compiler.runtime.state.state import State
from wholestep.compiler.runtime.state.step_counters import SessionCounter
from wholestep.errors import OptionError, UnknownNameError, UsageError
from wholestep.schedules.base import FormulaNumbers, Schedule
from wholestep.schedules.bind import scalar_name

ALIASES = {"learning_rate": "lr", "epsilon": "eps"}


class RuntimeScalars:
    """The runtime scalars of a session by name; `changed` is called when one changes."""

    def __init__(self, changed: Callable[[str, float], None]) -> None:
        self._values: dict[str, float] = {}
        self._changed = changed
        # scheduled scalars -> the function that computes their value
        self.governed: dict[str, Callable[[RuntimeScalars], float]] = {}

    def declare(self, name: str, value: float) -> float:
        """The scalar's current value; `value` if it is new."""
        return self._values.setdefault(name, value)

    def drop(self, prefix: str) -> None:
        """Remove the scalars of an optimizer that was replaced."""
        self._values = {n: v for n, v in self._values.items() if not n.startswith(prefix)}

    def __getitem__(self, name: str) -> float:
        if name in self.governed:
            return self.governed[name](self)
        if name not in self._values:
            raise self._unknown(name)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values or name in self.governed

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._values, *self.governed]))

    def __len__(self) -> int:
        return len(list(self))

    def _unknown(self, name: str) -> UnknownNameError:
        names = ", ".join(map(repr, [*self._values, *self.governed])) or "none"
        return UnknownNameError(f"there is no runtime scalar named {name!r}; there are: {names}.")

    def __setitem__(self, name: str, value: float) -> None:
        if name in self.governed:
            raise OptionError(
                f"{name} follows a schedule and cannot be set to {value!r}. Change the schedule's numbers, e.g. "
                f"session.schedules[{name!r}].lr = {value!r}, or give another: session.set_schedule(...)."
            )
        if name not in self._values:
            raise self._unknown(name)
        number = check_number(name, value)
        self._values[name] = number
        self._changed(name, number)

    def items(self) -> list[tuple[str, float]]:
        return list(self._values.items())

    def schedule(self, target: str, schedule: Schedule) -> Schedule:
        """A schedule with its current numbers."""
        return schedule.with_numbers({k: self[scalar_name(target, k)] for k in schedule.numbers()})


def check_number(name: str, value: object) -> float:
    """`value` as a float; OptionError unless it is a finite number."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise OptionError(f"{name}={value!r}: expected a finite number.")
    return number


class LiveOptimizer:
    """The hyper-parameters of a session's optimizer.

    Example::

        session.optimizer.lr = 1e-4        # from the next step on; nothing is compiled
        session.optimizer["head"].lr = 1e-2  # the lr of a group with a separate lr
    """

    def __init__(self, name: str, scalars: RuntimeScalars) -> None:
        object.__setattr__(self, "_prefix", f"{name}.")
        object.__setattr__(self, "_scalars", scalars)

    def __getitem__(self, group: str) -> LiveOptimizer:
        """The hyper-parameters of a group."""
        group_numbers = LiveOptimizer(f"{self._prefix}{group}", self._scalars)
        if not group_numbers._fields():
            groups = sorted({n.rpartition(".")[0] for n in self._fields() if "." in n})
            names = ", ".join(map(repr, groups)) or "none"
            raise UnknownNameError(f"no group {group!r}has hyperparameters of its own; there are: {names}.")
        return group_numbers

    def _fields(self) -> dict[str, float]:
        prefix, scalars = self._prefix, self._scalars
        fields = {n: v for n, v in scalars.items() if n.startswith(prefix)}
        fields |= {n: scalars[n] for n in scalars.governed if n.startswith(prefix)}
        return {n.removeprefix(prefix): v for n, v in fields.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        fields = self._fields()
        if name == "betas" and "beta1" in fields:
            return fields["beta1"], fields["beta2"]
        field = ALIASES.get(name, name)
        if field not in fields:
            raise AttributeError(self._unknown(name))
        return fields[field]

    def __setattr__(self, name: str, value: Any) -> None:
        fields = self._fields()
        field = ALIASES.get(name, name)
        if name == "betas" and "beta1" in fields:
            self._scalars[f"{self._prefix}beta1"], self._scalars[f"{self._prefix}beta2"] = value
        elif field in fields:
            self._scalars[self._prefix + field] = value
        else:
            raise UnknownNameError(self._unknown(name))

    def _unknown(self, name: str) -> str:
        names = ", ".join(self._fields()) or "none"
        return (
            f"the optimizer of this session has no live {name!r}; it has: {names}. What was off when the session was "
            f"built is not part of the program: build with {name}=ws.runtime(0.0) to keep it switchable."
        )

    def __repr__(self) -> str:
        return f"LiveOptimizer({', '.join(f'{n}={v:g}' for n, v in self._fields().items())})"


class LiveSchedule:
    """A schedule of a session: its current value, and its numbers, which can change without a recompile.

    Example::

        session.schedule.T_max = 2000
        session.schedule.observe(val_loss)      # of a ReduceOnPlateau
    """

    def __init__(self, target: str, schedule: Schedule, scalars: RuntimeScalars) -> None:
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_schedule", schedule)
        object.__setattr__(self, "_scalars", scalars)

    @property
    def description(self) -> Schedule:
        """The schedule that was passed."""
        return self._schedule  # type: ignore[no-any-return]

    @property
    def value(self) -> float:
        """The value in the next step."""
        return self._scalars[self._target]  # type: ignore[no-any-return]

    def __call__(self, n: float) -> float:
        """The value at `n` with the current numbers."""
        return float(self._schedule.formula(float(n), FormulaNumbers(self.numbers())))

    def numbers(self) -> dict[str, float]:
        """Its current numbers by name."""
        return {k: self._scalars[scalar_name(self._target, k)] for k in self._schedule.numbers()}

    def observe(self, value: float | Mapping[str, float]) -> None:
        """Pass a measurement to a `ReduceOnPlateau`, e.g. the validation loss of an epoch.

        For several nested ones, a dict by path has one value for each.
        """
        from wholestep.schedules.plateau import plateaus  # imported here because few runs have one

        plateau_paths = plateaus(self._schedule)
        if not plateau_paths:
            raise UsageError(f"{type(self._schedule).__name__} observes nothing; ws.schedules.ReduceOnPlateau does.")
        for path, plateau in plateau_paths.items():
            if isinstance(value, Mapping) and path not in value:
                continue  # this plateau got no measurement
            seen = value[path] if isinstance(value, Mapping) else value
            numbers = FormulaNumbers(self.numbers()).inner(path.removesuffix(".")).all if path else self.numbers()
            for k, number in plateau.observed(numbers, float(seen)).items():
                self._scalars[scalar_name(self._target, path + k)] = number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._schedule.numbers():
            raise AttributeError(f"the schedule of {self._target} has no number {name!r}: {self._schedule}.")
        return self.numbers()[name]

    def __setattr__(self, name: str, value: float) -> None:
        numbers = self._schedule.numbers()
        if name not in numbers:
            raise UnknownNameError(
                f"the schedule of {self._target} has no scalar {name!r}; it has: {', '.join(numbers)}."
            )
        self.set_numbers({name: value})

    def set_numbers(self, values: Mapping[str, float]) -> None:
        """Change numbers by name, e.g. `"after.T_max"` of a nested schedule; OptionError outside their range."""
        now = {**self.numbers(), **values}
        self._schedule.with_numbers(now)  # checks them together
        for k in values:
            self._scalars[scalar_name(self._target, k)] = values[k]

    def __repr__(self) -> str:
        return f"LiveSchedule({self._target} = {self.value:g}, {self._schedule})"


def governor(target: str, schedule: Schedule, state: State, turn: SessionCounter) -> Callable[[RuntimeScalars], float]:
    """A function that evaluates a schedule at the session's updates, or at the state's epoch."""

    def value(scalars: RuntimeScalars) -> float:
        numbers = FormulaNumbers({k: scalars[scalar_name(target, k)] for k in schedule.numbers()})
        count = state.epoch if schedule.unit == "epoch" else state.updates_in(turn)
        return float(schedule.formula(float(count), numbers))

    return value
