"""`write_report`: the histories, settings and checkpoints of runs as one HTML file, made by the mechanism of `bundle`.

Only manifests are read, no arrays; what runs have written is data to the page, which shows it as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wholestep.callbacks.run import is_detail
from wholestep.errors import CheckpointError, InputError
from wholestep.schedules.monitor_modes import MODES
from wholestep.train.checkpoint import load_checkpoint
from wholestep.train.checkpoint.folder import checkpoints_in
from wholestep.train.checkpoint.format import read_manifest
from wholestep.train.checkpoint.read import SUFFIX
from wholestep.train.history import TrainHistory
from wholestep.web.bundle import html, write_page

DEEPEST, LONGEST = 6, 300  # levels of nested settings, and characters of a setting, that a report shows


def write_report(runs: Sequence[Path], path: Path) -> Path:
    """Write one HTML file about runs: folders of checkpoints, or single files of them.

    Example: `write_report([Path("runs/a"), Path("runs/b")], Path("report.html"))`.
    """
    names = _names(runs)
    described = [_plain({"name": name, **_run(run)}) for name, run in zip(names, runs, strict=True)]
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    return write_page(path, html("report", {"runs": described}, title=title))


def _names(runs: Sequence[Path]) -> list[str]:
    """The last parts of the paths, or the paths where these are not different."""
    short = [run.resolve().name or str(run) for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]


def _run(run: Path) -> dict[str, Any]:
    """What a report shows of a run."""
    if run.suffix == SUFFIX and not run.is_dir():
        stored = load_checkpoint(run)
        body = {"config": stored.config, "versions": stored.versions, "identity": stored.identity, "step": stored.step}
        return _describe(body, stored.history, [_row(run, {**body, "position": asdict(stored.position)})])
    checkpoints = checkpoints_in(run)
    if not checkpoints:
        raise CheckpointError(f"there is no checkpoint in {run}; expected the folder of a run, like runs/digits.")
    rows: list[dict[str, Any]] = []
    newest, problems = None, []
    for each in reversed(checkpoints):
        try:
            body = read_manifest(each.path)
            newest = newest or (body, TrainHistory.from_json(json.dumps(body["history"])))
        except (CheckpointError, InputError) as error:
            problems.append(str(error))
            rows.append({"name": each.path.name, "updates": each.step, "problem": str(error)})
            continue
        rows.append(_row(each.path, body))
    if newest is None:
        raise CheckpointError(f"no checkpoint in {run} is whole:\n  " + "\n  ".join(problems))
    return _describe(*newest, rows[::-1])


def _describe(body: Mapping[str, Any], history: TrainHistory, rows: list[dict[str, Any]]) -> dict[str, Any]:
    identity = body["identity"]
    program = {name: identity[name] for name in ("target", "code", "machine", "plan", "data") if identity.get(name)}
    modes = body["config"].get(MODES, {})
    return {
        "epochs": [_epoch(each.epoch, row) for each, row in zip(history.epochs, history.rows(), strict=True)],
        "updates": body["step"],
        "stopped": history.stopped_by,
        "modes": modes if isinstance(modes, dict) else {},
        "settings": dict(_flat({name: value for name, value in body["config"].items() if name != MODES})),
        "environment": {**body["versions"], **dict(_flat(program))},
        "checkpoints": rows,
    }


def _epoch(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of an epoch, without those of single parameters; epochs are counted from 1 as on the terminal."""
    return {**{name: value for name, value in row.items() if not is_detail(name)}, "epoch": number + 1}


def _row(path: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the table of checkpoints."""
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    logs = body.get("logs", {})
    return {
        "name": path.name,
        "updates": body["step"],
        "epoch": body["position"]["epoch"],
        "bytes": sum(file.stat().st_size for file in files),
        "logs": {name: value for name, value in logs.items() if not isinstance(value, list) and not is_detail(name)},
    }


def _flat(settings: Mapping[str, Any], prefix: str = "", depth: int = 1) -> Iterable[tuple[str, str]]:
    """Nested settings as `optimizer.lr`, each with its value as text."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value and depth < DEEPEST:
            yield from _flat(value, f"{prefix}{name}.", depth + 1)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield f"{prefix}{name}", text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _plain(value: Any) -> Any:
    """A value as JSON that browsers read: NaN and infinities are text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
