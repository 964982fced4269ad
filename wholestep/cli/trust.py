"""Decides which script may be executed to resume a run, since a run's folder may come from someone else.

The manifest of a run names its script and settings.  They are used only if this user started the run in this folder
with them: `wholestep train` records each start in the user's own cache folder, which other users cannot write to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wholestep.errors import CheckpointError

SUFFIX = ".run"
OPTIONS = "options"  # settings of the compiler, which include a command that is executed


def note_start(folder: Path, script: Path, settings: Mapping[str, Any]) -> None:
    """Record that this user starts the run in `folder` with this script and these settings."""
    store, key = _store(), _key(folder)
    starts, now = starts_of(folder), _start(script, settings)
    if now not in starts:
        store.discard(key)
        store.put(key, json.dumps([*starts, now]).encode(), SUFFIX)


def starts_of(folder: Path) -> list[Any]:
    """The recorded starts of the run in `folder`: a list of [script, settings]."""
    path = _store().get(_key(folder), SUFFIX)
    starts = [] if path is None else json.loads(path.read_bytes())
    return starts if isinstance(starts, list) else []


def script_of_run(
    config: Mapping[str, Any], run: Path, folder: Path, script: Path | None
) -> tuple[Path, dict[str, Any]]:
    """The script and settings with which to resume a run: the script of --script, or the recorded script of its start.

    Args:
        config: the configuration in the manifest.
        run: the path that the user typed, for errors.
        folder: the folder of the run.
        script: the script of --script.
    """
    named, settings = config.get("script"), config.get("settings")
    if not isinstance(named, str) or not isinstance(settings, dict):
        raise CheckpointError(f"{run} was not written by `wholestep train`: its manifest names no script.")
    if _start(Path(named), settings) in starts_of(folder) and script is None:
        return Path(named), dict(settings)
    if script is None:
        raise CheckpointError(
            f"{run} names the script {named}, but you did not start this run, on this machine and in this folder: a "
            f"script that only a manifest names is not executed. If you trust it, name it: --script {named}"
        )
    foreign = [name for name in settings if name.partition(".")[0] == OPTIONS]
    if foreign:
        raise CheckpointError(
            f"{run} sets {foreign[0]} to {settings[foreign[0]]!r}: compiler settings are not taken from a run that "
            "you did not start. Start one of your own, with its weights: model.load(...)."
        )
    return script.resolve(), dict(settings)


def _start(script: Path, settings: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps([str(script), dict(settings)]))


def _key(folder: Path) -> str:
    from wholestep.compiler.runtime.cache.content_store import key_of

    return key_of("run", str(folder.resolve()))


def _store() -> Any:
    from wholestep.compiler.runtime.cache.content_store import open_cache
    from wholestep.options import CompileOptions

    return open_cache(CompileOptions())
