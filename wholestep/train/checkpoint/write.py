"""Writing checkpoints: under a temporary name, synced to the disk, published by one rename."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wholestep import platforms
from wholestep.callbacks.list import CallbackList
from wholestep.callbacks.run import Position, Value
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.errors import CheckpointError, UsageError
from wholestep.nn.layers.table_encoding import HEADER
from wholestep.train.checkpoint.environment import run_environment
from wholestep.train.checkpoint.format import (
    MANIFEST,
    PLANS,
    TRAINING,
    WEIGHTS,
    WRITING,
    manifest_bytes,
    with_arrays,
    without_arrays,
)
from wholestep.train.checkpoint.identity import identity_of, plan_digest
from wholestep.train.checkpoint.lock import brief_lock
from wholestep.train.checkpoint.resume import Checkpoint
from wholestep.train.checkpoint.tensors import write_parts, write_tensors
from wholestep.train.history import TrainHistory
from wholestep.train.row_history import RowHistory

if TYPE_CHECKING:
    from wholestep.session import Session


def capture(
    session: Session,
    *,
    position: Position | None = None,
    history: TrainHistory | None = None,
    loader: Any = None,
    callbacks: CallbackList | None = None,
    config: Mapping[str, Any] | None = None,
    logs: Mapping[str, Value] | None = None,
    versions: Mapping[str, str] | None = None,
    writer: str = "",
    without: Container[str] = (),
) -> Checkpoint:
    """A copy of the run's state in memory, without some states; later steps do not change it."""
    keep, past = session.lasting_states, history or TrainHistory()
    numbers = session.state_dict(without=without)
    return Checkpoint(
        arrays={n: a for n, a in numbers.items() if n in keep or n not in session.state},
        position=position or Position(epoch=session.state.epoch),
        identity=identity_of(session, loader),
        history=TrainHistory(
            list(past.epochs), past.stopped_by, list(past.validations), RowHistory(list(past.per_row.epochs))
        ),
        data=loader.state_dict() if hasattr(loader, "state_dict") else {},
        callbacks={} if callbacks is None else with_arrays(*without_arrays(callbacks.state_dict())),
        config=dict(config or {}),
        logs=dict(logs or {}),
        versions=dict(run_environment(session) if versions is None else versions),
        writer=writer,
        own=tuple(n for n, is_own in keep.items() if is_own),
        plans=session.plans,
    )


def save_checkpoint(folder: str | PathLike[str], session: Session, **run: Any) -> Path:
    """Write a checkpoint of a session into the folder of its run; return the folder of the checkpoint.

    Args:
        folder: the folder of the run, e.g. "runs/digits"; the checkpoint becomes `runs/digits/step-00000120`.
        run: further parts of the checkpoint: `position, history, loader, callbacks, config, logs`.

    A folder that cannot be written, or a full disk, is a `CheckpointError`; earlier checkpoints are kept.  With several
    workers rank 0 writes; with divided states or layers all of them must call it, since each has a part.

    Example::

        path = ws.save_checkpoint("runs/digits", session)
        ws.load_checkpoint("runs/digits").restore(session)
    """
    group = session.group
    if group is None:
        return write_alone(Path(folder), capture(session, **run))
    from wholestep.train.checkpoint.sharded_write import save_among

    return save_among(group, Path(folder), session, **run)


def write_alone(folder: Path, taken: Checkpoint) -> Path:
    """Write one checkpoint under the lock of its folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with brief_lock(folder):
            return write_checkpoint(folder, taken)
    except CheckpointError:
        raise
    except OSError as error:
        raise write_error(folder, taken.step, error) from error


def write_checkpoint(folder: Path, taken: Checkpoint) -> Path:
    """Write a checkpoint that `capture` returned; on any thread."""
    temporary = folder / new_name(taken.step)
    try:
        temporary.mkdir(parents=True)
        return publish(temporary, taken, write_whole(temporary, taken))
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise write_error(folder, taken.step, error) from error
        raise


def write_error(folder: Path, step: int, why: object) -> CheckpointError:
    """The error about a checkpoint that could not be written."""
    return CheckpointError(
        f"the checkpoint of step {step} could not be written to {folder}: {why}. Those before it are untouched. Free "
        "some space, or name a folder that can be written."
    )


def new_name(step: int) -> str:
    """A new name for the temporary folder of a checkpoint."""
    return f"{WRITING}{step:08d}-{os.getpid()}-{secrets.token_hex(4)}"


def write_whole(temporary: Path, taken: Checkpoint) -> dict[str, str]:
    """Write the arrays of a checkpoint to files; the checksum of each."""
    _, extra = without_arrays(taken.callbacks)
    weights = {n: taken.arrays[n] for n in taken.own}
    training = {
        **{n: a for n, a in taken.arrays.items() if n not in weights},
        **extra,
        **taken.history.per_row.arrays(),
    }
    notes = {HEADER: str(taken.config[HEADER])} if HEADER in taken.config else {}
    return {
        WEIGHTS: write_tensors(temporary / WEIGHTS, weights, notes),
        TRAINING: write_tensors(temporary / TRAINING, training),
    }


_PUBLISHING = threading.Lock()  # several threads may look for a free name


def publish(temporary: Path, taken: Checkpoint, files: Mapping[str, str]) -> Path:
    """Write the manifest and rename the folder to its final name."""
    folder = temporary.parent
    write_parts(temporary / MANIFEST, [_manifest(taken, files)])
    platforms.sync_folder(temporary)
    with _PUBLISHING:
        _keep_plans(folder, taken.plans)
        target = _free_name(folder, taken.step)
        temporary.rename(target)
    platforms.sync_folder(folder)
    return target


def _free_name(folder: Path, step: int) -> Path:
    """A free name for a checkpoint; a second one of the same step gets a number, and does not replace the first."""
    name, attempt = folder / f"step-{step:08d}", 0
    while (target := name.with_name(f"{name.name}.{attempt}") if attempt else name).exists():
        attempt += 1
    return target


def _manifest(taken: Checkpoint, files: Mapping[str, str]) -> bytes:
    body = {
        "step": taken.step,
        "position": asdict(taken.position),
        "identity": taken.identity,
        "data": taken.data,
        "logs": taken.logs,
        "history": json.loads(taken.history.to_json(speeds=True)),
        "callbacks": without_arrays(taken.callbacks)[0],
        "config": taken.config,
        "versions": taken.versions,
        "writer": taken.writer,
        "files": dict(files),
    }
    try:
        return manifest_bytes(body)
    except TypeError as error:
        raise UsageError(
            f"a checkpoint's configuration must consist of JSON values: {error}; received {taken.config!r}."
        ) from None


def _keep_plans(folder: Path, ran: Sequence[Plan]) -> None:
    """Store the plans of a run by their fingerprints, each once."""
    plans = folder / PLANS
    for plan in ran:
        target = plans / f"{plan_digest(plan)[:16]}.plan"
        if target.exists():
            continue
        plans.mkdir(exist_ok=True)
        temporary = plans / f"{WRITING}{target.name}-{os.getpid()}"
        temporary.unlink(missing_ok=True)
        try:
            write_parts(temporary, [serialize.dump(plan)])
            temporary.rename(target)
        finally:
            temporary.unlink(missing_ok=True)
