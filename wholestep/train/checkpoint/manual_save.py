"""`ws.save_checkpoint` with several workers: rank 0 writes, and all ranks contribute their shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from wholestep.errors import CheckpointError, WorkerError
from wholestep.train.checkpoint.write import capture, write_alone

if TYPE_CHECKING:
    from wholestep.compiler.runtime.process_group import RankGroup
    from wholestep.session import Session

WRITTEN, FAILED = b"+", b"-"  # before what rank 0 tells


def save_among(group: RankGroup, folder: Path, session: Session, **run: Any) -> Path:
    """Write a checkpoint together; returns its folder on every rank."""
    if not any(map(session.state.is_divided, session.lasting_states)):  # nobody needs the others
        if group.rank == 0:
            return write_alone(folder, capture(session, **run))
        return folder / f"step-{session.state.step:08d}"
    try:
        taken = capture(session, **run)  # all gather
        told = group.broadcast(_write_gathered(folder, taken) if group.rank == 0 else b"")
    except WorkerError as error:
        raise WorkerError(
            f"ws.save_checkpoint: {error} All workers call it where they have divided states or layers, since each has "
            "a part of them.",
            error.rank,
            error.step,
        ) from error
    if told.startswith(FAILED):
        raise CheckpointError(told[1:].decode())
    return Path(told[1:].decode())


def _write_gathered(folder: Path, taken: Any) -> bytes:
    try:
        return WRITTEN + str(write_alone(folder, taken)).encode()
    except CheckpointError as error:
        return FAILED + str(error).encode()
