"""Checkpoints in the folder of a run: listing, ranking, rotation."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from wholestep.errors import CheckpointError, OptionError
from wholestep.train.checkpoint.format import MANIFEST, NAME, REMOVING, SUPERSEDED, WRITING, read_manifest

REPLICA = "replica-"  # prefix of the folders of replicas in the folder of their run
DEEPEST = 4  # levels of folders below a folder in which runs are looked for


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint in a folder, by its name."""

    path: Path
    step: int
    attempt: int


def checkpoints_in(folder: str | PathLike[str]) -> list[StoredCheckpoint]:
    """The checkpoints of a run, oldest first; damage is detected when they are read."""
    names = [(p, NAME.fullmatch(p.name)) for p in Path(folder).glob("step-*")]
    listed = [StoredCheckpoint(p, int(m[1]), int(m[2] or 0)) for p, m in names if m]
    return sorted(listed, key=lambda f: (f.step, f.attempt))


def replicas_in(folder: str | PathLike[str]) -> list[Path]:
    """The folders of replicas with checkpoints, in the order of the replicas."""
    named = [(p.name.removeprefix(REPLICA), p) for p in Path(folder).glob(f"{REPLICA}*")]
    numbered = sorted((int(number), path) for number, path in named if number.isdecimal())
    return [path for _, path in numbered if checkpoints_in(path)]


def rank_checkpoints(order: list[StoredCheckpoint], monitor: str, mode: str) -> list[StoredCheckpoint]:
    """The checkpoints with a number in their logs, best first."""
    if mode not in ("min", "max"):
        raise OptionError(f"mode must be 'min' or 'max'; received {mode!r}.")
    ranked: list[tuple[float, StoredCheckpoint]] = []
    for stored in order:
        with contextlib.suppress(CheckpointError):
            value = read_manifest(stored.path)["logs"].get(monitor)
            if isinstance(value, int | float) and value == value:
                ranked.append((value, stored))
    return [f for _, f in sorted(ranked, key=lambda k: k[0], reverse=mode == "max")]


def is_checkpoint(path: Path) -> bool:
    """Is this one checkpoint, rather than the folder of a run?"""
    return NAME.fullmatch(path.name) is not None or (path / MANIFEST).exists()


def runs_below(folder: Path) -> dict[str, Path]:
    """The runs in a folder by their paths in it: folders with checkpoints, or the folder itself."""
    runs = {}
    for path, subfolders, _ in os.walk(folder):
        place = Path(path).relative_to(folder)
        if any(NAME.fullmatch(name) for name in subfolders):
            runs[str(place) if place.parts else folder.resolve().name] = Path(path)
        inner = (n for n in subfolders if not n.startswith(".") and n != SUPERSEDED and not NAME.fullmatch(n))
        subfolders[:] = sorted(inner) if len(place.parts) < DEEPEST else []
    return runs


# -- rotation ----------------------------------------------------------------------------------------------------


def rotate(folder: Path, writer: str, last: int, best: int, monitor: str, mode: str) -> None:
    """Remove checkpoints of a writer except the last and the best ones; damaged checkpoints do not count."""
    written = [f for f in checkpoints_in(folder) if _is_from_writer(f.path, writer)]
    newest = {f.step: f for f in written}  # the newest checkpoint of each step
    order = list(newest.values())
    keep = {f.path for f in order[max(len(order) - last, 0) :]}
    keep |= {f.path for f in rank_checkpoints(order, monitor, mode)[:best]}
    keep |= {written[-1].path} if written else set()
    for stored in written:
        if stored.path not in keep:
            remove(stored.path)


def set_aside(checkpoints: Sequence[StoredCheckpoint]) -> None:
    """Move checkpoints out of a run's folder, each by one rename: a resume then uses the newest remaining one."""
    for each in checkpoints:
        aside = each.path.parent / SUPERSEDED
        aside.mkdir(exist_ok=True)
        attempt = 0
        while (target := aside / (f"{each.path.name}-{attempt}" if attempt else each.path.name)).exists():
            attempt += 1
        with contextlib.suppress(FileNotFoundError):  # another callback of the run may have moved it
            each.path.rename(target)


def _is_from_writer(path: Path, writer: str) -> bool:
    try:
        return bool(read_manifest(path)["writer"] == writer)
    except CheckpointError:
        return False  # damaged: do not remove it


def remove(path: Path) -> None:
    """Rename, then delete: a kill leaves no partial checkpoint."""
    hidden = path.with_name(f"{REMOVING}{path.name}-{os.getpid()}")
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove partial checkpoints that a killed run was writing or removing."""
    for prefix in (WRITING, REMOVING):
        for path in folder.glob(f"{prefix}*"):
            shutil.rmtree(path, ignore_errors=True)
