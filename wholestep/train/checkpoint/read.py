"""Reading checkpoints: every file is verified by its checksum, and nothing in them is executed.

Exported steps and pages write a checkpoint as one safetensors file with the arrays of `session.state_dict()`.  Its
header may hold the position of the run in the data and its history (`RUN`), and the identity of the program that wrote
it (`IDENTITY`), both as JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from wholestep.callbacks.run import Position
from wholestep.errors import CheckpointError, InputError
from wholestep.schedules.monitor_modes import MODES, canonical, mode_of, mode_of_name
from wholestep.session.state_dict import EPOCH
from wholestep.train.checkpoint.folder import StoredCheckpoint, checkpoints_in, is_checkpoint, rank_checkpoints
from wholestep.train.checkpoint.format import (
    CALLBACKS,
    KEEPS_BEST,
    MANIFEST,
    STEP,
    TRAINING,
    WEIGHTS,
    is_plain_dict,
    is_position,
    read_manifest,
    with_arrays,
)
from wholestep.train.checkpoint.resume import Checkpoint
from wholestep.train.checkpoint.sharded_write import read_whole
from wholestep.train.checkpoint.tensors import Array, checksum, read_checked_arrays, read_notes
from wholestep.train.history import TrainHistory
from wholestep.train.row_history import ROWS, RowHistory

log = logging.getLogger("wholestep")
T = TypeVar("T")
SUFFIX = ".safetensors"  # file suffix of a checkpoint in one file
RUN, IDENTITY = "wholestep.run", "wholestep.identity"  # notes in its header


def _modes(checkpoints: Sequence[StoredCheckpoint]) -> dict[str, str]:
    """The modes of a run's metrics, from its newest readable checkpoint."""
    for each in checkpoints:
        with contextlib.suppress(CheckpointError):
            noted = read_manifest(each.path)["config"].get(MODES, {})
            return {k: v for k, v in noted.items() if v in ("min", "max")} if isinstance(noted, dict) else {}
    return {}


def load_checkpoint(path: str | PathLike[str], *, best: str | None = None, mode: str | None = None) -> Checkpoint:
    """Read a checkpoint, or the newest whole one of a run's folder.

    Args:
        path: "runs/digits", or one checkpoint in it, "runs/digits/step-00000120"; or the file that an exported step
            or page wrote, "digits.safetensors".
        best: of a run's folder, the checkpoint that is best in this number, e.g. "val_loss", instead of the newest.
        mode: "min" or "max"; None: that of the run's metric of that name, else inferred from the name.

    A damaged checkpoint is refused by name; in a run's folder the one before it is used, with a warning in the log.

    Example::

        ws.load_checkpoint("runs/digits").restore(session)
    """
    folder = Path(path)
    if folder.suffix == SUFFIX and not folder.is_dir():
        return read_single_file(folder)
    if is_checkpoint(folder):
        return read_checkpoint(folder)
    order = everything = checkpoints_in(folder)[::-1]
    if best is not None:
        name, noted = canonical(best), _modes(everything) if mode is None else {}
        order = rank_checkpoints(order, name, mode or noted.get(name) or mode_of_name(best) or "min")
        if order and mode is None:
            mode_of("load_checkpoint", best, noted)
    if order:
        return _first_whole(folder, order, read_checkpoint)
    if everything and best is not None:
        names = dict.fromkeys(name for stored in everything for name in read_manifest(stored.path)["logs"])
        raise CheckpointError(
            f"no checkpoint in {folder} has logged {best!r}; they have logged {', '.join(names) or 'nothing'}."
        )
    raise CheckpointError(f"there is no checkpoint in {folder}; expected folders like {folder}/step-00000120.")


def _first_whole(folder: Path, order: Sequence[StoredCheckpoint], read: Callable[[Path], T]) -> T:
    """`read` of the first checkpoint that is not damaged."""
    problems = []
    for stored in order:
        try:
            return read(stored.path)
        except CheckpointError as error:
            problems.append(str(error))
            log.warning("%s The checkpoint before it is used.", error)
    raise CheckpointError(f"no checkpoint in {folder} is intact:\n  " + "\n  ".join(problems))


def weights_in_run(path: Path) -> Path | None:
    """The file of weights of a checkpoint, or of a run's folder; None for any other folder.

    For a run it is that of the newest checkpoint, or of the best one if the run keeps only the best.
    """
    if (path / MANIFEST).exists() and (path / WEIGHTS).exists():
        return _checked_weights(path)
    newest_first = checkpoints_in(path)[::-1]
    if not newest_first or any(path.glob("*.safetensors")):  # the latter is a published model
        return None
    ranking = _best_only(newest_first)
    best = rank_checkpoints(newest_first, ranking["monitor"], ranking["mode"]) if ranking else []
    return _first_whole(path, best or newest_first, _checked_weights)


def _best_only(newest_first: Sequence[StoredCheckpoint]) -> dict[str, str] | None:
    """Monitor and mode of a writer that keeps only the best checkpoints; None for any other writer."""
    for each in newest_first:
        with contextlib.suppress(CheckpointError):
            noted = read_manifest(each.path)["config"].get(KEEPS_BEST)
            named = isinstance(noted, dict) and isinstance(noted.get("monitor"), str)
            return noted if named and noted.get("mode") in ("min", "max") else None
    return None


def _checked_weights(checkpoint: Path) -> Path:
    wanted = read_manifest(checkpoint)["files"][WEIGHTS]
    if not (checkpoint / WEIGHTS).is_file() or checksum(checkpoint / WEIGHTS) != wanted:
        raise CheckpointError(f"the checkpoint {checkpoint} is damaged: the checksum of {WEIGHTS} does not match.")
    return checkpoint / WEIGHTS


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read one checkpoint; every file is compared with its checksum."""
    body = read_manifest(folder)
    files: dict[str, str] = body["files"]
    weights, training = (read_checked_arrays(folder, name, files[name]) for name in (WEIGHTS, TRAINING))
    divided = read_whole(folder, {n: sum for n, sum in files.items() if n not in (WEIGHTS, TRAINING)})
    arrays = {**weights, **training, **divided}
    counted = arrays.get(STEP)
    if counted is None or counted.shape != () or counted != body["step"]:
        raise CheckpointError(
            f"the checkpoint {folder} was not written by Wholestep: its files and {MANIFEST} have different numbers of "
            "steps."
        )
    try:
        callbacks = with_arrays(body["callbacks"], arrays)
        history = TrainHistory.from_json(json.dumps(body["history"]))
        history.per_row = RowHistory.from_arrays(arrays)
    except (ValueError, LookupError, TypeError, InputError) as error:
        raise CheckpointError(f"the checkpoint {folder} was not written by Wholestep: {error} in {MANIFEST}.") from None
    return Checkpoint(
        arrays={n: a for n, a in arrays.items() if not n.startswith((CALLBACKS, ROWS))},
        position=Position(**body["position"]),
        identity=body["identity"],
        history=history,
        data=body["data"],
        callbacks=callbacks,
        config=body["config"],
        logs=body["logs"],
        versions=body["versions"],
        writer=body["writer"],
        own=tuple(weights),
        path=folder,
    )


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
