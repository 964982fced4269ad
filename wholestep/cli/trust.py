"""Which script a run was started with, as this user knows it: a run's own files may be a stranger's.

A manifest names the script and settings of its run.  They are taken from there only where this user started that run
in that folder with them: `wholestep train` notes it in the user's own cache, where nobody else writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wholestep.errors import CheckpointError

SUFFIX = ".run"
OPTIONS = "options"  # settings of the compiler: a command among them would be executed


def note_start(folder: Path, script: Path, settings: Mapping[str, Any]) -> None:
    """Note that this user starts the run in a folder so."""
    store, key = _store(), _key(folder)
    known, now = starts_of(folder), _start(script, settings)
    if now not in known:
        store.discard(key)
        store.put(key, json.dumps([*known, now]).encode(), SUFFIX)


def starts_of(folder: Path) -> list[Any]:
    """How this user has started the run in a folder: [script, settings] of each time."""
    path = _store().get(_key(folder), SUFFIX)
    found = [] if path is None else json.loads(path.read_bytes())
    return found if isinstance(found, list) else []


def started_as(config: Mapping[str, Any], run: Path, folder: Path, given: Path | None) -> tuple[Path, dict[str, Any]]:
    """The script and the settings of a run: the script as the user says it, or as the user once started the run.

    Args:
        config: of the manifest.
        run: as the user names it, for errors.
        folder: of the whole run.
        given: the script that the command line names.
    """
    named, settings = config.get("script"), config.get("settings")
    if not isinstance(named, str) or not isinstance(settings, dict):
        raise CheckpointError(f"{run} was not made by `wholestep train`: it does not know its script.")
    if _start(Path(named), settings) in starts_of(folder) and given is None:
        return Path(named), dict(settings)
    if given is None:
        raise CheckpointError(
            f"{run} names the script {named}, but it was not started by you, on this machine and in this folder: a "
            f"script that only a file names is not run. If you trust it, say it: --script {named}"
        )
    foreign = [name for name in settings if name.partition(".")[0] == OPTIONS]
    if foreign:
        raise CheckpointError(
            f"{run} sets {foreign[0]} to {settings[foreign[0]]!r}: how to compile is not taken from a run that you did "
            "not start. Start one of your own, with its weights: model.load(...)."
        )
    return given.resolve(), dict(settings)


def _start(script: Path, settings: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps([str(script), dict(settings)]))


def _key(folder: Path) -> str:
    from wholestep.compiler.runtime.cache import key_of

    return key_of("run", str(folder.resolve()))


def _store() -> Any:
    from wholestep.compiler.runtime.cache import cache_of
    from wholestep.options import CompileOptions

    return cache_of(CompileOptions())
