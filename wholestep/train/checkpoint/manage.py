"""Operations on stored runs and checkpoints: descriptions, differences, averages, pruning, tags, removal.

They work on files alone, without a session or the script of a run.  What is removed is renamed first, so that a kill
leaves no partial checkpoint, and only files that runs write are removed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wholestep.callbacks.run import is_detail
from wholestep.errors import CheckpointError, InputError, OptionError, UsageError
from wholestep.nn.state.weights import read_header, save_arrays, temporary_for
from wholestep.schedules.monitor_modes import MODES, mode_of_name
from wholestep.train.checkpoint.folder import (
    StoredCheckpoint,
    checkpoints_in,
    is_checkpoint,
    rank_checkpoints,
    remove,
    sweep,
)
from wholestep.train.checkpoint.format import PLANS, SUPERSEDED, WEIGHTS, read_manifest
from wholestep.train.checkpoint.lock import LOCK, brief_lock, need_free
from wholestep.train.checkpoint.read import load_checkpoint, read_checkpoint
from wholestep.train.checkpoint.tensors import Array, checksum
from wholestep.train.history import TrainHistory

TAGS = "tags.json"
OWN = (PLANS, SUPERSEDED, TAGS, LOCK)  # what a run's folder has besides checkpoints


# -- runs ------------------------------------------------------------------------------------------------------------


def describe_run(run: Path) -> dict[str, Any]:
    """A line about a run: epochs, updates, last and best numbers, tags, bytes; `problem` if it cannot be read."""
    stored = checkpoints_in(run)
    facts: dict[str, Any] = {"checkpoints": len(stored), "bytes": folder_bytes(run), "tags": tags_of(run)}
    try:
        body = _newest_manifest(run, stored)
        history = TrainHistory.from_json(json.dumps(body["history"]))
    except (CheckpointError, InputError) as error:
        return {**facts, "problem": str(error)}
    modes = body["config"].get(MODES, {})
    numbers = {n: v for n, v in history.last.items() if isinstance(v, float) and not is_detail(n)}
    best = {name: _best(history[name], name, modes) for name in numbers}
    return {
        **facts,
        "epochs": len(history),
        "updates": body["step"],
        "stopped_by": history.stopped_by,
        "last": numbers,
        "best": {name: value for name, value in best.items() if value is not None},
    }


def _newest_manifest(run: Path, stored: Sequence[StoredCheckpoint]) -> dict[str, Any]:
    problems = []
    for each in reversed(stored):
        try:
            return read_manifest(each.path)
        except CheckpointError as error:
            problems.append(str(error))
    raise CheckpointError(problems[0] if problems else f"there is no checkpoint in {run}.")


def _best(values: Sequence[float], name: str, modes: Any) -> float | None:
    """The best of some values, by the run's mode of the metric or by its name; None without a direction."""
    finite = [value for value in values if np.isfinite(value)]
    mode = (modes.get(name) if isinstance(modes, Mapping) else None) or mode_of_name(name)
    choose = {"min": min, "max": max}.get(mode or "")
    return choose(finite) if finite and choose else None


def folder_bytes(folder: Path) -> int:
    """The bytes of the regular files below a folder; links are not followed."""
    sizes = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return sum(path.lstat().st_size for path in sizes if path.is_file() and not path.is_symlink())


