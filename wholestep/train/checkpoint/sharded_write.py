"""Checkpoints of several workers: each writes its shards of sharded states, rank 0 everything else.

Each worker writes on a background thread while training continues.  These threads do not communicate, since only one
thread at a time may use MPI: at safe points the workers agree that all have finished, and rank 0 publishes the folder.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree
from threading import Thread
from typing import TYPE_CHECKING, Any

from wholestep import platforms
from wholestep.compiler.ir.mesh import DATA
from wholestep.compiler.runtime.state.state_pieces import StatePiece, join_pieces
from wholestep.errors import CheckpointError, WorkerError
from wholestep.train.checkpoint.format import PLACES, shard_file_name
from wholestep.train.checkpoint.resume import Checkpoint
from wholestep.train.checkpoint.tensors import Array, read_checked_arrays, read_notes, write_tensors
from wholestep.train.checkpoint.write import capture, new_name, publish, write_alone, write_error, write_whole

if TYPE_CHECKING:
    from wholestep.compiler.runtime.process_group import RankGroup
    from wholestep.session import Session

log = logging.getLogger("wholestep")

WRITTEN, FAILED = b"+", b"-"  # the first byte of what rank 0 broadcasts


def meet(group: RankGroup, folder: Path, step: int) -> Path | None:
    """Agree on a new folder that all workers can write to; None if they do not share a file system."""
    name = new_name(step)
    if group.rank == 0:
        try:
            (folder / name).mkdir(parents=True)
        except OSError:
            name = ""  # rank 0 will write everything, and report the error
    name = group.broadcast(name.encode()).decode()
    place = folder / name
    replies = group.gather(b"%d" % (bool(name) and os.access(place, os.W_OK)))
    if all(one == b"1" for one in replies):
        return place
    if group.rank == 0 and name:
        log.info("not all workers see %s: rank 0 gathers their shards and writes them", folder)
        rmtree(place, ignore_errors=True)
    return None


class ShardedWrite:
    """A checkpoint that is being written in the background.

    Args:
        place: the folder that `meet` returned.
        pieces: this worker's shards.
        taken: everything else, on rank 0; None on other ranks.
    """

    def __init__(
        self, group: RankGroup, place: Path, step: int, pieces: Mapping[str, StatePiece], taken: Checkpoint | None
    ) -> None:
        self.group, self.place, self.step, self.taken = group, place, step, taken
        self._result: dict[str, object] = {}
        self._thread = Thread(target=self._write, args=(pieces,), name="wholestep-checkpoint")
        self._thread.start()

    def _write(self, pieces: Mapping[str, StatePiece]) -> None:
        try:
            sums = {} if self.taken is None else write_whole(self.place, self.taken)
            name = shard_file_name(self.group.rank, self.group.size)
            sums[name] = write_pieces(self.place / name, self._own(pieces))
            platforms.sync_folder(self.place)
            self._result = {"files": sums}
        except Exception as error:  # an error on a background thread is lost unless it is reported
            self._result = {"error": str(error)}

    def _own(self, pieces: Mapping[str, StatePiece]) -> Mapping[str, StatePiece]:
        """The shards that this worker writes; shards replicated along the data axis are written by its first worker."""
        if self.group.grid.coordinate(DATA, self.group.rank) == 0:
            return pieces
        return {name: piece for name, piece in pieces.items() if not piece.is_part_of_a_layer}

    @property
    def is_written(self) -> bool:
        """Has this worker finished writing, successfully or not?"""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Block until this worker has finished writing."""
        self._thread.join()

    def settle(self) -> dict[str, str]:
        """Collective: the files of all workers and their checksums; CheckpointError if a worker could not write."""
        self.wait()
        replies = [json.loads(text) for text in self.group.gather(json.dumps(self._result).encode())]
        for rank, reply in enumerate(replies):
            if "files" not in reply:
                raise write_error(self.place.parent, self.step, f"worker {rank}: {reply.get('error')}")
        return {name: checksum for reply in replies for name, checksum in reply["files"].items()}

    def publish(self, files: Mapping[str, str]) -> Path:
        """Rename the folder to its final name; called on rank 0."""
        assert self.taken is not None, "rank 0 captured it"
        try:
            return publish(self.place, self.taken, files)
        except Exception as error:
            self.remove()
            if isinstance(error, OSError):
                raise write_error(self.place.parent, self.step, error) from error
            raise

    def remove(self) -> None:
        """Delete the folder of a checkpoint that will not be published."""
        rmtree(self.place, ignore_errors=True)


# -- `ws.save_checkpoint` --------------------------------------------------------------------------------------------


def save_among(group: RankGroup, folder: Path, session: Session, **run: Any) -> Path:
    """Write a checkpoint together; returns its folder on every rank."""
    if not any(map(session.state.is_divided, session.lasting_states)):  # no state is sharded
        if group.rank == 0:
            return write_alone(folder, capture(session, **run))
        return folder / f"step-{session.state.step:08d}"
    try:
        taken = capture(session, **run)  # collective: gathers sharded states
        message = group.broadcast(_write_gathered(folder, taken) if group.rank == 0 else b"")
    except WorkerError as error:
        raise WorkerError(
            f"ws.save_checkpoint: {error} With divided states or layers all workers must call it, since each has a "
            "part of them.",
            error.rank,
            error.step,
        ) from error
    if message.startswith(FAILED):
        raise CheckpointError(message[1:].decode())
    return Path(message[1:].decode())


def _write_gathered(folder: Path, taken: Any) -> bytes:
    try:
        return WRITTEN + str(write_alone(folder, taken)).encode()
    except CheckpointError as error:
        return FAILED + str(error).encode()


# -- shard files: the shards of one worker, each with its position in the full array ----------------------------


def write_pieces(path: Path, pieces: Mapping[str, StatePiece]) -> str:
    """Write a worker's shards to a new file; returns the file's SHA-256."""
    places = {name: piece.place() for name, piece in pieces.items()}
    return write_tensors(path, {name: piece.array for name, piece in pieces.items()}, {PLACES: json.dumps(places)})


def read_whole(folder: Path, files: Mapping[str, str]) -> dict[str, Array]:
    """The full arrays, by name, assembled from the shard files of all workers; checksums are verified."""
    pieces_by_name: dict[str, list[StatePiece]] = {}
    for file, wanted in files.items():
        arrays = read_checked_arrays(folder, file, wanted)
        try:
            places = json.loads(read_notes(folder / file)[PLACES])
            if places.keys() != arrays.keys():
                raise ValueError("it has positions of other arrays")
            for name, array in arrays.items():
                pieces_by_name.setdefault(name, []).append(StatePiece.at(array, places[name]))
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise CheckpointError(f"the checkpoint {folder} was not written by Wholestep: {error} in {file}.") from None
    return {name: _whole(folder, name, pieces) for name, pieces in pieces_by_name.items()}


def _whole(folder: Path, name: str, pieces: list[StatePiece]) -> Array:
    try:
        return join_pieces(pieces)
    except ValueError as error:
        raise CheckpointError(
            f"the checkpoint {folder} was not written by Wholestep: the parts of {name!r}: {error}."
        ) from None
