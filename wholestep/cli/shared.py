"""Helpers of the commands: scripts and their settings, runs, and errors without tracebacks."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import json
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from wholestep.cli.config_file import name_script_settings_in_errors, name_setting_in_errors
from wholestep.errors import UsageError, WholestepError

if TYPE_CHECKING:
    from wholestep.train import Experiment

P = ParamSpec("P")
R = TypeVar("R")

BUILD = "build"
Device = Annotated[
    str | None, typer.Option(help="What runs it: cpu, cuda, cuda:1, cpu/portable, or null:cuda/sm_90 to plan only.")
]

Precision = Annotated[
    str | None,
    typer.Option(help="What products are computed in: float32, bfloat16 or float16; on a GPU tf32 too."),
]

Memory = Annotated[
    str | None, typer.Option(help="The most that a step may take: 5.5GB, or 0.7 of what it takes without a limit.")
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def report_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Print a `WholestepError` or `OSError` as one line and exit with code 1; other exceptions keep their traceback."""

    @functools.wraps(command)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except WholestepError as error:
            text = _without_own_lines(str(error))
        except OSError as error:
            text = f"{error.filename or 'a file'}: {error.strerror or error}"
        print(f"error: {text}", file=sys.stderr)
        raise typer.Exit(1)

    return call


def warning_text(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as one line, for `warnings.formatwarning`; the place is added if it is in a script."""
    is_script = not filename.startswith(_libraries())
    return f"warning: {message}{f' ({filename}:{lineno})' if is_script else ''}\n"


def _libraries() -> tuple[str, ...]:
    return sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")


def _without_own_lines(text: str) -> str:
    """Drop the source line from an error if it is a line of the command line tool and not of the user's script."""
    return "\n".join(
        line for line in text.splitlines() if not line.strip().startswith(tuple(f"at {p}" for p in _libraries()))
    )


def parse_settings(
    items: Sequence[str], device: str | None = None, precision: str | None = None, memory: str | None = None
) -> dict[str, Any]:
    """`["optimizer.lr=3e-4"]` and the options as settings by name; values are JSON, else text."""
    options = {"device": device, "precision": precision, "memory": memory}
    settings: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {item!r}: expected name=value, for example optimizer.lr=3e-4.")
        try:
            settings[name.strip()] = json.loads(text)
        except ValueError:
            settings[name.strip()] = text
    return settings


def experiment_of(
    script: Path,
    settings: Mapping[str, Any],
    config: Path | None = None,
    from_file: Mapping[str, Any] = MappingProxyType({}),
) -> Experiment:
    """The experiment that a script's `build` returns; settings that are its parameters are passed, others set fields.

    `from_file` are the settings from the file `config`: errors about them name it.
    """
    build = getattr(load_script(script), BUILD, None)
    if not callable(build):
        raise UsageError(f"{script} has no function {BUILD}(); it returns what to train: a ws.Experiment.")
    parameters = inspect.signature(build).parameters
    with (
        name_script_settings_in_errors(
            config, {name: value for name, value in from_file.items() if name in parameters}
        ),
        _blame_script(script),
    ):
        experiment = build(**{name: value for name, value in settings.items() if name in parameters})
    from wholestep.train import Experiment

    if not isinstance(experiment, Experiment):
        raise UsageError(f"{BUILD}() of {script} returned {type(experiment).__name__}; expected a ws.Experiment.")
    for name, value in settings.items():
        if name not in parameters:
            with name_setting_in_errors(config if name in from_file else None, name):
                experiment = experiment.having({name: value})
    return experiment


def load_script(script: Path) -> object:
    """Import a file as a module; its folder is on the import path."""
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
    with _blame_script(script):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _blame_script(script: Path) -> Iterator[None]:
    """Print an exception of the script with the traceback of the script's own lines."""
    try:
        yield
    except WholestepError:
        raise
    except Exception as error:
        trace = traceback.TracebackException.from_exception(error)
        frames = list(trace.stack)
        first = next((i for i, f in enumerate(frames) if Path(f.filename).resolve() == script.resolve()), len(frames))
        lines = [*traceback.format_list(frames[first:]), *trace.format_exception_only()]
        raise UsageError(f"{script} failed:\n{''.join(lines).rstrip()}") from None


def experiment_in(
    run: Path,
    *,
    which: str | None = None,
    mode: str | None = None,
    script: Path | None = None,
    device: str | None = None,
) -> tuple[Experiment, Path]:
    """The experiment of a run of `wholestep train` with the weights of a checkpoint, and the path of the checkpoint.

    `script` is what the command line names; without it the run's own, where this user has started the run.
    """
    from wholestep.cli.trust import script_of_run
    from wholestep.nn.module.module import Module
    from wholestep.train import load_checkpoint
    from wholestep.train.checkpoint.format import WEIGHTS

    stored = load_checkpoint(run, best=which, mode=mode)
    assert stored.path is not None
    own_script, settings = script_of_run(stored.config, run, stored.path.parent, script)
    experiment = experiment_of(own_script, {**settings, **parse_settings([], device)}).having({"workers": None})
    if isinstance(experiment.model, Module):  # a step's weights are loaded into its session: see `evaluate`
        experiment.model.load(stored.path / WEIGHTS)
    return experiment, stored.path
