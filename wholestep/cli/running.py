"""The commands `wholestep train`, `evaluate`, `predict` and `export`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wholestep.cli.config_file import name_run_settings_in_errors, read_config
from wholestep.cli.launch import Hosts, Restarts, is_first, is_started_again, say, start
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
from wholestep.distributed.workers import Workers
from wholestep.errors import CheckpointError, OptionError, TrainingInterrupted, UsageError
from wholestep.nn.state.weights import temporary_for
from wholestep.options import read_launch

if TYPE_CHECKING:
    from wholestep.train import Experiment

Run = Annotated[Path, typer.Argument(help="The folder of a run, or one checkpoint of it.")]
Best = Annotated[str | None, typer.Option(help="Take the checkpoint that is best in this number, e.g. val_loss.")]
Script = Annotated[
    Path | None, typer.Option("--script", help="The script of a run that you did not start here: it is executed.")
]
Mode = Annotated[str | None, typer.Option(help="Of --best: min or max; max for accuracies and their like, else min.")]


@report_errors
def train(
    script: Annotated[Path | None, typer.Argument(help="A Python file whose build() returns a ws.Experiment.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data, instead of the script's.")] = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", help="e.g. optimizer.lr=3e-4 or a parameter of build.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings, under the names of --set, which wins over it.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Where to keep the run (runs/<script> unless given).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    trusted: Script = None,
    device: Device = None,
    precision: Precision = None,
    memory: Memory = None,
    exact: Annotated[bool, typer.Option("--exact", help="Refuse to resume where bits could differ.")] = False,
    progress: Annotated[bool, typer.Option(help="Show how training goes.")] = True,
    folds: Annotated[
        int | None, typer.Option(help="Train so many times, each time without one part of the data.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Train on so many processes together.")] = None,
    model: Annotated[int, typer.Option(min=1, help="Of --workers: so many have the same rows, and divide layers.")] = 1,
    engine: Annotated[str, typer.Option(help="Of --workers: mpi, or ray, which places them on its cluster.")] = "mpi",
    hosts: Hosts = None,
    restarts: Restarts = 0,
) -> None:
    """Train what a script describes, with checkpoints; or resume a run."""
    if workers is not None and read_launch() is None:
        place = resume or folder or (Path("runs") / script.stem if script is not None else Path("runs"))
        _start_workers(Workers(workers, engine, model=model, checkpoint=place, restarts=restarts), hosts)
        return
    if model > 1 and read_launch() is None:
        raise UsageError(f"--model {model} divides layers among workers: give --workers {2 * model}, too.")
    overrides = {"workers": Workers(model=model)} if model > 1 else {}
    settings = parse_settings(set or [], device if resume is None else None, precision, memory)
    if resume is not None:
        if script is not None or settings or config is not None:
            raise UsageError(
                "a resumed run uses its own script and settings; leave them out, or start another run with "
                "--folder. Only --epochs and --device may change."
            )
        _resume(trusted, resume, epochs, device, exact, progress, overrides)
        return
    if script is None:
        raise UsageError("nothing to train. Name a script, examples/mnist.py, or a run, --resume runs/mnist.")
    if epochs is not None:
        settings["epochs"] = epochs
    from_file = {} if config is None else {n: v for n, v in read_config(config).items() if n not in settings}
    settings = {**from_file, **settings}  # this order: a setting may be a field of an earlier one
    target, experiment = (
        folder or Path("runs") / script.stem,
        experiment_of(script, settings, config, from_file).having(overrides),
    )
    with name_run_settings_in_errors(config, from_file):
        _start(RunRequest(experiment, script, settings, target, exact, progress), folds)


def _start_workers(asked: Workers, hosts: str | None) -> None:
    """Run this command again as several processes."""
    assert asked.count is not None, "the option says it"
    if asked.engine == "ray":
        from wholestep.distributed.launch.ray import run_on_ray

        run_on_ray(asked)
    else:
        start((sys.executable, "-m", "wholestep.cli", *sys.argv[1:]), asked.count, hosts, asked.restarts)


@report_errors
def init(
    data: Annotated[Path, typer.Argument(help="A .csv, .txt or .npz file, or a folder of images.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The script; <data>.py unless given.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Of a table: the column to predict; the last one by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a script that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at data and write a script that trains on it: tables, images in folders or arrays, texts."""
    from wholestep.cli.starters import starter

    script = output or Path(f"{data.stem or 'experiment'}.py")
    if script.exists() and not force:
        raise UsageError(f"{script} exists; replace it with --force, or write another: -o NAME.py")
    text = starter(data, target)
    with temporary_for(script) as temporary:
        temporary.write_text(text, encoding="utf-8")
    title = text.splitlines()[0].strip('"')
    print(json.dumps({"script": str(script), "title": title}) if as_json else f"{title}\nwholestep train {script}")


