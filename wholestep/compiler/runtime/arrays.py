"""Conversion and dtype checks of arrays that users pass as inputs or states."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from wholestep.compiler.ir.masked_arrays import refuse_mask
from wholestep.compiler.ir.types import DTYPES, letter_of
from wholestep.errors import DTypeError, InputError

log = logging.getLogger("wholestep")

AnyArray = np.ndarray[Any, Any]
_logged_roundings: set[tuple[str, str]] = set()


def from_dlpack(value: Any) -> Any:
    """A view of an object that exports its memory by DLPack alone; any other object is returned unchanged.

    A tensor in GPU memory is an InputError: its own library must copy it to the host.
    """
    if isinstance(value, np.ndarray) or hasattr(value, "__array__") or not hasattr(value, "__dlpack__"):
        return value
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        raise InputError(
            f"a {type(value).__name__} cannot be read by DLPack: {error}. Give an array in the host's memory, of "
            "numbers that NumPy has."
        ) from None


def as_array(value: object, subject: str) -> AnyArray:
    """`value` as a numeric array: an array, or anything that NumPy converts to one."""
    refuse_mask(value, subject)
    try:
        array = np.asarray(from_dlpack(value))
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"{subject} takes an array of numbers; received {type(value).__name__}, which NumPy cannot convert: "
            f"{error}. Pass numbers in rows of equal length."
        ) from None
    if letter_of(array.dtype) not in "fiub":
        raise DTypeError(
            f"{subject} takes an array of numbers; received {type(value).__name__} of dtype {array.dtype}. "
            "Pass a NumPy array of numbers (or omit this input)."
            if letter_of(array.dtype) != "O"
            else f"{subject} takes an array of numbers; received {type(value).__name__}, which NumPy reads as objects. "
            "Pass a NumPy array."
        )
    return array


def check_dtype(array: AnyArray, expected: np.dtype[Any], subject: str) -> None:
    """Raise unless the array may be converted to `expected`: floats may be rounded (logged once); integers must fit."""
    if array.dtype == expected:
        return
    kind, target = letter_of(array.dtype), letter_of(expected)
    if target == "f" and array.dtype.name in DTYPES and kind == "f":
        _log_rounding(array.dtype, expected, subject)
    elif target in "iu" and kind in "iu":
        _check_fits(array, expected, subject)
    else:
        raise DTypeError(
            f"{subject} takes {expected}; received {array.dtype}. Convert it: array.astype({expected.name!r})."
        )


def _log_rounding(received: np.dtype[Any], expected: np.dtype[Any], subject: str) -> None:
    if not np.can_cast(received, expected) and (subject, received.name) not in _logged_roundings:
        _logged_roundings.add((subject, received.name))
        log.warning(
            "%s: %s is rounded to %s (reported once). Pass %s to avoid the copy.", subject, received, expected, expected
        )


def _check_fits(array: AnyArray, expected: np.dtype[Any], subject: str) -> None:
    if array.size == 0 or np.can_cast(array.dtype, expected):
        return
    info = np.iinfo(expected)
    low, high = int(array.min()), int(array.max())
    if low < info.min or high > info.max:
        raise InputError(
            f"{subject} takes {expected}, whose values are in {info.min}..{info.max}; received {array.dtype} "
            f"with values in {low}..{high}. Give the tensor a wider dtype, or correct the values."
        )
