"""Monitored numbers: read them from logs, and track the best value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from wholestep.callbacks.run import Value
from wholestep.errors import UnknownNameError, UsageError
from wholestep.schedules.monitor_modes import canonical


def not_measured(monitor: str, logs: Mapping[str, Value], names: Sequence[str]) -> bool:
    """Is it a number of this run that was not measured in this epoch, such as a validation metric with
    `validate_every=`?
    """
    name = canonical(monitor)
    return name not in logs and name in names


def read_monitor(kind: str, monitor: str, logs: Mapping[str, Value], other_names: Sequence[str] = ()) -> float:
    """The monitored number; UnknownNameError with suggestions for an unknown name."""
    name = canonical(monitor)
    if name in logs:
        value = logs[name]
        if isinstance(value, list):
            raise UsageError(
                f"{kind} monitors {monitor!r}, which is not one number but {len(value)} of them. Monitor one number: a "
                "metric with average='macro'."
            )
        return float(value)
    names = list(dict.fromkeys([*logs, *other_names]))
    close = get_close_matches(name, names, 2, 0.5)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    if name.startswith("val_") and not any(n.startswith("val_") for n in names):
        hint = " There is no validation data: pass validation=(x, y) or validation=0.1."
    raise UnknownNameError(
        f"{kind} monitors {monitor!r}, which this run does not have.{hint} It has: {', '.join(names)}."
    )


@dataclass
class Best:
    """The best value so far of a number whose minimum ("min") or maximum ("max") is best."""

    mode: str
    min_delta: float = 0.0
    value: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max", ""):  # "": not known yet
            raise UsageError(f"mode must be 'min' or 'max'; received {self.mode!r}.")

    def improves(self, value: float) -> bool:
        """Is this the best value so far?  If so, store it.  NaN is never the best."""
        if value != value:
            return False
        improved = self.value is None or self.better(value, self.value)
        if improved:
            self.value = value
        return improved

    def better(self, value: float, than: float) -> bool:
        """Is one value better than another by more than `min_delta`?"""
        return value < than - self.min_delta if self.mode == "min" else value > than + self.min_delta
