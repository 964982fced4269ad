"""The commands `wholestep replay` and `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wholestep.cli.shared import experiment_of, report_errors

if TYPE_CHECKING:
    from wholestep.train import Experiment

Run = Annotated[Path, typer.Argument(help="The folder of a run.")]
Script = Annotated[Path | None, typer.Option("--script", help="The script of runs that you did not start here.")]


@report_errors
def replay(
    run: Run,
    step: Annotated[int, typer.Option(help="The number of the update, over all epochs; the first one is 0.")],
    show: Annotated[
        list[str] | None, typer.Option("--show", help="A weight, an input, or a gradient: 0.weight.grad.")
    ] = None,
    script: Script = None,
) -> None:
    """Compute a step of a run again, to the bit, from the nearest checkpoint before it."""
    from wholestep.train.replay import Replay

    again = Replay(_experiment(run, script), run, step)
    rows = again.rows.tolist()
    print(f"step {step}: epoch {again.epoch}, step {again.step_of_epoch} of it; rows {_shorten(rows)}")
    for name in show or ():
        print(f"{name}\n{again.tensor(name)}")
    print(f"loss {again.run().loss:.9g}")


@report_errors
def compare(one: Run, other: Run, script: Script = None) -> None:
    """Name the first step and tensor in which two runs differ, and the settings that do; exit with code 1 then."""
    from wholestep.train.replay import compare_runs

    difference = compare_runs((_experiment(one, script), one), (_experiment(other, script), other))
    if difference is None:
        print("the checkpoints that both runs have are equal")
        return
    print(difference)
    raise typer.Exit(1)


def _experiment(run: Path, script: Path | None) -> Experiment:
    """The experiment of a run of `wholestep train`, with its settings."""
    from wholestep.cli.trust import script_of_run
    from wholestep.train import load_checkpoint

    stored = load_checkpoint(run)
    assert stored.path is not None
    own_script, settings = script_of_run(stored.config, run, stored.path.parent, script)
    return experiment_of(own_script, settings).having({"workers": None})


def _shorten(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:8]))
    return shown if len(rows) <= 8 else f"{shown}, ... ({len(rows)} in all)"
