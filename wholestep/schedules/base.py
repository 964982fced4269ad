"""The base class of schedules: a formula over numbers that can change between steps; plots; configurations."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from wholestep.compiler.frontend.trace import fail, report_config_errors
from wholestep.errors import OptionError, UsageError

if TYPE_CHECKING:
    from wholestep.schedules.maths import Value

CALL = "call"  # counts calls of `scheduler.step()`: updates in a session, epochs in a loop over epochs
UNITS = ("step", "epoch", CALL)
Limits = Mapping[str, Mapping[str, float]]
POSITIVE: Mapping[str, float] = {"above": 0.0}


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A hyper-parameter as a pure function of training progress: the first update uses `schedule(0)`.

    `unit` says what is counted: updates ("step") or passes over the data ("epoch").  A schedule under one of torch's
    names counts calls of its `step()` ("call"): epochs in a loop over epochs (`ws.fit`, `ws.Trainer`), updates in a
    session alone.  An `lr` of None stands for the value of the optimizer, or of whatever else is scheduled.  Numbers
    are runtime scalars of a session: changing one never recompiles.
    """

    unit: str = "step"

    kinds: ClassVar[dict[str, type[Schedule]]] = {}
    _limits: ClassVar[Limits] = {}  # numbers with a range, as arguments of `need`; all others are finite
    _choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # the values of options that select a formula

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Schedule.kinds[cls.__name__] = cls

    # -- the formula ---------------------------------------------------------------------------------------------

    @abstractmethod
    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        """The value at step `n` with the constants `v` of the schedule; all are floats, or all are tensors."""

    def numbers(self) -> dict[str, float | None]:
        """The parameters of the formula by name; the names of a nested schedule have the prefix `<field>.`."""
        numbers: dict[str, float | None] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Schedule):
                numbers |= {f"{f.name}.{k}": x for k, x in value.numbers().items()}
            elif isinstance(value, tuple):
                for i, item in enumerate(value):
                    inner = item.numbers() if isinstance(item, Schedule) else {"": item}
                    numbers |= {f"{f.name}.{i}.{k}".rstrip("."): x for k, x in inner.items()}
            elif (isinstance(value, int | float) and not isinstance(value, bool)) or f.name == "lr":
                numbers[f.name] = value
        return numbers

    def __call__(self, n: float) -> float:
        """The value at `n`, counted from 0 in the schedule's own unit."""
        if not isinstance(n, int | float) or isinstance(n, bool) or n < 0:
            fail(OptionError, f"a schedule is a function of a {self.unit} counted from 0; received {n!r}.")
        values = self.numbers()
        if None in values.values():
            fail(UsageError, f"{self} takes its lr from an optimizer and has none yet: use .bound(lr).")
        return float(self.formula(float(n), FormulaNumbers(values)))

    def get_lr(self, n: float) -> float:
        """`schedule(n)`"""
        return self(n)

    def bound(self, base: float) -> Schedule:
        """The same schedule with `base` in place of an `lr` of None."""
        changed = {"lr": base} if "lr" in vars(self) and vars(self)["lr"] is None else {}
        return self._inside(lambda s: s.bound(base), **changed)

    def counted_in(self, unit: str) -> Schedule:
        """The same schedule and its nested ones in another unit."""
        return self._inside(lambda s: s.counted_in(unit), unit=unit)

    def tabulated(self, run: int | None) -> Schedule:
        """The same schedule for a run of `run` steps or epochs, with tables in place of functions that cannot be
        traced.
        """
        return self._inside(lambda s: s.tabulated(run))

    def _inside(self, change: Callable[[Schedule], Schedule], **changed: Any) -> Schedule:
        """The same schedule with other fields, and with `change` applied to nested schedules."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Schedule):
                changed[f.name] = change(value)
            elif isinstance(value, tuple) and any(isinstance(x, Schedule) for x in value):
                changed[f.name] = tuple(change(x) for x in value)
        return replace(self, **changed) if changed else self

    def with_numbers(self, values: Mapping[str, float]) -> Schedule:
        """The same schedule with other numbers, named as in `numbers`."""
        inside, changed = FormulaNumbers(values), dict[str, Any]()
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Schedule):
                changed[f.name] = value.with_numbers(inside.inner(f.name).all)
            elif isinstance(value, tuple) and value and isinstance(value[0], Schedule):
                parts = inside.inner(f.name)
                changed[f.name] = tuple(s.with_numbers(parts.inner(str(i)).all) for i, s in enumerate(value))
            elif isinstance(value, tuple):
                changed[f.name] = tuple(values.get(f"{f.name}.{i}", x) for i, x in enumerate(value))
            elif f.name in values:
                changed[f.name] = values[f.name]
        return replace(self, **changed)

    def structure(self) -> tuple[object, ...]:
        """A key that is equal for schedules whose programs differ in numbers only."""
        parts: list[object] = [type(self).__name__]
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Schedule):
                parts.append(value.structure())
            elif isinstance(value, tuple):
                parts.append(tuple(x.structure() if isinstance(x, Schedule) else None for x in value))
            elif isinstance(value, str | bool):
                parts.append((f.name, value))
        return tuple(parts)

    # -- looking at it -------------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """The end of the schedule, or 100 if it has none: the range of `table` and `plot`."""
        return 100 if self.horizon is None else math.ceil(self.horizon)

    @property
    def horizon(self) -> float | None:
        """The end of the schedule, which should match the length of the run; None if it has none."""
        return None

    @property
    def reach(self) -> float | None:
        """The shortest run in which every phase of the schedule occurs; None: any."""
        return self.horizon

    def table(self, steps: int | None = None, every: int | None = None) -> str:
        """The values from 0 to `steps` as text, one row per `every`."""
        end = self.length if steps is None else steps
        stride = max(1, end // 20) if every is None else every
        if end < 0 or stride < 1:
            fail(OptionError, f"table: expected steps of at least 0 and every of at least 1; received {end}, {stride}.")
        from wholestep.schedules.show import table_text  # imported here because a training run does not need it

        return table_text(self.unit, [(n, self(n)) for n in range(0, end + 1, stride)])

    def plot(self, file: object = None, steps: int | None = None) -> str:
        """The curve, drawn into `file` (SVG; other formats need matplotlib) or, without a file, as text."""
        from wholestep.schedules.show import plot_to_file, terminal_plot

        end = max(1, self.length if steps is None else steps)
        points = [(n, self(n)) for n in range(end + 1)]
        return terminal_plot(self.unit, points) if file is None else plot_to_file(self.unit, points, file, str(self))

    # -- storing it ----------------------------------------------------------------------------------------------

    def to_config(self) -> dict[str, Any]:
        """The schedule as plain data: `{"kind": "Cosine", "lr": 0.1, ...}`."""
        return {"kind": type(self).__name__, **{f.name: _plain(getattr(self, f.name)) for f in fields(self)}}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Schedule:
        """The schedule of a `to_config()`."""
        kind = config.get("kind")
        if not isinstance(kind, str) or kind not in Schedule.kinds:
            kinds = ", ".join(k for k in Schedule.kinds)
            fail(OptionError, f"there is no schedule of kind {kind!r}; there are: {kinds}.")
        cls = Schedule.kinds[kind]
        unknown = [k for k in config if k != "kind" and k not in {f.name for f in fields(cls)}]
        if unknown:
            fail(OptionError, f"{kind} has no field {unknown[0]!r}; it has: {', '.join(f.name for f in fields(cls))}.")
        with report_config_errors(kind):
            return cls(**{k: _from_config(v) for k, v in config.items() if k != "kind"})

    # -- checks --------------------------------------------------------------------------------------------------

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            fail(OptionError, f"{self._kind}: unit={self.unit!r}: expected 'step' or 'epoch'.")
        self.check()

    def check(self) -> None:
        """Raise OptionError for a number outside `_limits` or not finite, and for an option not in `_choices`."""
        numbers = self.numbers()
        for f in fields(self):
            if f.name in numbers or str(f.type) in ("float", "float | None"):
                self.need(f.name, **self._limits.get(f.name, {}))
        for name, allowed in self._choices.items():
            need_choice(self._kind, name, getattr(self, name), allowed)

    @property
    def _kind(self) -> str:
        return type(self).__name__

    def need(self, name: str, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf) -> None:
        """Raise OptionError unless the field is a finite number in this range."""
        value = getattr(self, name)
        if name == "lr" and value is None:
            return
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            fail(OptionError, f"{self._kind}: {name} must be a finite number; received {value!r}.")
        if not (value > above and least <= value <= most):
            expected = [f"above {above:g}"] * (above > -math.inf) + [f"at least {least:g}"] * (least > -math.inf)
            expected += [f"at most {most:g}"] * (most < math.inf)
            fail(OptionError, f"{self._kind}: {name} must be {' and '.join(expected)}; received {value}.")


class FormulaNumbers(SimpleNamespace):
    """The numbers of a formula as attributes; `inner(name)` has the numbers of a nested schedule."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        super().__init__(**{k: v for k, v in values.items() if "." not in k})
        self.all = dict(values)

    def inner(self, name: str) -> FormulaNumbers:
        """The numbers of a nested schedule, called `name.…`."""
        prefix = f"{name}."
        return FormulaNumbers({k.removeprefix(prefix): v for k, v in self.all.items() if k.startswith(prefix)})

    def listed(self, name: str) -> list[Value]:
        """The numbers of a tuple, in order."""
        inside = self.inner(name).all
        return [inside[str(i)] for i in range(len(inside))]


def need_choice(kind: str, name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise OptionError for an option that selects a formula, unless it is one of the allowed values."""
    if value not in allowed:
        fail(OptionError, f"{kind}: {name}={value!r}: expected one of {', '.join(map(repr, allowed))}.")


def _plain(value: object) -> Any:
    if isinstance(value, Schedule):
        return value.to_config()
    return [_plain(x) for x in value] if isinstance(value, tuple) else value


def _from_config(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Schedule.from_config(value)
    return tuple(_from_config(x) for x in value) if isinstance(value, list | tuple) else value
