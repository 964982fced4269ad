"""`write_report`: histories, settings, checkpoints and compiled steps of runs as one HTML file, written by `bundle`.

Manifests and plans are read, no arrays; what runs have written is data to the page, which shows it as text.  Curves are
thinned while they are read: of each stretch of a curve the least and the greatest value stay, so that extremes and the
outline are those of the full curve.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.callbacks.run import EpochStats, is_detail
from wholestep.errors import CheckpointError, InputError
from wholestep.schedules.monitor_modes import MODES
from wholestep.train.checkpoint import load_checkpoint
from wholestep.train.checkpoint.folder import checkpoints_in
from wholestep.train.checkpoint.format import read_manifest
from wholestep.train.checkpoint.read import SUFFIX
from wholestep.train.history import TrainHistory
from wholestep.web.bundle import html, write_page
from wholestep.web.steps import describe_plan_file, plan_files

if TYPE_CHECKING:
    from wholestep.train.experiment import Experiment

DEEPEST, LONGEST = 6, 300  # levels of nested settings, and characters of a setting, that a report shows
POINTS, FEWEST, MOST = 400_000, 40, 2000  # points of all curves of a page; the fewest and the most of one curve
MOST_STEPS = 4  # compiled steps in a page, each with its generated code


def write_report(runs: Sequence[Path], path: Path, experiments: Mapping[Path, Experiment] | None = None) -> Path:
    """Write one HTML file about runs: folders of checkpoints, or single files of them.

    Args:
        experiments: of some runs, the experiments with their weights: their steps are built and timed again.

    Example: `write_report([Path("runs/a"), Path("runs/b")], Path("report.html"))`.
    """
    names = run_names(runs)
    described = [{"name": name, **describe_run(run, len(runs))} for name, run in zip(names, runs, strict=True)]
    steps = describe_steps(dict(zip(names, runs, strict=True)), experiments or {})
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    return write_page(path, html("report", plain({"runs": described, **steps}), title=title))


def describe_steps(runs: Mapping[str, Path], experiments: Mapping[Path, Experiment]) -> dict[str, Any]:
    """The compiled steps of runs, each once, and predictions: from experiments or, with less detail, stored plans."""
    steps: dict[str, dict[str, Any]] = {}
    predictions: dict[str, Any] = {}
    for name, run in runs.items():
        if run in experiments:
            from wholestep.web.rebuild import describe_experiment

            rebuilt = describe_experiment(experiments[run])
            steps[name] = {"runs": [name], **rebuilt["step"]}
            predictions[name] = rebuilt["predictions"]
            continue
        for file in plan_files(run):
            if file.name in steps:
                steps[file.name]["runs"].append(name)
            elif len(steps) < MOST_STEPS:
                steps[file.name] = {"runs": [name], **describe_plan_file(file)}
    return {"steps": list(steps.values()), "predictions": predictions}


def run_names(runs: Sequence[Path]) -> list[str]:
    """The last parts of the paths, or the paths where these are not different."""
    short = [run.resolve().name or str(run) for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]


def describe_run(run: Path, runs: int = 1) -> dict[str, Any]:
    """What a page about so many runs shows of one of them."""
    if run.suffix == SUFFIX and not run.is_dir():
        stored = load_checkpoint(run)
        body = {"config": stored.config, "versions": stored.versions, "identity": stored.identity, "step": stored.step}
        return _describe(runs, body, stored.history, [_row(run, {**body, "position": asdict(stored.position)})])
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
        raise CheckpointError(f"no checkpoint in {run} is intact:\n  " + "\n  ".join(problems))
    return _describe(runs, *newest, rows[::-1])


def _describe(runs: int, body: Mapping[str, Any], history: TrainHistory, rows: list[dict[str, Any]]) -> dict[str, Any]:
    identity = body["identity"]
    program = {name: identity[name] for name in ("target", "code", "machine", "plan", "data") if identity.get(name)}
    modes = body["config"].get(MODES, {})
    return {
        "epochs": len(history),
        "series": curves_of(history, runs),
        "matrices": _matrices(history),
        "updates": body["step"],
        "stopped": history.stopped_by,
        "modes": modes if isinstance(modes, dict) else {},
        "settings": dict(_flat({name: value for name, value in body["config"].items() if name != MODES})),
        "environment": {**body["versions"], **dict(_flat(program))},
        "checkpoints": rows,
    }


def curves_of(history: TrainHistory, runs: int) -> dict[str, list[list[Any]]]:
    """The curves of a history, name -> [epochs, values], thinned out; epochs are counted from 1 as on the terminal.

    Metrics of single parameters are left out.
    """
    curves: dict[str, tuple[list[float], list[float]]] = {}
    rows = [{"loss": e.avg_loss, **e.logs, **_speed(e)} for e in history.epochs]
    for each, row in zip(history.epochs, rows, strict=True):
        for name, value in row.items():
            if isinstance(value, int | float) and not is_detail(name):
                at, values = curves.setdefault(name, ([], []))
                at.append(each.epoch + 1)
                values.append(_float(value))
    most = min(MOST, max(FEWEST, POINTS // (runs * max(1, len(curves)))))
    return {name: thin(at, values, most) for name, (at, values) in curves.items()}


def _speed(epoch: EpochStats) -> dict[str, float]:
    return {"steps_per_second": epoch.steps_per_second} if epoch.steps_per_second else {}


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf if value > 0 else -math.inf


def thin(at: Sequence[float], values: Sequence[float], most: int) -> list[list[Any]]:
    """At most `most` points of a curve as [places, values]: the first, the last, and the extremes of equal stretches.

    Points that are not finite are left out where the curve is thinned.
    """
    places, numbers = np.asarray(at), np.asarray(values)
    if len(places) > most:
        finite = np.isfinite(numbers)
        places, numbers = places[finite], numbers[finite]
    if len(places) > most:
        width = -(-2 * (len(places) - 2) // (most - 2))
        starts = np.arange(1, len(places) - 1, width)
        bounds = [*starts.tolist(), len(places) - 1]
        extremes = {0, len(places) - 1}
        for low, high in itertools.pairwise(bounds):
            part = numbers[low:high]
            extremes |= {low + int(part.argmin()), low + int(part.argmax())}
        chosen = sorted(extremes)
        places, numbers = places[chosen], numbers[chosen]
    return [places.tolist(), numbers.tolist()]


def _matrices(history: TrainHistory) -> dict[str, Any]:
    """The numbers of the last epoch that are lists, such as confusion matrices."""
    last = history.epochs[-1].logs if history.epochs else {}
    return {name: value for name, value in last.items() if isinstance(value, list)}


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


def plain(value: Any) -> Any:
    """A value as JSON that browsers read: NaN and infinities are text."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
