"""Save and load a model's weights by name: safetensors files and `state_dict`s of other libraries."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.ir.types import letter_of
from wholestep.compiler.runtime.arrays import as_array
from wholestep.errors import CheckpointError, DTypeError, InputError, ShapeError, UnknownNameError, UsageError
from wholestep.nn.layers.table_encoding import ATTRIBUTE, HEADER, encoding_metadata, keep_encoding
from wholestep.nn.state.state_dict_diff import SHOWN, LoadReport, OtherShape, Rename, hint_for, rename_names
from wholestep.nn.state.weight_files import is_torch_file, read_weights

if TYPE_CHECKING:
    from wholestep.data.tables.encoding import Encoding
    from wholestep.nn.module.module import Module

Array = np.ndarray[Any, Any]


def load_state_dict(model: Module, values: Any, strict: bool, rename: Rename | None = None) -> LoadReport:
    """Load the arrays of a mapping into a model; all are checked before the first one is written."""
    from wholestep.steps.states import state_with_numbers

    report, received = _match(model, by_name(values, rename), hinting=rename is None)
    _refuse(report, strict)
    arrays = model.named_arrays()
    fitting = {name: _convert(received[name], arrays[name].dtype.numpy, name) for name in report.loaded}
    state = state_with_numbers(model, overwritten=fitting)
    for name, array in fitting.items():
        state.replace(name, array)
    return report


def by_name(values: Any, rename: Rename | None) -> dict[str, object]:
    """The given arrays under their new names."""
    if not isinstance(values, Mapping):
        fix = f"a file is read by model.load({values!r})" if isinstance(values, str | PathLike) else "give a dict"
        raise UsageError(f"load_state_dict takes arrays by name; received {type(values).__name__}: {fix}.")
    strange = [name for name in values if not isinstance(name, str)]
    if strange:
        raise UsageError(f"load_state_dict takes arrays by name; received {strange[0]!r} as a name.")
    return {name: values[old] for name, old in rename_names(values, rename).items()}


def _match(model: Module, values: Mapping[str, object], hinting: bool) -> tuple[LoadReport, dict[str, Array]]:
    """The arrays that match the model, by the model's names of them, and a report of the arrays that do not match."""
    arrays = model.named_arrays()
    first = {owned: name for name, owned in arrays.items()}
    # every name -> the name under which the array is stored
    names = {name: first[owned] for name, owned in model.all_names()}
    unused = {f"{path}.{name}" if path else name for path, m in model.named_modules() for name in m.unused_names}
    received = {names[name]: _array(value, name) for name, value in values.items() if name in names}
    missing = tuple(name for name in arrays if name not in received)
    unexpected = tuple(name for name in values if name not in names and name not in unused)
    shapes = (OtherShape(name, array.shape, arrays[name].shape) for name, array in received.items())
    other = tuple(differing for differing in shapes if differing.in_file != differing.in_model)
    loaded = tuple(name for name in received if name not in {differing.name for differing in other})
    hint = hint_for(missing, unexpected, list(values), {*names, *unused}) if hinting else ""
    return LoadReport(loaded, missing, unexpected, other, hint), received


def _refuse(report: LoadReport, strict: bool) -> None:
    """Raise an error if anything differs; without `strict`, only if shapes differ or nothing is left to load."""
    by_name, by_shape = bool(report.missing or report.unexpected), bool(report.other_shape)
    if not ((by_name or by_shape) if strict else (by_shape and not report.loaded)):
        return
    what = " and ".join(["names"] * by_name + ["shapes"] * by_shape)
    lines = [line.replace(", left as they were", "", 1) for line in report.differences(SHOWN)]
    if strict and (report.loaded or report.hint):
        lines.append("Pass strict=False to load what matches.")
    elif not report.hint:
        lines.append("Give arrays of the model's names and shapes; rename= gives them other names.")
    kind = UnknownNameError if strict and by_name else ShapeError
    raise kind("\n".join([f"the {what} do not match the model; nothing was loaded.", *lines]))


def _convert(array: Array, wanted: np.dtype[Any], name: str) -> Array:
    """The array in the model's dtype: floats may be rounded, any other change of values is an error."""
    floats = letter_of(wanted) == "f"
    if letter_of(array.dtype) == "f" and not floats:
        raise DTypeError(f"{name!r} is {wanted} in the model; received {array.dtype}. Nothing was loaded.")
    if array.dtype == wanted:
        return array
    with np.errstate(over="ignore"):
        converted = array.astype(wanted, copy=False)
    preserved = np.isfinite(converted) | ~np.isfinite(array) if floats else converted == array
    if not np.all(preserved):
        at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(preserved))[0])
        raise InputError(
            f"{name!r} is {wanted} in the model, which cannot hold {np.atleast_1d(array)[at]!s} at {list(at)}. Nothing "
            "was loaded. Correct the value, or give the model a wider dtype."
        )
    return converted


def _array(value: object, name: str) -> Array:
    """A NumPy view of an array or of a torch tensor."""
    array: Any = value
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = array.float() if "bfloat16" in str(array.dtype) else array  # NumPy has no bfloat16
    return as_array(array, f"{name!r}")


def save(model: Module, path: str | PathLike[str]) -> None:
    """Write a model's arrays as safetensors."""
    save_arrays(model.state_dict(), path, encoding_metadata(model))


def save_arrays(
    values: Mapping[str, Array], path: str | PathLike[str], header: Mapping[str, str] | None = None
) -> None:
    """Write arrays by name as safetensors: to a temporary file, then renamed."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    target = Path(path)
    arrays = {
        name: np.ascontiguousarray(a).reshape(a.shape) for name, a in values.items()
    }  # reshape, because scalars were stored as arrays with one axis
    try:
        with temporary_for(target) as temporary:
            save_file(arrays, temporary, metadata={"format": "pt", **(header or {})})
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"the weights could not be written to {target}: {error}. What was there before is untouched. Free some "
            "space, or name a folder that can be written."
        ) from error


@contextmanager
def temporary_for(target: Path) -> Iterator[Path]:
    """A temporary file for the block to write; it then replaces the target."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def load(model: Module, path: str | PathLike[str], strict: bool, rename: Rename | None = None) -> LoadReport:
    """Load a weights file, its shards or a folder into a model, with the table encoding stored in the file."""
    values, encoding = read_weights(Path(path)), _read_encoding(Path(path))
    before = {name: dict(part) if name == "_owned" else part for name, part in model.__dict__.items()}
    if encoding is not None and not model.named_arrays():
        keep_encoding(model, encoding)  # this builds the model's layers for these columns
    try:
        report = load_state_dict(model, values, strict, rename)
    except Exception:
        model.__dict__.clear()
        model.__dict__.update(before)
        raise
    if encoding is not None:
        model.__dict__[ATTRIBUTE] = encoding
    return report


def read_header(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            return dict(file.metadata() or {})
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a complete safetensors file: {error}. Nothing was loaded.") from error


def _read_encoding(path: Path) -> Encoding | None:
    if path.is_dir() or path.suffix == ".json" or is_torch_file(path):
        return None
    text = read_header(path).get(HEADER)
    if text is None:
        return None
    from wholestep.data.tables.encoding import Encoding

    return Encoding.from_json(text, path)
