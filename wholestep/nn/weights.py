"""A model's numbers in files and from other libraries: safetensors and `state_dict`s, by name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.errors import CheckpointError, ShapeError, UnknownNameError

if TYPE_CHECKING:
    from wholestep.nn.module import Module

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LoadReport:
    """What was loaded, and what did not match: names the model lacks, names the file lacks."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()  # of the model, not in the file: they keep their numbers
    unexpected: tuple[str, ...] = ()  # in the file, not of the model

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} arrays loaded"]
        lines += [f"missing in the file, left as they were: {', '.join(self.missing)}"] if self.missing else []
        lines += [f"in the file but not in the model: {', '.join(self.unexpected)}"] if self.unexpected else []
        return "\n".join(lines)


def load_state_dict(model: Module, values: Mapping[str, object], strict: bool) -> LoadReport:
    """Give a model the arrays of a mapping; all are checked before the first is written."""
    from wholestep.session.model import state_with_numbers

    first = {owned: name for name, owned in model.named_arrays().items()}
    names = {name: first[owned] for name, owned in model.all_names()}  # any name -> the name it is stored under
    unused = {f"{path}.{name}" if path else name for path, m in model.named_modules() for name in m.unused_names}
    found = {names[name]: _array(value) for name, value in values.items() if name in names}
    report = LoadReport(
        tuple(found),
        tuple(name for name in first.values() if name not in found),
        tuple(name for name in values if name not in names and name not in unused),
    )
    if strict and (report.missing or report.unexpected):
        raise UnknownNameError(
            f"the names do not match the model; nothing was loaded. {str(report)[len(str(len(found))) :]}\n"
            "Pass strict=False to load what matches."
        )
    arrays = model.named_arrays()
    for name, array in found.items():
        if array.shape != arrays[name].shape:
            raise ShapeError(
                f"{name!r} has shape {arrays[name].shape} in the model; received {array.shape}. Nothing was loaded."
            )
    state = state_with_numbers(model)
    for name, array in found.items():
        state.set(name, array.astype(arrays[name].dtype.numpy))
    return report


def _array(value: object) -> Array:
    """NumPy's view of an array or of a torch tensor."""
    found: Any = value
    if hasattr(found, "detach"):
        found = found.detach().cpu()
        found = found.float() if "bfloat16" in str(found.dtype) else found  # NumPy has no such type
    return np.asarray(found)


def save(model: Module, path: str | PathLike[str]) -> None:
    """Write a model's numbers as safetensors: to a temporary file, then renamed."""
    from safetensors.numpy import save_file

    target = Path(path)
    arrays = {name: np.ascontiguousarray(a) for name, a in model.state_dict().items()}
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(handle)
        try:
            save_file(arrays, temporary, metadata={"format": "pt"})
            with Path(temporary).open("rb+") as file:
                os.fsync(file.fileno())
            Path(temporary).replace(target)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"the weights could not be written to {target}: {error}") from error


def load(model: Module, path: str | PathLike[str], strict: bool) -> LoadReport:
    """Give a model the arrays of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        values = load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file: {error}. Nothing was loaded.") from error
    return load_state_dict(model, values, strict)