@dataclass(frozen=True)
class RunRequest:
    """A run as the command line describes it; `resume` is the run or checkpoint to continue from."""

    experiment: Experiment
    script: Path
    settings: dict[str, Any]
    folder: Path
    exact: bool
    progress: bool
    resume: Path | bool | None = None


def _start(run: RunRequest, folds: int | None) -> None:
    """Start a new run: train in full, by cross-validation, or for a few batches as a smoke test."""
    experiment, progress = run.experiment, run.progress
    if experiment.fast_dev_run is not False:
        say(f"{experiment.fit(progress=progress)}\neverything runs; nothing was kept")
        return
    if not is_started_again():
        _refuse_used(run.folder)
    if folds is not None:
        from wholestep.train.tuning.cross_validation import train_folds

        changes = {"checkpoint": run.folder, "progress": progress, "validation": None}
        say(train_folds(experiment.having(changes), folds))
        return
    _fit(run)


def _resume(
    script: Path | None,
    run: Path,
    epochs: int | None,
    device: str | None,
    exact: bool,
    progress: bool,
    overrides: dict[str, Any],
) -> None:
    from wholestep.cli.trust import script_of_run
    from wholestep.train import load_checkpoint
    from wholestep.train.checkpoint.folder import is_checkpoint, replicas_in

    replicas = [load_checkpoint(folder) for folder in replicas_in(run)]
    stored = min(replicas, key=lambda s: s.position.epoch) if replicas else load_checkpoint(run)
    assert stored.path is not None
    own_script, own_settings = script_of_run(stored.config, run, run if replicas else stored.path.parent, script)
    if epochs is not None:
        own_settings["epochs"] = epochs
    own_settings |= parse_settings([], device)
    asked = epochs if epochs is not None else stored.config.get("epochs", 0)
    if stored.position.epoch >= asked:
        say(f"all {asked} epochs are done; to go on give more: --resume {run} --epochs {2 * asked}")
    target = run.parent if is_checkpoint(run) else run
    experiment = experiment_of(own_script, own_settings).having(overrides)
    resume = True if replicas else run  # a replica without a checkpoint starts from the beginning
    _fit(RunRequest(experiment, own_script, own_settings, target, exact, progress, resume=resume))


def _refuse_used(folder: Path) -> None:
    from wholestep.train.checkpoint.folder import checkpoints_in, replicas_in

    if checkpoints_in(folder) or replicas_in(folder):
        raise UsageError(f"{folder} holds a run. Resume it: --resume {folder}; or write elsewhere: --folder NAME.")


def _fit(run: RunRequest) -> None:
    from wholestep.cli.trust import note_start
    from wholestep.train.checkpoint.folder import checkpoints_in, replicas_in
    from wholestep.train.replicas.run import folders_of

    folder, script = run.folder, run.script.resolve()
    config = {"script": str(script), "settings": run.settings}
    if is_first():
        for each in (folder, *folders_of(run.experiment, folder)):
            note_start(each, script, run.settings)
    try:
        history = run.experiment.fit(
            checkpoint=folder, resume=run.resume, exact=run.exact, progress=run.progress, config=config
        )
    except TrainingInterrupted:
        stored = checkpoints_in(folder) or replicas_in(folder)
        say(f"saved; go on with: wholestep train --resume {folder}" if stored else "nothing could be saved")
        raise
    except CheckpointError as error:
        if error.history is not None:
            say(error.history)
        raise
    say(history)
    if stored := checkpoints_in(folder):
        say(f"checkpoints: {folder}, the newest {stored[-1].path.name}")
    elif replicas := replicas_in(folder):
        say(f"checkpoints: {folder}, one folder for each of {len(replicas)} replicas, such as {replicas[0].name}")


