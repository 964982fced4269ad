"""The files of a checkpoint: the state of a run, from which it resumes to the same bits.

    runs/digits/
      plans/<digest>.plan         the plans of the run, each once
      step-00000120/
        weights.safetensors       states of the model, under the names that `model.save` and torch use
        training.safetensors      optimizer, metrics, counters, runtime scalars, arrays of callbacks
        training-00001-of-00002.safetensors   and so on: the shards of each worker
        manifest.json             position, data, history, callbacks, configuration, environment, checksums

A checkpoint is written under a temporary name, synced to the disk, and published by one rename: none is partial.
Nothing in it is executed when it is read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wholestep.callbacks.run import is_count, is_measure, is_number
from wholestep.errors import CheckpointError, UsageError
from wholestep.train.checkpoint.tensors import Array

FORMAT, VERSION = "wholestep checkpoint", 1
MANIFEST = "manifest.json"
WEIGHTS, TRAINING = "weights.safetensors", "training.safetensors"
PLANS = "plans"
WRITING, REMOVING = ".writing-", ".removing-"
SUPERSEDED = "superseded"  # folder for checkpoints of later steps than the step at which a newer run started
STEP = "session/step"  # the array with the update count
CALLBACKS = "callbacks/"  # prefix of the arrays of callbacks
KEEPS_BEST = "keeps_best"  # in the configuration: {"monitor", "mode"} of a writer that keeps only the best epochs
NAME = re.compile(r"step-(\d+)(?:\.(\d+))?")
PLACES = "places"  # the entry of a shard file's metadata with the positions of its arrays

# -- the manifest -----------------------------------------------------------------------------------


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(_is_plain(v) for v in value.values())
    return (
        value is None or type(value) in (str, bool, int, float) or (type(value) is list and all(map(_is_plain, value)))
    )


def _is_dict_of(each: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is dict and all(each(v) for v in value.values())


def is_plain_dict(value: Any) -> bool:
    """Is it a dict of JSON values?"""
    return type(value) is dict and _is_plain(value)


def is_position(value: Any) -> bool:
    """Is it a position in a run, as `asdict` writes it?"""
    whole = _is_dict_of(is_number)(value) and value.keys() == {"epoch", "step", "loss_sum", "rows"}
    return whole and all(is_count(value[name]) for name in ("epoch", "step", "rows"))


def _are_files(value: Any) -> bool:
    """Are these our own file names?  A manifest must not name files outside of its folder."""
    if not _is_dict_of(lambda v: type(v) is str)(value):
        return False
    owned = sorted(value.keys() - {WEIGHTS, TRAINING})
    return value.keys() >= {WEIGHTS, TRAINING} and owned == [shard_file_name(n, len(owned)) for n in range(len(owned))]


def shard_file_name(rank: int, size: int) -> str:
    """The file with the shards of one worker."""
    return f"training-{rank + 1:05d}-of-{size:05d}.safetensors"


FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "step": is_count,
    "position": is_position,
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
    """The first invalid field of a manifest as text; "" if all are valid."""
    if type(body) is not dict or body.keys() != FIELDS.keys():
        return f"it has other fields than {', '.join(FIELDS)}"
    return next((f"{name} is {str(body[name])[:60]!r}" for name, fits in FIELDS.items() if not fits(body[name])), "")


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
        raise CheckpointError(f"{folder} is not a checkpoint: there is no {MANIFEST} in it.") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the checkpoint {folder} is damaged: {MANIFEST} cannot be read ({error}).") from None
    if not intact:
        raise CheckpointError(f"the checkpoint {folder} is damaged: the checksum of {MANIFEST} does not match.")
    wrong = wrong_field(body)
    if wrong:
        raise CheckpointError(
            f"the checkpoint {folder} was not written by Wholestep: {wrong} in {MANIFEST}. Take another checkpoint of "
            "the run."
        )
    assert isinstance(body, dict)
    return body


def manifest_bytes(body: Mapping[str, Any]) -> bytes:
    """The file of a manifest: its JSON with a checksum."""
    head = {"format": FORMAT, "version": VERSION, "checksum": _body_checksum(body)}
    return json.dumps({**head, "manifest": body}, indent=1).encode()


def _body_checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# -- the states of callbacks ----------------------------------------------------------------------------------------


def without_arrays(states: Mapping[str, Any]) -> tuple[Any, dict[str, Array]]:
    """Callbacks' states with arrays replaced by their names, and the arrays by name."""
    arrays: dict[str, Array] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray):
            arrays[path] = value
            return {"$array": path}
        if isinstance(value, Mapping):
            return {str(k): walk(v, f"{path}/{k}") for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [walk(v, f"{path}/{i}") for i, v in enumerate(value)]
        plain = value.item() if isinstance(value, np.generic) else value
        if plain is not None and not isinstance(plain, str | int | float):
            raise UsageError(f"{path}: a callback's state must consist of JSON values and arrays; received {value!r}.")
        return plain

    return {name: walk(state, CALLBACKS + name) for name, state in states.items()}, arrays


def with_arrays(value: Any, arrays: Mapping[str, Array]) -> Any:
    """The inverse of `without_arrays`."""
    if isinstance(value, dict):
        if value.keys() == {"$array"}:
            return arrays[value["$array"]]
        return {k: with_arrays(v, arrays) for k, v in value.items()}
    return [with_arrays(v, arrays) for v in value] if isinstance(value, list) else value
