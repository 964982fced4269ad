"""Shard files: the shards of sharded states that one worker has, each with its position in the full array."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from wholestep.compiler.runtime.state.state_pieces import StatePiece, join_pieces
from wholestep.errors import CheckpointError
from wholestep.train.checkpoint.format import PLACES
from wholestep.train.checkpoint.tensors import Array, read_checked_arrays, read_notes, write_tensors


def write_pieces(path: Path, pieces: Mapping[str, StatePiece]) -> str:
    """Write a worker's shards to a new file; returns the file's SHA-256."""
    places = {name: piece.place() for name, piece in pieces.items()}
    return write_tensors(path, {name: piece.array for name, piece in pieces.items()}, {PLACES: json.dumps(places)})


def read_whole(folder: Path, files: Mapping[str, str]) -> dict[str, Array]:
    """The full arrays, by name, assembled from the shard files of all workers; checksums are verified."""
    found: dict[str, list[StatePiece]] = {}
    for file, wanted in files.items():
        arrays = read_checked_arrays(folder, file, wanted)
        try:
            places = json.loads(read_notes(folder / file)[PLACES])
            if places.keys() != arrays.keys():
                raise ValueError("it has places of other arrays")
            for name, array in arrays.items():
                found.setdefault(name, []).append(StatePiece.at(array, places[name]))
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise CheckpointError(f"the checkpoint {folder} is not one of ours: {error} in {file}.") from None
    return {name: _whole(folder, name, pieces) for name, pieces in found.items()}


def _whole(folder: Path, name: str, pieces: list[StatePiece]) -> Array:
    try:
        return join_pieces(pieces)
    except ValueError as error:
        raise CheckpointError(f"the checkpoint {folder} is not one of ours: the parts of {name!r}: {error}.") from None