@report_errors
def evaluate(
    run: Run,
    best: Best = None,
    mode: Mode = None,
    script: Script = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's weights on its test data, or on its validation data if it has no test data."""
    import numpy as np

    from wholestep.nn.module.module import Module
    from wholestep.train import load_checkpoint
    from wholestep.train.data.frames import encode_for_evaluation
    from wholestep.train.data.loaders import table_of

    experiment, path = experiment_in(run, which=best, mode=mode, script=script, device=device)
    trainer, _ = experiment.trainer()
    if not isinstance(experiment.model, Module):
        load_checkpoint(path).restore(trainer.session)
    held, name = trainer.validation, "validation"
    if experiment.test is not None:
        test = (
            encode_for_evaluation(experiment.model, experiment.test)
            if isinstance(experiment.model, Module)
            else experiment.test
        )
        held, name = trainer.feed.with_row_inputs(table_of(test)), "test"
    if held is None:
        raise UsageError("the experiment has neither test nor validation data; give ws.Experiment(test=(x, y)).")
    results = trainer.session.evaluate_all(trainer.feed.named_table(held))
    if as_json:
        numbers = {n: v if isinstance(v, float) else np.asarray(v).tolist() for n, v in results.items()}
        print(json.dumps({"checkpoint": str(path), "data": name, "rows": len(held), "results": numbers}))
        return
    print(f"{path} on {len(held)} rows of {name} data")
    for each, value in results.items():
        print(f"  {each:<16}{value:.6g}" if isinstance(value, float) else f"  {each}\n{value}")


@report_errors
def predict(
    run: Run,
    inputs: Annotated[Path, typer.Argument(help="Rows to predict: a .npy file, or a .csv file of a table.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the outputs, as .npy.")] = Path(
        "out.npy"
    ),
    best: Best = None,
    mode: Mode = None,
    script: Script = None,
    device: Device = None,
    header: Annotated[
        bool | None,
        typer.Option("--header/--no-header", help="Does the first line of the .csv file name the columns?"),
    ] = None,
) -> None:
    """Write a model's outputs for the rows of a file."""
    import numpy as np

    from wholestep.data.files import load_npy, read_frame
    from wholestep.nn.module.module import Module

    experiment, path = experiment_in(run, which=best, mode=mode, script=script, device=device)
    if not isinstance(experiment.model, Module):
        raise UsageError("this run is of a @ws.step function; predict with a module of it: module.predict(x).")
    rows = read_frame(inputs, header=header) if inputs.suffix.lower() == ".csv" else load_npy(inputs)
    outputs = np.asarray(experiment.model.predict(rows, device=experiment.device))
    np.save(output, outputs, allow_pickle=False)
    print(f"{path}: {output} holds {' x '.join(map(str, outputs.shape))} numbers")


@report_errors
def export(
    script: Annotated[Path, typer.Argument(help="A Python file whose build() returns a ws.Experiment.")],
    folder: Annotated[Path, typer.Argument(help="The folder to write; or a file, run.html: a page that trains.")],
    to: Annotated[str, typer.Option(help="c: C source that needs one block of memory; wasm: a module.")] = "c",
    target: Annotated[str | None, typer.Option(help="The instruction set, such as cpu/portable.")] = None,
    image: Annotated[str | None, typer.Option(help="Of a page: inputs that are pixels, e.g. 28x28 or 3x32x32.")] = None,
    rows: Annotated[int | None, typer.Option(help="Of a page: the most rows to embed as an example.")] = None,
    set: Annotated[list[str] | None, typer.Option("--set", help="e.g. batch_size=128 or a parameter of build.")] = None,
) -> None:
    """Write the training step of a script as a folder that trains, evaluates and predicts without Python; or a page."""
    from wholestep.session.export.write import write_folder

    is_page = folder.suffix == ".html"
    _refuse_options(is_page, {"target": target} if is_page else {"image": image, "rows": rows})
    experiment = experiment_of(script, parse_settings(set or []))
    if is_page:
        from wholestep.web.export import export_page

        page = export_page(experiment, folder, image=image, rows=rows, script=script.name)
        print(f"{page}: {page.stat().st_size:,} bytes; open it in a browser")
        return
    trainer, _ = experiment.trainer()
    settings = {name: getattr(experiment, name) for name in ("epochs", "batch_size", "shuffle")}
    write_folder(trainer.session._programs, folder, to, target, settings)
    files = [path for path in folder.rglob("*") if path.is_file()]
    print(f"{folder}: {len(files)} files, {sum(path.stat().st_size for path in files):,} bytes")


def _refuse_options(is_page: bool, others: Mapping[str, object]) -> None:
    """Raise OptionError for an option that the other form of export has."""
    for name, value in others.items():
        if value is not None:
            why = "a page computes the bits of cpu/portable" if is_page else "only a page, run.html, has example rows"
            raise OptionError(f"--{name} {value}: {why}. Leave the option out.")
