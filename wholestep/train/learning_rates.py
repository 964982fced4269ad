"""Schedules in a loop over epochs: their unit, their length and the run's, plateaus, and the logged lr."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wholestep.callbacks.monitor import not_measured, read_monitor
from wholestep.callbacks.run import Value
from wholestep.errors import TrainingWarning, UsageError
from wholestep.optim import Optimizer
from wholestep.optim.core.names import get
from wholestep.schedules.base import CALL, Schedule
from wholestep.schedules.monitor_modes import canonical, mode_of
from wholestep.steps.options import RATE

if TYPE_CHECKING:
    from wholestep.session import Session


def resolve_schedule(
    schedule: Any, epochs: int, steps_per_epoch: int | None, modes: Mapping[str, str] | None = None
) -> Any:
    """A schedule resolved for a run: with the run's length, and counted in epochs unless it says otherwise.

    `modes` maps metrics to "min" or "max", for plateaus that monitor one without a mode of their own.
    """
    # imported here because they import all schedules
    from wholestep.schedules import Planned, ReduceOnPlateau, TorchSchedule

    if isinstance(schedule, Mapping):
        return {name: resolve_schedule(s, epochs, steps_per_epoch, modes) for name, s in schedule.items()}
    if isinstance(schedule, Planned):
        if steps_per_epoch is None:
            raise UsageError(f"{schedule.name}: the length of an iterable is not known; give steps=.") from None
        return schedule.over(epochs * steps_per_epoch)
    if isinstance(schedule, TorchSchedule) and schedule.of_groups:
        return resolve_schedule({RATE: schedule.schedule, **schedule.of_groups}, epochs, steps_per_epoch, modes)
    plain = schedule.schedule if isinstance(schedule, TorchSchedule) else schedule
    if not isinstance(plain, Schedule):
        return plain
    counted = plain.counted_in("epoch") if plain.unit == CALL else plain
    if isinstance(counted, ReduceOnPlateau) and not counted.mode:
        counted = replace(counted, mode=(modes or {}).get(counted.monitor.removeprefix("val_"), ""))
    run = epochs if counted.unit == "epoch" else epochs * steps_per_epoch if steps_per_epoch else None
    return counted.tabulated(run)


def optimizer_of(schedule: Any, optimizer: Optimizer | str | None) -> Optimizer | None:
    """The optimizer of a run: the `optimizer=` argument, else the one that a torch-style schedule was built with."""
    from wholestep.schedules import TorchSchedule

    optimizer = None if optimizer is None else get(optimizer)

    schedule_optimizer = schedule.optimizer if isinstance(schedule, TorchSchedule) else None
    if not isinstance(schedule_optimizer, Optimizer):
        return optimizer
    if optimizer is not None and type(optimizer) is not type(schedule_optimizer):
        raise UsageError(
            f"the schedule {type(schedule).__name__} was made for {type(schedule_optimizer).__name__}, and optimizer= "
            f"is {type(optimizer).__name__}. Give both the same optimizer."
        )
    return optimizer or schedule_optimizer


def count_epochs(session: Session) -> None:
    """Before training by epochs: let torch-style schedules of a session count epochs."""
    schedules = {target: live.description for target, live in session.schedules.items()}
    if any(s.unit == CALL for s in schedules.values()):
        session.set_schedule(resolve_schedule(schedules, 0, None))


def check_horizons(session: Session, epochs: int, steps_per_epoch: int | None, first_epoch: int) -> None:
    """Warn about each schedule that has ended before a resumed run begins, or is much shorter or longer than it."""
    from wholestep.schedules.checks import ended_warning, length_warning

    lengths = {"epoch": epochs, "step": epochs * (steps_per_epoch or 0)}
    done = {"epoch": first_epoch, "step": session.updates_made if first_epoch else 0}
    for target, live in session.schedules.items():
        schedule = live.description.with_numbers(live.numbers())
        unit, run = schedule.unit, lengths[schedule.unit]
        if first_epoch < epochs and (warning := ended_warning(schedule, done[unit], unit)):
            warnings.warn(f"the schedule of {target}, {warning}", TrainingWarning, stacklevel=4)
        elif run and (warning := length_warning(schedule, run, unit)):
            warnings.warn(f"the schedule of {target}, {warning}", stacklevel=4)


def observe(session: Session, logs: Mapping[str, Value], measured: Sequence[str] = ()) -> None:
    """Pass the epoch's metrics to every plateau schedule once; `measured` lists the metrics that any epoch may log."""
    from wholestep.schedules.plateau import plateaus

    for live in session.schedules.values():
        plateau_paths = plateaus(live.description)
        usual = "val_loss" if "val_loss" in (*measured, *logs) else "loss"
        watched = {path: p.monitor or usual for path, p in plateau_paths.items()}
        new = {path: name for path, name in watched.items() if not not_measured(name, logs, measured)}
        seen = {path: read_monitor("ReduceOnPlateau", name, logs) for path, name in new.items()}
        if seen:
            live.observe(seen)


def need_monitors(session: Session, names: tuple[str, ...]) -> None:
    """An error for a monitor that the run does not measure, before the first epoch."""
    from wholestep.schedules.plateau import plateaus

    for live in session.schedules.values():
        for plateau in plateaus(live.description).values():
            if plateau.monitor:
                read_monitor("ReduceOnPlateau", plateau.monitor, dict.fromkeys(names, 0.0))
                mode_of("ReduceOnPlateau", plateau.monitor, {canonical(plateau.monitor): plateau.mode})


def rate_used(session: Session, epoch: int) -> dict[str, float]:
    """The learning rate of the last step of an epoch, `{"lr": …}`; `lr/<name>` for each of several optimizers."""
    named = session.optimizers
    return {("lr" if len(named) == 1 else f"lr/{name}"): _rate(session, name, epoch) for name in named}


def _rate(session: Session, name: str, epoch: int) -> float:
    live = session.schedules.get(f"{name}.lr")
    if live is None:
        return float(session.optimizers[name].lr)
    return live(epoch if live.description.unit == "epoch" else max(session.updates_made - 1, 0))


def describe_schedules(session: Session) -> str:
    """`optimizer.lr follows Cosine by epoch`: a line for logs; "" without schedules."""
    live = session.schedules.items()
    return ", ".join(f"{target} follows {type(s.description).__name__} by {s.description.unit}" for target, s in live)
