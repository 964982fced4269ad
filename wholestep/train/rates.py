"""Schedules in loops of epochs: what they count, whether they fit the run, what plateaus observe, which lr was used."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wholestep.callbacks.base import Value, read_monitor
from wholestep.errors import UsageError
from wholestep.schedules.base import CALL, Schedule

if TYPE_CHECKING:
    from wholestep.session import Session

NEAR = 0.1  # a horizon that differs from the run by less than this part of it, or by one, is taken as meant
SEVERAL = {"step": "steps", "epoch": "epochs"}


def resolved(schedule: Any, epochs: int, steps_per_epoch: int | None) -> Any:
    """A schedule as a loop of epochs reads it: over the run's length, and counting epochs where it does not say."""
    from wholestep.schedules import Planned, TorchSchedule  # these bring every schedule along

    if isinstance(schedule, Mapping):
        return {name: resolved(s, epochs, steps_per_epoch) for name, s in schedule.items()}
    if isinstance(schedule, Planned):
        if steps_per_epoch is None:
            raise UsageError(
                f"{schedule.name}: how long the run is cannot be known from an iterable; give steps=."
            ) from None
        return schedule.over(epochs * steps_per_epoch)
    plain = schedule.schedule if isinstance(schedule, TorchSchedule) else schedule
    return plain.counted_in("epoch") if isinstance(plain, Schedule) and plain.unit == CALL else plain


def count_epochs(session: Session) -> None:
    """In a session that a loop of epochs is about to drive, schedules under torch's names count epochs."""
    own = {target: live.description for target, live in session.schedules.items()}
    if any(s.unit == CALL for s in own.values()):
        session.set_schedule(resolved(own, 0, None))


def check_horizons(session: Session, epochs: int, steps_per_epoch: int | None) -> None:
    """A warning for every schedule that ends long before the run does, or is not through when it ends."""
    lengths = {"epoch": epochs, "step": None if steps_per_epoch is None else epochs * steps_per_epoch}
    for target, live in session.schedules.items():
        schedule = live.description.with_numbers(live.numbers())
        run = lengths[schedule.unit]
        if not run or epochs == 0:
            continue
        ends, unit = schedule.horizon, SEVERAL[schedule.unit]
        far = max(1.0, NEAR * run)
        if ends is not None and ends < run - far:
            text = f"ends after {ends:g} {unit}, the run has {run}: {schedule(ends):.4g} holds from there on"
        elif schedule.reach is not None and schedule.reach > run + far:
            text = f"goes on for {schedule.reach:g} {unit}, the run has {run}"
        else:
            continue
        other = "step" if schedule.unit == "epoch" else "epoch"
        warnings.warn(
            f"the schedule of {target}, {type(schedule).__name__} by {schedule.unit}, {text}. Give it the length of "
            f"the run, or unit={other!r} if {SEVERAL[other]} were meant.",
            stacklevel=4,
        )


def observe(session: Session, logs: Mapping[str, Value]) -> None:
    """Let every plateau observe its number of the epoch, once."""
    from wholestep.schedules.plateau import plateaus

    for live in session.schedules.values():
        found = plateaus(live.description)
        usual = "val_loss" if "val_loss" in logs else "loss"
        seen = {path: read_monitor("ReduceOnPlateau", p.monitor or usual, logs) for path, p in found.items()}
        if seen:
            live.observe(seen)


def need_monitors(session: Session, names: tuple[str, ...]) -> None:
    """A misspelt monitor is told before the first epoch."""
    from wholestep.schedules.plateau import plateaus

    for live in session.schedules.values():
        for plateau in plateaus(live.description).values():
            if plateau.monitor:
                read_monitor("ReduceOnPlateau", plateau.monitor, dict.fromkeys(names, 0.0))


def rate_used(session: Session, epoch: int) -> dict[str, float]:
    """`{"lr": …}` that the last step of an epoch was made with; nothing where there are several optimizers."""
    if len(session.optimizers) != 1:
        return {}
    (name,) = session.optimizers
    live = session.schedules.get(f"{name}.lr")
    if live is None:
        return {"lr": session.optimizer.lr}
    return {"lr": live(epoch if live.description.unit == "epoch" else max(session.updates_made - 1, 0))}


def told(session: Session) -> str:
    """`optimizer.lr follows Cosine by epoch`: what schedules count, for people; "" where there are none."""
    live = session.schedules.items()
    return ", ".join(f"{target} follows {type(s.description).__name__} by {s.description.unit}" for target, s in live)
