"""The options of an optimizer: numbers with a range, values that mean *off*, and names of other libraries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, field, fields
from functools import wraps
from typing import Any, TypeVar

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError
from wholestep.lazy import interop
from wholestep.records import dataclass


@dataclass(frozen=True)
class Runtime:
    """A hyper-parameter that stays part of the program even while its value means *off*."""

    value: float


def runtime(value: float) -> Runtime:
    """Keep an option switchable: with `momentum=ws.runtime(0.0)` the step contains momentum, at 0 for now.

    Example: `ws.SGD(lr=0.1, weight_decay=ws.runtime(0.0))`.
    """
    return Runtime(float(value))


Number = float | Runtime
C = TypeVar("C", bound=type[Any])
RANGE = "range"
# Far above all defaults: the quotient of a gradient that is zero up to rounding is then also close to zero.
EPS_TRIED = 1e-3


@dataclass(frozen=True)
class Range:
    """The allowed values of a number: low ≤ x ≤ high, or low ≤ x < below; `parts` name the numbers of a tuple."""

    low: float = 0.0
    high: float = math.inf
    below: float = math.inf
    optional: bool = False  # is it omitted from the program if it is a plain 0?
    structural: bool = False  # part of the program's structure: changing it changes the program
    whole: bool = False
    none: bool = False  # may it be None, for a default that depends on the parameter?
    parts: tuple[str, ...] = ()
    # The value for the self-check of a new plan, such that an update depends on all its operands about equally.
    trial: float | tuple[float, ...] | None = None

    def check(self, kind: str, what: str, value: object) -> None:
        """Raise OptionError unless `value` is a number in this range."""
        number = value.value if isinstance(value, Runtime) else value
        if number is None and self.none:
            return
        if not isinstance(number, int | float) or isinstance(number, bool):
            fail(UsageError, f"{kind}: {what} must be a number; received {number!r}.")
        if self.whole and not isinstance(number, int):
            fail(UsageError, f"{kind}: {what} must be an integer; received {number!r}.")
        if not (self.low <= number <= self.high and number < self.below) or not math.isfinite(number):
            fail(OptionError, f"{kind}: {what} must be {self}; received {number}.")

    def __str__(self) -> str:
        lower = f"at least {self.low:g}" if math.isfinite(self.low) else ""
        upper = f"below {self.below:g}" if math.isfinite(self.below) else "finite"
        upper = f"at most {self.high:g}" if math.isfinite(self.high) else upper
        return " and ".join(filter(None, (lower, upper)))


def number(default: float, **limits: Any) -> Any:
    """A field for a runtime scalar: `momentum: Number = number(0.9, below=1.0, trial=0.6)`."""
    return field(default=default, metadata={RANGE: Range(**limits)})


def numbers(default: tuple[float | None, ...], parts: tuple[str, ...], **limits: Any) -> Any:
    """A field for several of them: `betas: tuple[Number, Number] = numbers((0.9, 0.999), ("beta1", "beta2"))`."""
    return field(default=default, metadata={RANGE: Range(parts=parts, **limits)})


def whole(default: int, low: int = 1) -> Any:
    """A field for an integer on which the program's structure depends."""
    return field(default=default, metadata={RANGE: Range(low=low, structural=True, whole=True)})


def range_of(f: Field[Any], value: object) -> Range | None:
    """The range of a field; in a user-defined class, a plain number may have any finite value."""
    limits = f.metadata.get(RANGE)
    if limits is not None:
        assert isinstance(limits, Range)
        return limits
    is_number = isinstance(value, int | float | Runtime) and not isinstance(value, bool)
    return Range(low=-math.inf) if is_number else None


def check_options(optimizer: Any) -> None:
    """Raise OptionError for a number outside its range, or a tuple of the wrong length."""
    kind = type(optimizer).__name__
    for f in fields(optimizer):
        value = getattr(optimizer, f.name)
        limits = range_of(f, value)
        if limits is None:
            continue
        if not limits.parts:
            limits.check(kind, f.name, value)
            continue
        _check_tuple(kind, f, value, limits)
        object.__setattr__(optimizer, f.name, tuple(value))


