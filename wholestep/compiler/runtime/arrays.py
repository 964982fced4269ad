"""Which arrays a tensor takes: the rules for dtypes at the boundary."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from wholestep.compiler.ir.masked_arrays import refuse_mask
from wholestep.compiler.ir.types import DTYPES, letter_of
from wholestep.errors import DTypeError, InputError

log = logging.getLogger("wholestep")

AnyArray = np.ndarray[Any, Any]
_rounding_said: set[tuple[str, str]] = set()


def as_array(value: object, what: str) -> AnyArray:
    """`value` as an array of numbers: arrays and whatever NumPy reads as one."""
    refuse_mask(value, what)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"{what} takes an array of numbers; received {type(value).__name__}, of which NumPy makes none: {error}. "
            "Give rows of one length, of numbers."
        ) from None
    if letter_of(array.dtype) not in "fiub":
        raise DTypeError(
            f"{what} takes an array of numbers; received {type(value).__name__} of dtype {array.dtype}. "
            "Pass a NumPy array (or None of this input at all)."
            if letter_of(array.dtype) != "O"
            else f"{what} takes an array of numbers; received {type(value).__name__}, which NumPy reads as objects. "
            "Pass a NumPy array."
        )
    return array


def check_dtype(array: AnyArray, wanted: np.dtype[Any], what: str) -> None:
    """May the array be converted to `wanted`?  Floats may be rounded (said once); integers must fit."""
    if array.dtype == wanted:
        return
    kind, target = letter_of(array.dtype), letter_of(wanted)
    if target == "f" and array.dtype.name in DTYPES and kind == "f":
        _say_rounding(array.dtype, wanted, what)
    elif target in "iu" and kind in "iu":
        _check_fits(array, wanted, what)
    else:
        raise DTypeError(f"{what} takes {wanted}; received {array.dtype}. Convert it: array.astype({wanted.name!r}).")


def _say_rounding(given: np.dtype[Any], wanted: np.dtype[Any], what: str) -> None:
    if not np.can_cast(given, wanted) and (what, given.name) not in _rounding_said:
        _rounding_said.add((what, given.name))
        log.warning("%s: %s is rounded to %s (said once). Pass %s to avoid the copy.", what, given, wanted, wanted)


def _check_fits(array: AnyArray, wanted: np.dtype[Any], what: str) -> None:
    if array.size == 0 or np.can_cast(array.dtype, wanted):
        return
    info = np.iinfo(wanted)
    low, high = int(array.min()), int(array.max())
    if low < info.min or high > info.max:
        raise InputError(
            f"{what} takes {wanted}, whose values lie in {info.min}..{info.max}; received {array.dtype} with values in "
            f"{low}..{high}. Give the tensor a wider dtype, or correct the values."
        )
