"""What people give as a schedule that is none, and what to write instead."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError


def refuse(given: object) -> NoReturn:
    """UsageError with the line that was meant."""
    package = import_module("wholestep.schedules")
    ours = {name: getattr(package, name) for name in package.__all__}
    own = next((name for name, value in ours.items() if value is given), None)
    kind = type(given).__name__
    if own is not None:
        fail(UsageError, f"schedule is ws.schedules.{own} itself; call it: schedule=ws.schedules.{own}(...).")
    if isinstance(given, str):
        named = {name.lower(): name for name in ours}
        close = get_close_matches(given.lower(), named, 1, 0.5)
        meant = named[close[0]] if close else "cosine"
        fail(UsageError, f"schedule={given!r} is a name; give the schedule: schedule=ws.schedules.{meant}(...).")
    if kind in ours and hasattr(given, "get_last_lr"):
        fail(
            UsageError,
            f"schedule is another library's {kind}; ours has the same name: schedule=ws.schedules.{kind}(optimizer, "
            "...), optimizer being the one that is trained with.",
        )
    if callable(given):
        fail(
            UsageError,
            f"schedule is a function, {given!r}: is it the rate, or what the optimizer's rate is multiplied with? "
            "ws.schedules.Lambda(function) multiplies it, ws.schedules.Lambda(function, lr=1.0) is the rate; "
            "unit='epoch' counts epochs.",
        )
    fail(
        UsageError,
        "schedule is a schedule, e.g. ws.schedules.Cosine(1e-3, 1000), or a dict of them by runtime scalar, "
        f"{{'optimizer.lr': ...}}; received {given!r}.",
    )
