"""`wholestep plan show | diff | explain`."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wholestep.cli.shared import Device, Precision, experiment_of, parse_settings, report_errors
from wholestep.errors import PlanError, UsageError

if TYPE_CHECKING:
    from wholestep.compiler.plan.model.kernel import Plan

app = typer.Typer(help="Inspect plans.", no_args_is_help=True)

Where = Annotated[Path, typer.Argument(help="A plan file, or the folder of a run.")]


def plans_at(path: Path) -> list[tuple[str, Plan]]:
    """The plan in a file, or the plans of a run, by name."""
    from wholestep.compiler.plan.io import serialize
    from wholestep.train.checkpoint.format import PLANS

    if not path.exists():
        raise UsageError(f"there is nothing at {path}; expected a plan file, or the folder of a run.")
    files = sorted((path / PLANS).glob("*.plan")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"there are no plans in {path}; expected a file, or a run's folder with {PLANS}/ in it.")
    try:
        return [(f.name, serialize.load(f.read_bytes())) for f in files]
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def describe_plans(plans: list[tuple[str, Plan]]) -> str:
    """The reports of several plans, concatenated."""
    from wholestep.compiler.plan.io.report import plan_report
    from wholestep.compiler.runtime.threads import default_threads

    return "\n\n".join(str(plan_report(plan, default_threads(), name)) for name, plan in plans)


@app.command()
@report_errors
def show(path: Where) -> None:
    """Print the kernels and the memory of a plan."""
    print(describe_plans(plans_at(path)))


@app.command()
@report_errors
def diff(first: Where, second: Where) -> None:
    """Print how two plans differ; exit with code 1 if they do."""
    sides = [
        (str(p), describe_plans([("plan", plan) for _, plan in plans_at(p)]).splitlines()) for p in (first, second)
    ]
    (left, old), (right, new) = sides
    lines = list(difflib.unified_diff(old, new, left, right, lineterm="", n=1))
    print("\n".join(lines) if lines else "the plans have the same kernels and memory")
    if lines:
        raise typer.Exit(1)


@app.command()
@report_errors
def explain(
    script: Annotated[Path, typer.Argument(help="A Python file whose build() returns a ws.Experiment.")],
    name: Annotated[str, typer.Argument(help="An output, a state that the step changes, or a gradient: w1.grad.")],
    set: Annotated[list[str] | None, typer.Option("--set", help="e.g. batch_size=128 or a parameter of build.")] = None,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Explain how a tensor of a step is computed: gradient rules and rewrites."""
    trainer, _ = experiment_of(script, parse_settings(set or [], device, precision)).trainer()
    print(trainer.session.explain(name))
