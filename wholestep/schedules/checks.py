"""Checks of a schedule: is `schedule=` a schedule at all, and does it fit the run that follows it?"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError
from wholestep.schedules.base import Schedule

NEAR = 0.1  # tolerated relative difference from the length of the run; one step or epoch is always tolerated
SEVERAL = {"step": "steps", "epoch": "epochs"}


def ended_warning(schedule: Schedule, done: int, unit: str) -> str:
    """A warning about a schedule that has ended before a resumed run begins; "" before its end."""
    ends, several = schedule.horizon, SEVERAL[unit]
    if ends is None or not done or done < ends:
        return ""
    return (
        f"{type(schedule).__name__} by {unit}, has ended: it is {ends:g} {several} long, this run begins after {done} "
        f"and trains with {schedule(done):.4g} throughout. A resumed run keeps its schedule; to train further with "
        "another one, start a new run from the weights: model.load('runs/name'), then ws.fit(model, ..., schedule=...)."
    )


def length_warning(schedule: Schedule, run: int, unit: str) -> str:
    """A warning about a schedule in `unit` that is much shorter or longer than the run; "" if it fits."""
    ends, far, several = schedule.horizon, max(1.0, NEAR * run), SEVERAL[unit]
    if ends is not None and ends < run - far:
        odd = f"ends after {ends:g} {several}, the run has {run}: {schedule(ends):.4g} holds from there on"
    elif schedule.reach is not None and schedule.reach > run + far:
        odd = f"goes on for {schedule.reach:g} {several}, the run has {run}"
    else:
        return ""
    other = "step" if unit == "epoch" else "epoch"
    return (
        f"{type(schedule).__name__} by {unit}, {odd}. Give it the length of the run, or unit={other!r} if "
        f"{SEVERAL[other]} were meant."
    )


def refuse_schedule(value: object) -> NoReturn:
    """Raise UsageError for a `schedule=` that is not a schedule, with the line to write instead."""
    package = import_module("wholestep.schedules")
    ours = {name: getattr(package, name) for name in package.__all__}
    name_here = next((name for name, exported in ours.items() if exported is value), None)
    kind = type(value).__name__
    if name_here is not None:
        fail(
            UsageError, f"schedule is ws.schedules.{name_here} itself; call it: schedule=ws.schedules.{name_here}(...)."
        )
    if isinstance(value, str):
        named = {name.lower(): name for name in ours}
        close = get_close_matches(value.lower(), named, 1, 0.5)
        meant = named[close[0]] if close else "cosine"
        fail(UsageError, f"schedule={value!r} is a name; give the schedule: schedule=ws.schedules.{meant}(...).")
    if kind in ours and hasattr(value, "get_last_lr"):
        fail(
            UsageError,
            f"schedule is another library's {kind}; ours has the same name: schedule=ws.schedules.{kind}(optimizer, "
            "...), optimizer being the one that is trained with.",
        )
    if callable(value):
        fail(
            UsageError,
            f"schedule is a function, {value!r}: is it the rate, or what the optimizer's rate is multiplied with? "
            "ws.schedules.Lambda(function) multiplies it, ws.schedules.Lambda(function, lr=1.0) is the rate; "
            "unit='epoch' counts epochs.",
        )
    fail(
        UsageError,
        "schedule is a schedule, e.g. ws.schedules.Cosine(1e-3, 1000), or a dict of them by runtime scalar, "
        f"{{'optimizer.lr': ...}}; received {value!r}.",
    )
