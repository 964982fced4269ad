"""The live hyper-parameters of a session's optimizer: reading and setting them never recompiles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from wholestep.errors import OptionError, UnknownNameError

ALIASES = {"learning_rate": "lr", "epsilon": "eps"}


class Scalars:
    """The runtime scalars of a session by name, with what to do when one changes."""

    def __init__(self, changed: Callable[[str, float], None]) -> None:
        self._values: dict[str, float] = {}
        self._changed = changed

    def declare(self, name: str, value: float) -> float:
        """The scalar's current value; `value` where it is new."""
        return self._values.setdefault(name, value)

    def drop(self, prefix: str) -> None:
        """Forget the scalars of an optimizer that was replaced."""
        self._values = {n: v for n, v in self._values.items() if not n.startswith(prefix)}

    def __getitem__(self, name: str) -> float:
        if name not in self._values:
            raise self._unknown(name)
        return self._values[name]

    def _unknown(self, name: str) -> UnknownNameError:
        known = ", ".join(map(repr, self._values)) or "none"
        return UnknownNameError(f"there is no runtime scalar named {name!r}; there are: {known}.")

    def __setitem__(self, name: str, value: float) -> None:
        if name not in self._values:
            raise self._unknown(name)
        number = checked_number(name, value)
        self._values[name] = number
        self._changed(name, number)

    def items(self) -> list[tuple[str, float]]:
        return list(self._values.items())


def checked_number(name: str, value: object) -> float:
    """`value` as a float; an error where it is no finite number."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise OptionError(f"{name}={value!r}: expected a finite number.")
    return number


class LiveOptimizer:
    """The numbers of an optimizer while it is at work.

    Example::

        session.optimizer.lr = 1e-4        # from the next step on; nothing is compiled
    """

    def __init__(self, name: str, scalars: Scalars) -> None:
        object.__setattr__(self, "_prefix", f"{name}.")
        object.__setattr__(self, "_scalars", scalars)

    def _fields(self) -> dict[str, float]:
        prefix: str = self._prefix
        return {n.removeprefix(prefix): v for n, v in self._scalars.items() if n.startswith(prefix)}

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
        known = ", ".join(self._fields()) or "none"
        return (
            f"the optimizer of this session has no live {name!r}; it has: {known}. What was off when the session was "
            f"built is not part of the program: build with {name}=ws.runtime(0.0) to keep it switchable."
        )

    def __repr__(self) -> str:
        return f"LiveOptimizer({', '.join(f'{n}={v:g}' for n, v in self._fields().items())})"
