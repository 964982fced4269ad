"""Read arrays by name from published weights: safetensors files, sharded ones, and torch's format."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wholestep.errors import CheckpointError, UsageError

Array = np.ndarray[Any, Any]

BRAIN_FLOAT = "BF16"
READABLE = frozenset(
    {"F64", "F32", "F16", BRAIN_FLOAT, "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}
)  # fmt: skip
TORCH = frozenset({".pt", ".pth", ".bin", ".ckpt"})
INDEX = ".index.json"  # suffix of the index of a sharded file
# Files to look for in a folder, in this order.
IN_FOLDER = (
    *("model.safetensors.index.json", "model.safetensors"),
    *("pytorch_model.bin.index.json", "pytorch_model.bin"),
)


def read_weights(path: Path) -> dict[str, Array]:
    """The arrays of a weights file, of all shards of an index, or of a folder; bfloat16 is converted to float32."""
    if path.is_dir():
        path = weights_in(path)
    if path.name.endswith(INDEX):
        return _read_shards(path)
    return _read_torch(path) if is_torch_file(path) else _read_safetensors(path)


def is_torch_file(path: Path) -> bool:
    """Was the file written by torch?  Decided by its first bytes, or by its name if the file does not exist."""
    try:
        with path.open("rb") as file:
            head = file.read(9)
    except OSError:
        return path.suffix in TORCH
    is_safetensors = head[8:] == b"{"  # the bytes after the length of the header
    return not is_safetensors and (path.suffix in TORCH or head.startswith((b"PK\x03\x04", b"\x80")))


def weights_in(folder: Path) -> Path:
    """The weights file, or the index of its shards, in a folder."""
    for name in IN_FOLDER:
        if (folder / name).is_file():
            return folder / name
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    what = ", ".join(p.name for p in files) or "none"
    raise CheckpointError(
        f"{folder} has no {', '.join(IN_FOLDER)}; of other safetensors files there are: {what}; nor checkpoints "
        "(step-*). Name a file."
    )


def _read_shards(index: Path) -> dict[str, Array]:
    """All arrays that an index lists, from the files it names."""
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        places = {str(name): str(file) for name, file in listed.items()}
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {index}.") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} has no weight_map of shards: {error!r}. Nothing was loaded.") from error
    arrays: dict[str, Array] = {}
    for file in dict.fromkeys(places.values()):
        path = (index.parent / file).resolve()
        if not path.is_relative_to(index.parent.resolve()):
            raise CheckpointError(f"{index} names {file!r}, which is outside of its folder. Nothing was loaded.")
        if not path.is_file():
            raise CheckpointError(f"{index} names the shard {file!r}, which is not there. Nothing was loaded.")
        shard = read_weights(path)
        missing = [name for name, place in places.items() if place == file and name not in shard]
        if missing:
            raise CheckpointError(f"{index} puts {missing[0]!r} into {file!r}, which lacks it. Nothing was loaded.")
        arrays |= {name: array for name, array in shard.items() if places.get(name) == file}
    return arrays


# -- torch's own -------------------------------------------------------------------------------------------------


def _read_torch(path: Path) -> dict[str, Array]:
    """Read a `state_dict` saved by torch; nothing in the file is executed."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}.")
    try:
        import torch
    except ImportError:
        raise UsageError(
            f"{path} is a file of torch's, and only torch reads it: pip install torch. Or save it as safetensors where "
            "torch is: safetensors.torch.save_file(model.state_dict(), 'model.safetensors')."
        ) from None
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path) or None)
    except Exception as error:
        raise CheckpointError(
            f"{path} is not a file of tensors alone that torch reads with weights_only=True: {error}. Nothing was "
            "loaded. Save the state_dict of the model, not the model itself."
        ) from error
    return {name: _of_torch(value) for name, value in _tensors(loaded, path).items()}


def _tensors(loaded: object, path: Path) -> dict[str, Any]:
    """The tensors by name; of a checkpoint with other content, the tensors in its `state_dict` or `model`."""
    for inner in ("state_dict", "model", "model_state_dict"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(inner), Mapping):
            loaded = loaded[inner]
    if not isinstance(loaded, Mapping) or not loaded:
        raise CheckpointError(f"{path} holds a {type(loaded).__name__}, not tensors by name. Nothing was loaded.")
    tensors = {str(name): value for name, value in loaded.items() if hasattr(value, "detach")}
    if not tensors:
        raise CheckpointError(f"{path} holds no tensors by name: {', '.join(map(str, list(loaded)[:5]))}, ...")
    return tensors


def _of_torch(value: Any) -> Array:
    tensor = value.detach()
    array: Array = (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).contiguous().numpy()
    return array


# -- safetensors -------------------------------------------------------------------------------------------------


def _read_safetensors(path: Path) -> dict[str, Array]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            strange = [name for name, kind in kinds.items() if kind not in READABLE]
            if strange:
                raise CheckpointError(
                    f"{path} holds {strange[0]!r} as {kinds[strange[0]]}, which is not read here. Nothing was loaded. "
                    f"Save it as one of {', '.join(sorted(READABLE))}."
                )
            arrays = {name: file.get_tensor(name) for name, kind in kinds.items() if kind != BRAIN_FLOAT}
        halves = [name for name, kind in kinds.items() if kind == BRAIN_FLOAT]
        return {**arrays, **_brain_floats(path, halves)} if halves else arrays
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}.") from None
    except CheckpointError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, LookupError) as error:
        raise CheckpointError(f"{path} is not a complete safetensors file: {error}. Nothing was loaded.") from error


def _brain_floats(path: Path, names: list[str]) -> dict[str, Array]:
    """Read bfloat16 as the upper half of a float32.  The file is known to be complete: safetensors has opened it."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header, arrays = json.loads(file.read(length)), {}
        for name in names:
            first, last = header[name]["data_offsets"]
            file.seek(8 + length + first)
            upper = np.frombuffer(file.read(last - first), "<u2").astype(np.uint32) << 16
            arrays[name] = upper.view(np.float32).reshape(header[name]["shape"])
    return arrays
