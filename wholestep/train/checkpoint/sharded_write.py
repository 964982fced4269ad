"""A checkpoint written by several workers: each writes its shards of sharded states, rank 0 everything else.

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
from typing import TYPE_CHECKING

from wholestep.compiler.ir.mesh import DATA
from wholestep.compiler.runtime.state.state_pieces import StatePiece
from wholestep.train.checkpoint.format import shard_file_name
from wholestep.train.checkpoint.resume import Checkpoint
from wholestep.train.checkpoint.shard_files import write_pieces
from wholestep.train.checkpoint.tensors import sync_folder
from wholestep.train.checkpoint.write import new_name, publish, write_error, write_whole

if TYPE_CHECKING:
    from wholestep.compiler.runtime.process_group import RankGroup

log = logging.getLogger("wholestep")


def meet(group: RankGroup, folder: Path, step: int) -> Path | None:
    """A new folder that all workers can write to; None if they do not share a file system."""
    name = new_name(step)
    if group.rank == 0:
        try:
            (folder / name).mkdir(parents=True)
        except OSError:
            name = ""  # it will write alone, fail, and tell why
    name = group.broadcast(name.encode()).decode()
    place = folder / name
    told = group.gather(b"%d" % (bool(name) and os.access(place, os.W_OK)))
    if all(one == b"1" for one in told):
        return place
    if group.rank == 0 and name:
        log.info("not all workers see %s: the first one gathers what they have divided, and writes it", folder)
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
        self._said: dict[str, object] = {}
        self._thread = Thread(target=self._write, args=(pieces,), name="wholestep-checkpoint")
        self._thread.start()

    def _write(self, pieces: Mapping[str, StatePiece]) -> None:
        try:
            sums = {} if self.taken is None else write_whole(self.place, self.taken)
            name = shard_file_name(self.group.rank, self.group.size)
            sums[name] = write_pieces(self.place / name, self._own(pieces))
            sync_folder(self.place)
            self._said = {"files": sums}
        except Exception as error:  # on a thread of its own, an error that nobody tells is lost
            self._said = {"error": str(error)}

    def _own(self, pieces: Mapping[str, StatePiece]) -> Mapping[str, StatePiece]:
        """The shards that this worker writes: those replicated along the data axis are written by its first worker."""
        if self.group.grid.place(DATA, self.group.rank) == 0:
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
        told = [json.loads(text) for text in self.group.gather(json.dumps(self._said).encode())]
        for rank, said in enumerate(told):
            if "files" not in said:
                raise write_error(self.place.parent, self.step, f"worker {rank}: {said.get('error')}")
        return {name: checksum for said in told for name, checksum in said["files"].items()}

    def publish(self, files: Mapping[str, str]) -> Path:
        """On rank 0: rename the folder to its final name."""
        assert self.taken is not None, "the first worker has taken it"
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
