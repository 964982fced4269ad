"""The commands `wholestep replay`, `compare` and `branch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wholestep.cli.shared import experiment_of, parse_settings, report_errors
from wholestep.errors import UsageError

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


@report_errors
def branch(
    run: Annotated[str, typer.Argument(help="A run and a step of it: runs/a@1200.")],
    set: Annotated[list[str] | None, typer.Option("--set", help="A setting that differs: optimizer.lr=1e-4.")] = None,
    folder: Annotated[Path | None, typer.Option(help="The folder of the branch; runs/a-1200 by default.")] = None,
    script: Script = None,
) -> None:
    """Start a run from a step of another one, with other settings: `branch runs/a@1200 --set optimizer.lr=1e-4`."""
    from wholestep.cli.trust import note_start
    from wholestep.train.branch import branch as branch_of

    source, at, number = run.rpartition("@")
    if not at or not number.isdecimal():
        raise UsageError(f"{run!r} names no step: expected a run and a step, runs/a@1200.")
    own_script, settings = _script_of(Path(source), script)
    changed = {**settings, **parse_settings(set or [])}
    target = folder or Path(f"{source}-{number}")
    one, other = (experiment_of(own_script, each).having({"workers": None}) for each in (settings, changed))
    config = {"script": str(own_script.resolve()), "settings": changed}
    note_start(target, own_script.resolve(), changed)
    print(branch_of(one, source, int(number), other, target, config))
    print(f"train it with: wholestep train --resume {target}")


def _experiment(run: Path, script: Path | None) -> Experiment:
    """The experiment of a run of `wholestep train`, with its settings."""
    return experiment_of(*_script_of(run, script)).having({"workers": None})


def _script_of(run: Path, script: Path | None) -> tuple[Path, dict[str, Any]]:
    """The script of a run, and the settings that it was started with."""
    from wholestep.cli.trust import script_of_run
    from wholestep.train import load_checkpoint

    stored = load_checkpoint(run)
    assert stored.path is not None
    return script_of_run(stored.config, run, stored.path.parent, script)


def _shorten(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:8]))
    return shown if len(rows) <= 8 else f"{shown}, ... ({len(rows)} in all)"
