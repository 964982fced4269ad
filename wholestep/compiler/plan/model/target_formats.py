"""What each family of targets adds to plans and their files: its schedules, and what it holds them against."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import field

from wholestep.compiler.plan.memory.peak_memory import Footprint, pages_of
from wholestep.compiler.plan.model.kernel import Plan, Schedule
from wholestep.records import dataclass


def _no_check(plan: Plan) -> None:
    """There is nothing more to check."""


@dataclass(frozen=True)
class Format:
    """The schedules of a family of targets."""

    schedule: type[Schedule] = Schedule
    records: tuple[type, ...] = ()  # the dataclasses that a schedule is made of
    unions: Mapping[str, Mapping[str, type]] = field(default_factory=dict)  # annotation of a field -> kind -> record
    check: Callable[[Plan], None] = _no_check  # raises PlanError unless what we have planned is sound
    check_file: Callable[[Plan], None] = _no_check  # the same of what someone may have written
    footprint: Callable[[Plan, int, Collection[str] | None], Footprint] = pages_of  # mapped or allocated to run a plan


# Family -> its format, or the module that has it as FORMAT, loaded when it is first asked for.  Any other family runs
# kernels in their order and has nothing to add.
FORMATS: dict[str, str | Format] = {
    "cpu": "wholestep.compiler.backends.cpu.plan_format",
    "cuda": "wholestep.compiler.backends.cuda.plan_format",
}
IN_ORDER = Format()


def format_of(family: str) -> Format:
    """The format of a family's schedules."""
    found = FORMATS.get(family, IN_ORDER)
    if isinstance(found, str):
        made: Format = importlib.import_module(found).FORMAT
        return made
    return found


def footprint(plan: Plan, threads: int, states: Collection[str] | None = None) -> Footprint:
    """The bytes that a session needs to run `plan` on `threads` threads, wherever it is planned for.

    Where `states` are named, these alone count: others may be a second plan's.
    """
    return format_of_plan(plan).footprint(plan, threads, states)


def format_of_plan(plan: Plan) -> Format:
    """The format of a plan: that of its target's family, or of whoever has scheduled it for a family without one."""
    family = plan.target.partition("/")[0]
    return format_of(family if family in FORMATS or not plan.kernels else plan.kernels[0].schedule.tag)
