"""A checkpoint in one safetensors file, as exported steps and pages write it.

It has the arrays of `session.state_dict()`.  The header may hold the position of the run in the data and its history
(`RUN`), and the identity of the program that wrote it (`IDENTITY`), both as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wholestep.callbacks.run import Position
from wholestep.errors import CheckpointError, InputError
from wholestep.session.state_dict import EPOCH
from wholestep.train.checkpoint.format import STEP, is_plain_dict, is_position
from wholestep.train.checkpoint.resume import Checkpoint
from wholestep.train.checkpoint.tensors import Array, read_notes
from wholestep.train.history import TrainHistory

RUN, IDENTITY = "wholestep.run", "wholestep.identity"
SUFFIX = ".safetensors"


def read_single_file(path: Path) -> Checkpoint:
    """The checkpoint in a file; CheckpointError if it is damaged, or holds weights alone."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays: dict[str, Array] = load_file(path)
        notes = read_notes(path)
        run, identity = (json.loads(notes.get(name, "{}")) for name in (RUN, IDENTITY))
    except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the checkpoint {path} is damaged: it cannot be read ({error}).") from None
    for name in (STEP, EPOCH):
        if name not in arrays or arrays[name].shape != ():
            raise CheckpointError(
                f"{path} is not a checkpoint: it has no number {name!r}. If it holds weights, take them alone: "
                f"model.load({str(path)!r})."
            )
    if not is_plain_dict(run) or not is_plain_dict(identity):
        raise CheckpointError(f"the checkpoint {path} is not one of ours: its header holds {str(run)[:60]!r}.")
    return Checkpoint(arrays, _position(path, run, int(arrays[EPOCH])), identity, _history(path, run), path=path)


def _position(path: Path, run: Mapping[str, Any], epoch: int) -> Position:
    stored = run.get("position", {"epoch": epoch, "step": 0, "loss_sum": 0.0, "rows": 0})
    if not is_position(stored) or stored["epoch"] != epoch:
        raise CheckpointError(f"the checkpoint {path} is not one of ours: its position is {stored!r} in epoch {epoch}.")
    return Position(**stored)


def _history(path: Path, run: Mapping[str, Any]) -> TrainHistory:
    try:
        return TrainHistory.from_json(json.dumps(run["history"])) if "history" in run else TrainHistory()
    except InputError as error:
        raise CheckpointError(f"the checkpoint {path} is not one of ours: {error}") from None
