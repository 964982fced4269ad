"""Commands that examine a run: find its mistakes, repeat its steps, branch it, and time its kernels."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wholestep.cli.shared import (
    AsJson,
    Device,
    Memory,
    Precision,
    experiment_in,
    experiment_of,
    parse_settings,
    report_errors,
)
from wholestep.errors import UsageError

if TYPE_CHECKING:
    from wholestep.train import Experiment

Run = Annotated[Path, typer.Argument(help="The folder of a run.")]
Script = Annotated[Path, typer.Argument(help="A Python file whose build() returns a ws.Experiment.")]
ScriptOfRun = Annotated[Path | None, typer.Option("--script", help="The script of runs that you did not start here.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="e.g. batch_size=128 or a parameter of build.")]


@report_errors
def lint(
    script: Script,
    silence: Annotated[
        list[str] | None, typer.Option("--silence", help="A code that is not reported, e.g. WS301.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON list.")] = False,
    set: Set = None,
) -> None:
    """Look for mistakes in a run that training would not report; exit with code 1 if there are any."""
    from wholestep.train.lint.lint import lint_experiment

    experiment = experiment_of(script, parse_settings(set or []))
    report = lint_experiment(experiment, {*experiment.silence, *(silence or ())})
    print(json.dumps([finding.as_dict() for finding in report], indent=1) if as_json else report)
    if report:
        raise typer.Exit(1)


@report_errors
def replay(
    run: Run,
    step: Annotated[int, typer.Option(help="The number of the update, over all epochs; the first one is 0.")],
    show: Annotated[
        list[str] | None, typer.Option("--show", help="A weight, an input, a layer's output, a gradient: 0.grad.")
    ] = None,
    script: ScriptOfRun = None,
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
def compare(one: Run, other: Run, script: ScriptOfRun = None) -> None:
    """Name the first step and tensor in which two runs differ, and the settings that differ; exit code 1 if they do."""
    from wholestep.train.replay import compare_runs

    difference = compare_runs((_experiment(one, script), one), (_experiment(other, script), other))
    if difference is None:
        print("the checkpoints that both runs have are equal")
        return
    print(difference)
    raise typer.Exit(1)


@report_errors
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or checkpoints in single files.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build and time each run's step again: layers, kernel times, predictions.")
    ] = False,
    script: ScriptOfRun = None,
) -> None:
    """Write one HTML file with the curves, settings, checkpoints and steps of runs, which opens without a server."""
    from wholestep.web.report import write_report

    if script is not None and not rebuild:
        raise UsageError("--script is what --rebuild builds again: give both, or neither.")
    experiments = {run: experiment_in(run, script=script)[0] for run in runs} if rebuild else {}
    page = write_report(runs, output, experiments)
    print(f"{page}: {page.stat().st_size:,} bytes; open it in a browser")


@report_errors
def board(
    folder: Annotated[Path, typer.Argument(help="The folder that runs are in.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 0,
) -> None:
    """Serve the page of `report` over a folder of runs to this machine's browsers, live while runs go on."""
    from wholestep.web.board import board_server

    with board_server(folder, port) as server:
        print(f"{server.url}  (of this machine only; Ctrl-C ends it)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


@report_errors
def branch(
    run: Annotated[str, typer.Argument(help="A run and a step of it: runs/a@1200.")],
    set: Annotated[list[str] | None, typer.Option("--set", help="A setting that differs: optimizer.lr=1e-4.")] = None,
    folder: Annotated[Path | None, typer.Option(help="The folder of the branch; runs/a-1200 by default.")] = None,
    script: ScriptOfRun = None,
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


@report_errors
def trace(
    script: Script,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the trace.")] = Path("trace.json"),
    steps: Annotated[int, typer.Option(help="Steps to look at, kernel by kernel.")] = 10,
    layers: Annotated[bool, typer.Option("--layers", help="Print the times by layer too.")] = False,
    set: Set = None,
    device: Device = None,
    precision: Precision = None,
    memory: Memory = None,
) -> None:
    """Time a build, an epoch and every kernel; the file opens in ui.perfetto.dev and chrome://tracing."""
    trainer, loader = experiment_of(script, parse_settings(set or [], device, precision, memory)).trainer()
    batch = trainer.batch_at(loader, 0, 0)
    trainer.train(loader, 1)
    profile = trainer.session.profile(batch, steps=steps)
    trainer.session.trace(output, profile)
    print(profile)
    if layers:
        print(profile.by_layer())
    print(f"{output}: {len(trainer.session.spans)} spans, {len(profile.timeline)} kernel runs")


@report_errors
def bench(
    script: Script,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 3.0,
    set: Set = None,
    device: Device = None,
    precision: Precision = None,
    memory: Memory = None,
    as_json: AsJson = False,
) -> None:
    """Train for some seconds and print the speed."""
    if not seconds > 0:
        raise UsageError(f"--seconds must be above 0; received {seconds:g}.")
    experiment = experiment_of(script, parse_settings(set or [], device, precision, memory))
    trainer, loader = experiment.trainer()
    trainer.train(loader, 1)  # warm up: page faults, CPU frequency
    steps, rates, begun = 0, [], time.perf_counter()
    while time.perf_counter() - begun < seconds:
        before = time.perf_counter()
        stats = trainer.train_epoch(loader, 0)
        assert stats is not None
        steps += stats.steps
        rates.append(stats.steps / (time.perf_counter() - before))
    report = trainer.session.report()
    best = max(rates)
    rows = trainer.feed.rows_of_update(loader)
    if as_json:
        speeds = {"steps_per_second": best, "median_steps_per_second": sorted(rates)[len(rates) // 2]}
        work = {"flops": report.flops, "bytes_moved": report.bytes_moved, "peak_bytes": report.peak_bytes}
        print(json.dumps({"steps": steps, "rows": rows, "threads": trainer.session.threads, **speeds, **work}))
        return
    print(f"{steps} steps of {rows} rows on {trainer.session.threads} threads, epochs: {len(rates)}")
    print(f"  {best:>12,.1f} steps/s in the fastest epoch, {sorted(rates)[len(rates) // 2]:,.1f} in the median one")
    print(f"  {best * rows:>12,.1f} rows/s")
    print(f"  {1e-9 * best * report.flops:>12,.1f} GFLOP/s, {1e-9 * best * report.bytes_moved:,.1f} GB/s moved")
