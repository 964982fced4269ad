"""Checkpoints as they lie in a folder: finding, checking, rotating them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from wholestep.errors import CheckpointError, OptionError
from wholestep.train.tensors import Array, checksum

FORMAT, VERSION = "wholestep checkpoint", 1
MANIFEST = "manifest.json"
WEIGHTS, TRAINING = "weights.safetensors", "training.safetensors"
WRITING, REMOVING = ".writing-", ".removing-"
SUPERSEDED = "superseded"  # where checkpoints lie that a run, started before them, has taken the place of
_NAME = re.compile(r"step-(\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Found:
    """A checkpoint in a folder, by its name."""

    path: Path
    step: int
    attempt: int


def checkpoints_in(folder: str | PathLike[str]) -> list[Found]:
    """The checkpoints of a run, oldest first; whether they are whole is seen when they are read."""
    found = [(p, _NAME.fullmatch(p.name)) for p in Path(folder).glob("step-*")]
    listed = [Found(p, int(m[1]), int(m[2] or 0)) for p, m in found if m]
    return sorted(listed, key=lambda f: (f.step, f.attempt))


def ranked(order: list[Found], monitor: str, mode: str) -> list[Found]:
    """Those that know a number, best first."""
    if mode not in ("min", "max"):
        raise OptionError(f"mode is 'min' or 'max'; received {mode!r}.")
    known: list[tuple[float, Found]] = []
    for found in order:
        with contextlib.suppress(CheckpointError):
            value = read_manifest(found.path)["logs"].get(monitor)
            if isinstance(value, int | float) and value == value:
                known.append((value, found))
    return [f for _, f in sorted(known, key=lambda k: k[0], reverse=mode == "max")]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, checked."""
    file = folder / MANIFEST
    try:
        whole = json.loads(file.read_bytes())
        body = whole["manifest"]
        if whole["format"] != FORMAT or whole["version"] != VERSION:
            raise CheckpointError(
                f"{folder} has format {whole['format']!r} version {whole['version']!r}; this Wholestep reads "
                f"{FORMAT!r} version {VERSION}."
            )
        intact = whole["checksum"] == _body_checksum(body)
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is no checkpoint: there is no {MANIFEST} in it.") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the checkpoint {folder} is damaged: {MANIFEST} cannot be read ({error}).") from None
    if not intact:
        raise CheckpointError(f"the checkpoint {folder} is damaged: the checksum of {MANIFEST} does not match.")
    wrong = wrong_field(body)
    if wrong:
        raise CheckpointError(
            f"the checkpoint {folder} is not one of ours: {wrong} in {MANIFEST}. Take another checkpoint of the run."
        )
    assert isinstance(body, dict)
    return body


# -- what stands in a manifest -----------------------------------------------------------------------------------


def is_count(value: Any) -> bool:
    """A number of steps, rows or epochs."""
    return type(value) is int and 0 <= value < 1 << 62


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


def is_measure(value: Any) -> bool:
    """What logs hold: a number, or lists of them."""
    return is_number(value) or (type(value) is list and all(is_measure(v) for v in value))


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(_is_plain(v) for v in value.values())
    return (
        value is None or type(value) in (str, bool, int, float) or (type(value) is list and all(map(_is_plain, value)))
    )


def _is_dict_of(each: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is dict and all(each(v) for v in value.values())


def _is_position(value: Any) -> bool:
    whole = _is_dict_of(is_number)(value) and value.keys() == {"epoch", "step", "loss_sum", "rows"}
    return whole and all(is_count(value[name]) for name in ("epoch", "step", "rows"))


def _are_files(value: Any) -> bool:
    """Our own names alone: a manifest names no file outside of its folder."""
    return _is_dict_of(lambda v: type(v) is str)(value) and value.keys() == {WEIGHTS, TRAINING}


FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "step": is_count,
    "position": _is_position,
    "identity": _is_dict_of(_is_plain),
    "data": _is_dict_of(lambda v: type(v) is int),
    "logs": _is_dict_of(is_measure),
    "history": _is_dict_of(_is_plain),
    "callbacks": _is_dict_of(_is_plain),
    "config": _is_dict_of(_is_plain),
    "versions": _is_dict_of(lambda v: type(v) is str),
    "writer": lambda v: type(v) is str,
    "files": _are_files,
}


def wrong_field(body: Any) -> str:
    """What is wrong with what a manifest says; nothing where it has the form of ours."""
    if type(body) is not dict or body.keys() != FIELDS.keys():
        return f"it has other fields than {', '.join(FIELDS)}"
    return next((f"{name} is {str(body[name])[:60]!r}" for name, fits in FIELDS.items() if not fits(body[name])), "")


def checked_arrays(folder: Path, name: str, wanted: str) -> dict[str, Array]:
    """The arrays of a file whose checksum is as it was when it was written."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        if checksum(folder / name) != wanted:
            raise CheckpointError(f"the checkpoint {folder} is damaged: the checksum of {name} does not match.")
        return load_file(folder / name)
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"the checkpoint {folder} is damaged: {name} cannot be read ({error}).") from None


# -- rotation ----------------------------------------------------------------------------------------------------


def rotate(folder: Path, writer: str, last: int, best: int, monitor: str, mode: str) -> None:
    """Remove what one writer wrote but for its last ones and its best ones; only whole ones count as kept."""
    own = [f for f in checkpoints_in(folder) if _written_by(f.path, writer)]
    newest = {f.step: f for f in own}  # the last attempt of each step
    order = list(newest.values())
    keep = {f.path for f in order[max(len(order) - last, 0) :]}
    keep |= {f.path for f in ranked(order, monitor, mode)[:best]}
    keep |= {own[-1].path} if own else set()
    for found in own:
        if found.path not in keep:
            _remove(found.path)


def set_aside(found: Sequence[Found]) -> None:
    """Move checkpoints out of a run's folder, each by one rename: the newest that is left is where the run goes on."""
    for each in found:
        aside = each.path.parent / SUPERSEDED
        aside.mkdir(exist_ok=True)
        attempt = 0
        while (target := aside / (f"{each.path.name}-{attempt}" if attempt else each.path.name)).exists():
            attempt += 1
        with contextlib.suppress(FileNotFoundError):  # another callback of the run was there first
            each.path.rename(target)


def _written_by(path: Path, writer: str) -> bool:
    try:
        return bool(read_manifest(path)["writer"] == writer)
    except CheckpointError:
        return False  # damaged: it is left for someone to look at


def _remove(path: Path) -> None:
    """Out of sight by one rename, then deleted: a kill leaves no half checkpoint."""
    hidden = path.with_name(f"{REMOVING}{path.name}-{os.getpid()}")
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what a killed run left half written or half removed."""
    for prefix in (WRITING, REMOVING):
        for path in folder.glob(f"{prefix}*"):
            shutil.rmtree(path, ignore_errors=True)


def is_checkpoint(path: Path) -> bool:
    """Is this one checkpoint, rather than the folder of a run?"""
    return _NAME.fullmatch(path.name) is not None or (path / MANIFEST).exists()


def manifest_bytes(body: Mapping[str, Any]) -> bytes:
    """A manifest with the checksum of what it says."""
    head = {"format": FORMAT, "version": VERSION, "checksum": _body_checksum(body)}
    return json.dumps({**head, "manifest": body}, indent=1).encode()


def _body_checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
