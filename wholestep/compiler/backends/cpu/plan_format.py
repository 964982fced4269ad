"""The CPU's part of plan files: its schedule records, and the checks of a plan."""

from __future__ import annotations

from wholestep.compiler.backends.cpu.kernel_schedule import Blocks, CpuSchedule, PaddedImage, Queries, Runs, Taps, Tiles
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.plan.model.target_formats import Format


def _check(plan: Plan) -> None:
    from wholestep.compiler.backends.cpu.check.soundness import check_cpu

    check_cpu(plan)


def _check_file(plan: Plan) -> None:
    from wholestep.compiler.backends.cpu.check.soundness import check_cpu_file

    check_cpu_file(plan)


FORMAT = Format(
    CpuSchedule,
    (Blocks, Queries, PaddedImage, Taps, Runs, Tiles, CpuSchedule),
    {"Inner | None": {"blocks": Blocks, "queries": Queries, "tiles": Tiles}},
    _check,
    _check_file,
)
