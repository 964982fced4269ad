"""What the commands share: scripts and their settings, runs, and errors without tracebacks."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import typer

from wholestep.errors import CheckpointError, UsageError, WholestepError

if TYPE_CHECKING:
    from wholestep.train import Experiment

P = ParamSpec("P")
R = TypeVar("R")

BUILD = "build"


def told(command: Callable[P, R]) -> Callable[P, R]:
    """An error of ours, or of a file, is one line and exit code 1; anything else is a bug and keeps its traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (WholestepError, FileNotFoundError, PermissionError) as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from None

    return wrapped


def parse_settings(given: Sequence[str]) -> dict[str, Any]:
    """`["optimizer.lr=3e-4", "name=x"]` by name; values are JSON, and text where they are not."""
    settings = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {item!r}: expected name=value, for example optimizer.lr=3e-4.")
        try:
            settings[name.strip()] = json.loads(text)
        except ValueError:
            settings[name.strip()] = text
    return settings


def experiment_of(script: Path, settings: Mapping[str, Any]) -> Experiment:
    """What a script's `build` returns; settings that are its parameters are passed to it, the others are fields."""
    build = getattr(load_script(script), BUILD, None)
    if not callable(build):
        raise UsageError(f"{script} has no function {BUILD}(); it returns what to train: a ws.Experiment.")
    own = inspect.signature(build).parameters
    made = build(**{name: value for name, value in settings.items() if name in own})
    from wholestep.train import Experiment

    if not isinstance(made, Experiment):
        raise UsageError(f"{BUILD}() of {script} returned {type(made).__name__}; expected a ws.Experiment.")
    return made.having({name: value for name, value in settings.items() if name not in own})


def load_script(script: Path) -> object:
    """A file as a module; what lies beside it can be imported by it."""
    if not script.is_file():
        raise UsageError(f"there is no script {script}; name a Python file with a function {BUILD}().")
    spec = importlib.util.spec_from_file_location(f"wholestep_script_{script.stem}", script)
    if spec is None or spec.loader is None:
        raise UsageError(f"{script} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    folder = str(script.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def experiment_in(run: Path, *, which: str | None = None, mode: str = "min") -> tuple[Experiment, Path]:
    """The experiment of a run that `wholestep train` made, with the weights of one of its checkpoints, and which."""
    from wholestep.train import load_checkpoint
    from wholestep.train.checkpoint import WEIGHTS

    stored = load_checkpoint(run, best=which, mode=mode)
    assert stored.path is not None
    experiment = experiment_of(*started_as(stored.config, run))
    experiment.model.load(stored.path / WEIGHTS)
    return experiment, stored.path


def started_as(config: Mapping[str, Any], run: Path) -> tuple[Path, dict[str, Any]]:
    """The script and the settings that a run was started with."""
    if "script" not in config:
        raise CheckpointError(f"{run} was not made by `wholestep train`: it does not know its script.")
    return Path(config["script"]), dict(config["settings"])