def _check_tuple(kind: str, f: Field[Any], value: object, limits: Range) -> None:
    if not isinstance(value, tuple | list) or len(value) != len(limits.parts):
        what = "a pair" if len(limits.parts) == 2 else f"{len(limits.parts)} numbers"
        fail(OptionError, f"{kind}: {f.name} must be {what}, e.g. {f.default}; received {value!r}.")
    for position, item in enumerate(value):
        limits.check(kind, f"{f.name}[{position}]", item)


def runtime_numbers(optimizer: Any) -> dict[str, Number]:
    """The numbers that are part of the program and can change between steps, without disabled options."""
    out: dict[str, Number] = {}
    for f in fields(optimizer):
        value = getattr(optimizer, f.name)
        limits = range_of(f, value)
        if limits is None or limits.structural or (limits.optional and is_off(value)):
            continue
        named = zip(limits.parts, value, strict=True) if limits.parts else [(f.name, value)]
        out.update({name: item for name, item in named if item is not None})
    return out


def structural_options(optimizer: Any) -> tuple[tuple[str, object], ...]:
    """The options whose change changes the program: switches, texts, integers."""
    out = []
    for f in fields(optimizer):
        value = getattr(optimizer, f.name)
        limits = range_of(f, value)
        if limits is None or limits.structural:
            out.append((f.name, value))
    return tuple(out)


def parts_of(cls: type[Any], option: str) -> tuple[str, ...]:
    """The names of an option's runtime scalars: `betas` has beta1 and beta2."""
    limits = next(f.metadata.get(RANGE) for f in fields(cls) if f.name == option)
    return limits.parts if limits is not None and limits.parts else (option,)


def trials_of(cls: type[Any]) -> dict[str, float]:
    """The values for the self-check of a plan with this optimizer, by runtime scalar."""
    out: dict[str, float] = {}
    for f in fields(cls):
        limits = f.metadata.get(RANGE)
        if limits is not None and limits.trial is not None:
            values = limits.trial if limits.parts else (limits.trial,)
            out.update(zip(limits.parts or (f.name,), values, strict=True))
    return out


def is_off(value: object) -> bool:
    """Is the value a plain 0 or False, which the program omits?"""
    return not isinstance(value, Runtime) and not value


def plain(value: Number) -> float:
    """The number without its `Runtime` wrapper."""
    return float(value.value if isinstance(value, Runtime) else value)


# -- names from other libraries ------------------------------------------------------------------------------------


def with_aliases(**aliases: str) -> Callable[[C], C]:
    """Decorator: the constructor also accepts names of other libraries: `learning_rate="lr"`, `beta1="betas[0]"`."""

    def wrap(cls: C) -> C:
        original = cls.__init__

        @wraps(original)
        def init(self: Any, *args: Any, **options: Any) -> None:
            if args and not isinstance(args[0], int | float | str | Runtime):
                _refuse_parameters(cls.__name__, args[0])
            positional = [f.name for f in fields(cls) if not f.kw_only][: len(args)]
            named = translate(cls, options, positional)
            own_fields = [f.name for f in fields(cls) if f.init]
            if not named.keys() <= set(own_fields):
                named = interop.translate_arguments([kind.__name__ for kind in type(self).__mro__], own_fields, named)
            original(self, *args, **named)

        cls.__init__ = init
        cls.aliases = aliases
        return cls

    return wrap


def _refuse_parameters(kind: str, received: object) -> None:
    fail(
        UsageError,
        f"ws.{kind} takes no parameters, only numbers; received a {type(received).__name__}. It is bound to the "
        f"parameters where it is used: ws.fit(model, data, ..., optimizer=ws.{kind}(lr=0.01)), or ws.build_session.",
    )


def translate(
    cls: type[Any], options: Mapping[str, Any], positional: Sequence[str] = (), base: object = None
) -> dict[str, Any]:
    """Options under the names of the class's own fields; setting one number of a tuple keeps the others of `base`."""
    aliases: Mapping[str, str] = getattr(cls, "aliases", {})
    out = {k: v for k, v in options.items() if k not in aliases}
    for alias in aliases.keys() & options.keys():
        target, _, position = aliases[alias].rstrip("]").partition("[")
        if target in options or target in positional:
            fail(UsageError, f"{cls.__name__}: {alias} and {target} are the same option; give one of them.")
        if position:
            whole = next(f.default for f in fields(cls) if f.name == target)
            pair = list(out.get(target, whole if base is None else getattr(base, target)))
            pair[int(position)] = options[alias]
            out[target] = tuple(pair)
        else:
            out[target] = options[alias]
    return out
