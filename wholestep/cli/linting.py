"""The command `wholestep lint`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from wholestep.cli.shared import experiment_of, parse_settings, report_errors


@report_errors
def lint(
    script: Annotated[Path, typer.Argument(help="A Python file whose build() returns a ws.Experiment.")],
    silence: Annotated[
        list[str] | None, typer.Option("--silence", help="A code that is not reported, e.g. WS301.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON list.")] = False,
    set: Annotated[list[str] | None, typer.Option("--set", help="e.g. batch_size=128 or a parameter of build.")] = None,
) -> None:
    """Look for mistakes in a run that training would not report; exit with code 1 if there are any."""
    from wholestep.train.lint.lint import lint_experiment

    experiment = experiment_of(script, parse_settings(set or []))
    report = lint_experiment(experiment, {*experiment.silence, *(silence or ())})
    print(json.dumps([finding.as_dict() for finding in report], indent=1) if as_json else report)
    if report:
        raise typer.Exit(1)