def tags_of(run: Path) -> list[str]:
    """The tags of a run."""
    try:
        tags = json.loads((run / TAGS).read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{run / TAGS} cannot be read ({error}); remove it to start anew.") from None
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise CheckpointError(f"{run / TAGS} is not a list of texts; remove it to start anew.")
    return tags


def set_tags(run: Path, add: Sequence[str], remove_tags: Sequence[str]) -> list[str]:
    """Add and remove tags of a run; the tags that it has then."""
    need_run(run)
    if unknown := [tag for tag in remove_tags if tag not in tags_of(run)]:
        raise UsageError(f"{run} has no tag {unknown[0]!r}; it has: {', '.join(tags_of(run)) or 'none'}.")
    tags = sorted({*tags_of(run), *add} - set(remove_tags))
    with temporary_for(run / TAGS) as temporary:
        temporary.write_text(json.dumps(tags), encoding="utf-8")
    return tags


def need_run(run: Path) -> None:
    """Raise CheckpointError if a folder has no checkpoints."""
    if not run.is_dir() or not checkpoints_in(run):
        raise CheckpointError(f"there is no checkpoint in {run}; expected the folder of a run, like runs/digits.")


def remove_run(run: Path) -> list[str]:
    """Remove all files of a run, and its folder if it is then empty; return what is left."""
    if run.is_symlink():
        raise UsageError(f"{run} is a link; name the folder itself, so that what is removed is what you named.")
    need_run(run)
    need_free(run)  # no run is writing to it
    for stored in checkpoints_in(run):
        remove(stored.path)
    sweep(run)
    for name in OWN:
        path = run / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    left = sorted(path.name for path in run.iterdir())
    if not left:
        run.rmdir()
    return left


# -- checkpoints -----------------------------------------------------------------------------------------------------


def verify(path: Path) -> dict[str, str]:
    """The problem of each checkpoint of a run, or of one checkpoint, by its path; "" if its files are whole."""
    single = path.suffix == ".safetensors" or is_checkpoint(path)
    places = [path] if single else [stored.path for stored in checkpoints_in(path)]
    if not places:
        need_run(path)
    problems = {}
    for place in places:
        try:
            load_checkpoint(place)
            problems[str(place)] = ""
        except CheckpointError as error:
            problems[str(place)] = str(error)
    return problems


def tensor_differences(one: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, str | float]:
    """The arrays in which two checkpoints differ: the largest difference, or what else differs."""
    different: dict[str, str | float] = {}
    for name in sorted({*one, *other}):
        a, b = one.get(name), other.get(name)
        if a is None or b is None:
            different[name] = f"only in the {'first' if b is None else 'second'}"
        elif a.shape != b.shape or a.dtype != b.dtype:
            different[name] = f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
        elif not np.array_equal(_bits(a), _bits(b)):
            gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
            different[name] = float(np.nanmax(gap)) if np.isfinite(gap).any() else "NaN"
    return different


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def average(paths: Sequence[Path], target: Path) -> int:
    """Write the mean of the weights of several checkpoints as a file of weights; return the number of arrays.

    Means are computed in float64; integers, such as counters, must be equal or are those of the last checkpoint.
    """
    if len(paths) < 2:
        raise OptionError(f"an average needs at least two checkpoints; received {len(paths)}.")
    stored = [read_checkpoint(path) for path in paths]
    first, last = stored[0], stored[-1]
    for path, each in zip(paths, stored, strict=True):
        shapes = {n: each.arrays[n].shape for n in each.own}
        if shapes != {n: first.arrays[n].shape for n in first.own}:
            raise CheckpointError(f"{path} has other weights than {paths[0]}; average checkpoints of one model.")
    means = {name: _mean([each.arrays[name] for each in stored]) for name in last.own}
    save_arrays(means, target, read_header(paths[-1] / WEIGHTS))
    return len(means)


def _mean(arrays: Sequence[Array]) -> Array:
    last = arrays[-1]
    if last.dtype.kind in "iub":
        return last
    mean: Array = sum((a.astype(np.float64) for a in arrays), np.zeros(last.shape)) / len(arrays)
    return mean.astype(last.dtype)


def convert(checkpoint: Path, target: Path, *, everything: bool = False) -> int:
    """Write the weights of a checkpoint, or all of its arrays, as .safetensors or .npz; return the number of arrays."""
    stored = read_checkpoint(checkpoint)
    arrays = dict(stored.arrays) if everything else {name: stored.arrays[name] for name in stored.own}
    if target.suffix == ".npz":
        if half := [name for name, a in arrays.items() if a.dtype.name == "bfloat16"]:
            raise OptionError(f"{half[0]} is bfloat16, which .npz files do not have; write a .safetensors file.")
        with temporary_for(target) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
    elif target.suffix == ".safetensors":
        save_arrays(arrays, target, read_header(checkpoint / WEIGHTS))
    else:
        raise OptionError(f"{target}: expected a name that ends in .safetensors or .npz.")
    return len(arrays)


def prune(run: Path, last: int, best: int, monitor: str, mode: str | None, *, dry: bool = False) -> list[Path]:
    """Remove the checkpoints of a run except the last and the best ones; return what was, or would be, removed.

    Damaged checkpoints are kept, and do not count.
    """
    need_run(run)
    if last < 1:
        raise OptionError(f"keep at least the last checkpoint; received {last}.")
    readable = [stored for stored in checkpoints_in(run) if not _is_damaged(stored.path)]
    chosen = {stored.path for stored in readable[-last:]}
    if best:
        ranked = rank_checkpoints(readable, monitor, mode or mode_of_name(monitor) or "min")
        if not ranked:
            raise CheckpointError(f"no checkpoint in {run} has the number {monitor!r}.")
        chosen |= {stored.path for stored in ranked[:best]}
    doomed = [stored.path for stored in readable if stored.path not in chosen]
    if not dry:
        with brief_lock(run):
            for path in doomed:
                remove(path)
    return doomed


def _is_damaged(checkpoint: Path) -> bool:
    try:
        files = read_manifest(checkpoint)["files"]
        return any(checksum(checkpoint / name) != wanted for name, wanted in files.items())
    except (CheckpointError, OSError):
        return True
