"""The learning rates of an optimizer: its own rate, and the rates of groups with a separate lr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError

UNBOUND = {
    "StepLR": "ws.schedules.StepDecay(None, 10, gamma=0.1, unit='epoch')",
    "MultiStepLR": "ws.schedules.MultiStep(None, (10, 20), gamma=0.1, unit='epoch')",
    "ExponentialLR": "ws.schedules.Exponential(None, 0.95, unit='epoch')",
    "CosineAnnealingLR": "ws.schedules.Cosine(None, 10, unit='epoch')",
    "PolynomialLR": "ws.schedules.Polynomial(None, 10, unit='epoch')",
    "ReduceLROnPlateau": "ws.schedules.ReduceOnPlateau(None, factor=0.1, patience=3)",
}
OWN = ""  # the name of the optimizer's own rate; rates of groups have the names of their runtime scalars


def rates_of(optimizer: Any, kind: str) -> dict[str, float]:
    """The initial rates of an optimizer and its groups; the optimizer is a configuration, a session's, or one on a
    graph.

    As in torch, a second schedule takes the lr from before the first one changed it, unless it was set since then.
    """
    now = _rates_now(optimizer)
    if OWN not in now:
        text = f"{kind} takes the optimizer first, e.g. {kind}(session.optimizer, ...); received {optimizer!r}."
        fail(UsageError, text + _unbound(kind))
    first_rates, prefix = _rates_of(optimizer)
    rates = {}
    for name, value in now.items():
        first, last = first_rates.get(prefix + name, (value, value))
        rates[name] = first if last == value else value
    return rates


def _unbound(kind: str) -> str:
    """The line to write for a schedule without an optimizer."""
    name = UNBOUND.get(kind)
    return f" Without one write {name}, which ws.fit(..., schedule=...) binds to its optimizer." if name else ""


def set_rate(optimizer: Any, lr: float, name: str = OWN) -> None:
    """Set a rate, and store the value that it had before any schedule changed it."""
    first = rates_of(optimizer, "a schedule")[name]
    if name != OWN and hasattr(optimizer, "runtime_values"):
        optimizer._arrays.set(name, lr)
    elif name != OWN:
        optimizer._scalars[name] = lr
    elif hasattr(optimizer, "set_lr"):
        optimizer.set_lr(lr)
    else:
        optimizer.lr = lr
    first_rates, prefix = _rates_of(optimizer)
    first_rates[prefix + name] = first, _rates_now(optimizer)[name]


def for_each(kind: str, what: str, option: Any, place: int, count: int) -> Any:
    """The value of an option for the rate at `place`: one value for all rates, or a list with one for each."""
    if not isinstance(option, Sequence) or isinstance(option, str):
        return option
    if len(option) != count:
        fail(
            OptionError,
            f"{kind}: {what} has {len(option)} values, and the optimizer has {count} learning rates: its own, then "
            "those of groups with an lr of their own. Give one for each, or one for all.",
        )
    return option[place]


def _rates_now(optimizer: Any) -> dict[str, float]:
    value = optimizer.get_lr() if hasattr(optimizer, "get_lr") else getattr(optimizer, "lr", None)
    rates = {} if value is None else {OWN: float(getattr(value, "value", value))}
    if hasattr(optimizer, "runtime_values"):
        names = [n for n in optimizer.runtime_values() if n.endswith(".lr") and n != optimizer.lr_name]
        return {**rates, **{n: optimizer._arrays.get(n) for n in names}}
    prefix = vars(optimizer).get("_prefix") if hasattr(optimizer, "__dict__") else None
    if prefix is None:
        return rates
    return {**rates, **{prefix + n: v for n, v in optimizer._fields().items() if n.endswith(".lr")}}


def _rates_of(optimizer: Any) -> tuple[dict[str, Any], str]:
    """The rates stored for an optimizer, in a dict that lives as long as the optimizer, and the prefix of its keys."""
    attributes = vars(optimizer)
    return vars(attributes.get("_scalars", optimizer)), f"_rates_of_schedules {attributes.get('_prefix', '')}"
