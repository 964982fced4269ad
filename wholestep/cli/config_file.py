"""`--config run.toml`: the settings of a run in a file, under the names that `--set` has."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from wholestep.errors import UsageError, WholestepError


def read_config(path: Path) -> dict[str, Any]:
    """The values of a TOML file, tables as dotted names: `[optimizer]` with `lr = 3e-4` is `optimizer.lr`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}. Expected lines such as epochs = 5.") from None
    settings: dict[str, Any] = {}
    for name, value in _flatten_table(tables, ""):
        if name in settings:
            raise UsageError(f"{path} sets {name} twice, in a table and under its dotted name; set it once.")
        try:
            json.dumps(value)  # the manifest stores the settings of a run as JSON
        except TypeError:
            raise UsageError(f"{path}: {name} is {value}; expected numbers, texts, true, false or lists.") from None
        settings[name] = value
    return settings


def _flatten_table(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten_table(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


@contextlib.contextmanager
def name_setting_in_errors(path: Path | None, name: str) -> Iterator[None]:
    """Prefix errors about a setting with the file that it comes from, if it comes from one."""
    try:
        yield
    except WholestepError as error:
        if path is not None:
            error.args = (f"{path}, {name}: {error}",)
        raise


@contextlib.contextmanager
def name_script_settings_in_errors(path: Path | None, settings: Mapping[str, Any]) -> Iterator[None]:
    """Append the file's settings to an error that a script's build() raises, since any of them may be its cause."""
    try:
        yield
    except WholestepError as error:
        if settings:
            listed = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
            error.args = (f"{error}\n{path} says {listed}",)
        raise


@contextlib.contextmanager
def name_run_settings_in_errors(path: Path | None, names: Iterable[str]) -> Iterator[None]:
    """Prefix errors about a setting that appear only when the run starts; these begin with its name: `epochs=-1: …`."""
    try:
        yield
    except WholestepError as error:
        name_in_error = next((name for name in names if str(error).startswith(f"{name}=")), None)
        if name_in_error is not None:
            error.args = (f"{path}, {name_in_error}: {error}",)
        raise
