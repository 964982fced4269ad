"""`wholestep launch`: a script on several processes, or machines, that train together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from wholestep.cli.shared import report_errors
from wholestep.errors import UsageError
from wholestep.options import read_launch

Hosts = Annotated[
    str | None, typer.Option(help="Machines, by commas, that ssh reaches and that have the same folders.")
]
Restarts = Annotated[
    int, typer.Option(min=0, help="Start again, from the last checkpoint, where a process is lost: so often.")
]
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@report_errors
def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python file that calls ws.fit; what follows it are its arguments.")],
    count: Annotated[int, typer.Option("-n", min=1, help="How many processes.")],
    hosts: Hosts = None,
    restarts: Restarts = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Of each process; else cores are divided.")] = None,
) -> None:
    """Run a script on several processes that make each step together."""
    if not script.is_file():
        raise UsageError(f"there is no script {script}; name one that calls ws.fit(..., workers=ws.Workers()).")
    start((sys.executable, str(script), *context.args), count, hosts, restarts, threads)


def start(command: tuple[str, ...], count: int, hosts: str | None, restarts: int, threads: int | None = None) -> None:
    """Run a command as ranks until it ends, and exit with its exit code."""
    from wholestep.distributed.launch.launcher import Job, parse_hosts, run_job

    code = run_job(Job(count, command, parse_hosts(hosts), restarts, threads), _say)
    if code:
        raise typer.Exit(code)


def is_first() -> bool:
    """Is this the only process, or rank 0?"""
    launch_info = read_launch()
    return launch_info is None or launch_info.rank == 0


def is_started_again() -> bool:
    """Is this a restart of the job, which resumes from its checkpoints?"""
    launch_info = read_launch()
    return launch_info is not None and launch_info.attempt > 0


def say(what: object) -> None:
    """Print a text on rank 0."""
    if is_first():
        print(what, flush=True)


def _say(text: str) -> None:
    print(f"wholestep: {text}", file=sys.stderr, flush=True)
