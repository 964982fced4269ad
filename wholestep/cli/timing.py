"""`wholestep trace` and `bench`: the time of each kernel, and steps per second."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from wholestep.cli.shared import Device, Memory, Precision, experiment_of, parse_settings, report_errors
from wholestep.errors import UsageError

Script = Annotated[Path, typer.Argument(help="A Python file whose build() returns a ws.Experiment.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="e.g. batch_size=128 or a parameter of build.")]


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
) -> None:
    """Train for some seconds and print the speed."""
    if not seconds > 0:
        raise UsageError(f"--seconds is above 0; received {seconds:g}.")
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
    print(f"{steps} steps of {rows} rows on {trainer.session.threads} threads, epochs: {len(rates)}")
    print(f"  {best:>12,.1f} steps/s in the fastest epoch, {sorted(rates)[len(rates) // 2]:,.1f} in the median one")
    print(f"  {best * rows:>12,.1f} rows/s")
    print(f"  {1e-9 * best * report.flops:>12,.1f} GFLOP/s, {1e-9 * best * report.bytes_moved:,.1f} GB/s moved")
