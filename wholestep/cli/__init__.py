"""The command `wholestep`: train, evaluate, predict; inspect plans and times; check the installation."""

from __future__ import annotations

import logging
import warnings
from typing import Annotated

import typer

import wholestep
from wholestep.cli import doctor, examine, launch, plans, running, stored
from wholestep.cli.shared import warning_text

app = typer.Typer(
    help="Wholestep: a whole training step as one native call.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.command()(running.init)
app.command()(running.train)
app.command(context_settings=launch.PASSED_ON)(launch.launch)
app.command()(running.evaluate)
app.command()(running.predict)
app.command()(running.export)
app.command()(examine.lint)
app.command()(examine.replay)
app.command()(examine.compare)
app.command()(examine.report)
app.command()(examine.board)
app.command()(examine.branch)
app.command()(examine.trace)
app.command()(examine.bench)
app.command()(doctor.doctor)
app.add_typer(plans.app, name="plan")
app.add_typer(stored.runs, name="runs")
app.add_typer(stored.checkpoint, name="checkpoint")
app.add_typer(stored.cache, name="cache")


def _show_version(asked: bool) -> None:
    if asked:
        print(f"wholestep {wholestep.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what Wholestep logs about its work.")] = False,
) -> None:
    """The options before a command."""
    logging.basicConfig(format="%(levelname)s: %(message)s")
    logging.getLogger("wholestep").setLevel(logging.INFO if verbose else logging.WARNING)


def main() -> None:
    """The entry point of the command."""
    warnings.formatwarning = warning_text
    app()


if __name__ == "__main__":
    main()
