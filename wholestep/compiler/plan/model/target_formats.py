"""Registry of what each family of targets adds to plans and plan files: its schedule records and their checks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import field

from wholestep.compiler.plan.memory.peak_memory import Footprint, host_footprint
from wholestep.compiler.plan.model.kernel import Plan, Schedule
from wholestep.records import dataclass


def _no_check(plan: Plan) -> None:
    """Accept every plan: the family has no checks of its own."""


@dataclass(frozen=True)
class Format:
    """The schedule records of a family of targets, and the functions that check and measure its plans."""

    schedule: type[Schedule] = Schedule
    records: tuple[type, ...] = ()  # the dataclasses that a schedule consists of
    unions: Mapping[str, Mapping[str, type]] = field(default_factory=dict)  # annotation of a field -> kind -> record
    check: Callable[[Plan], None] = _no_check  # raises PlanError unless a plan of our own planner is sound
    check_file: Callable[[Plan], None] = _no_check  # raises PlanError unless a plan read from a file is sound
    footprint: Callable[[Plan, int, Collection[str] | None], Footprint] = host_footprint  # bytes needed to run a plan


# Family -> its format, or the module that defines it as FORMAT, imported on first use.  Any other family uses the
# sequential schedule and adds nothing.
FORMATS: dict[str, str | Format] = {
    "cpu": "wholestep.compiler.backends.cpu.plan_format",
    "cuda": "wholestep.compiler.backends.gpu.plan_format",
    "gpu": "wholestep.compiler.backends.gpu.plan_format",
}
IN_ORDER = Format()


def format_of(family: str) -> Format:
    """The format of a family's schedules."""
    entry = FORMATS.get(family, IN_ORDER)
    if isinstance(entry, str):
        format: Format = importlib.import_module(entry).FORMAT
        return format
    return entry


def footprint(plan: Plan, threads: int, states: Collection[str] | None = None) -> Footprint:
    """The bytes that a session needs to run `plan` on `threads` threads, on the device that it is planned for.

    If `states` are named, only these are counted: the others may already be counted for another plan.
    """
    return format_of_plan(plan).footprint(plan, threads, states)


def format_of_plan(plan: Plan) -> Format:
    """The format of a plan: the format of its target's family, or the scheduler's format if the family has none."""
    family = plan.target.partition("/")[0]
    return format_of(family if family in FORMATS or not plan.kernels else plan.kernels[0].schedule.tag)
