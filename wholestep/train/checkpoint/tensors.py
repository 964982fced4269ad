"""Safetensors files: streamed to the disk with a SHA-256, synced before they are published, verified when read.

The format: eight bytes with the length of a header, the header as JSON (name -> dtype, shape, bytes from .. to), the
arrays one after the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wholestep.errors import CheckpointError

Array = np.ndarray[Any, Any]

# The names of NumPy's dtypes in safetensors files.
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def write_tensors(path: Path, arrays: Mapping[str, Array], notes: Mapping[str, str] | None = None) -> str:
    """Write arrays, and notes into the header, to a new file, wait for the disk, and return the file's SHA-256."""
    ready = {name: np.ascontiguousarray(a).reshape(np.shape(a)) for name, a in arrays.items()}
    # largest item size first, so that every array is aligned
    order = sorted(ready, key=lambda name: (-ready[name].itemsize, name))
    # Viewed as bytes, because Python's buffer protocol has no bfloat16.
    parts = [ready[name].reshape(-1).view(np.uint8).data if ready[name].size else b"" for name in order]
    return write_parts(path, [_header(ready, order, notes or {}), *parts])


def _header(arrays: Mapping[str, Array], order: list[str], notes: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **notes}}
    end = 0
    for name in order:
        a = arrays[name]
        header[name] = {"dtype": DTYPES[a.dtype.name], "shape": list(a.shape), "data_offsets": [end, end + a.nbytes]}
        end += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_parts(path: Path, parts: list[Any]) -> str:
    """Write bytes to a new file, wait until they are on the disk, and return their SHA-256."""
    digest = hashlib.sha256()
    with path.open("xb") as file:
        for part in parts:
            file.write(part)
            digest.update(part)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_checked_arrays(folder: Path, name: str, wanted: str) -> dict[str, Array]:
    """The arrays of a checkpoint's file, after its checksum was verified."""
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


def read_notes(path: Path) -> dict[str, str]:
    """The metadata in the header of a file."""
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return dict(file.metadata() or {})
