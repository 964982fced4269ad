"""Rejects values that are not plain arrays wherever users pass arrays: masked arrays, sparse matrices, data sets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set

import numpy as np

from wholestep.errors import InputError, UsageError


def refuse_mask(value: object, what: str) -> None:
    """Raise for a masked array (NumPy drops the mask), a sparse matrix (NumPy sees one object) or a data set (NumPy may
    read it without end)."""
    if type(value) is np.ndarray:
        return
    if is_sparse(value):
        shape = getattr(value, "shape", None)
        raise InputError(
            f"{what} received a sparse matrix of shape {shape} ({type(value).__name__}); a step takes dense arrays. "
            "Give x.toarray()."
        )
    if is_data_set(value):
        raise UsageError(
            f"{what} received a data set, {type(value).__name__}, where an array is expected. Give the data set alone, "
            "without labels: its examples have their own."
        )
    # numpy.ma takes 2 ms to load; if it is not loaded, no masked array exists.
    masked_arrays = sys.modules.get("numpy.ma")
    if masked_arrays is None or not isinstance(value, masked_arrays.MaskedArray):
        return
    masked = int(masked_arrays.getmaskarray(value).sum())
    if masked:
        raise InputError(
            f"{what} received a masked array with {masked} masked values; a step does not support masks. Fill them: "
            "array.filled(0.0), or drop the rows."
        )


def is_sparse(value: object) -> bool:
    """Is the value a matrix of scipy.sparse, or of a class like these?"""
    return hasattr(value, "toarray") and hasattr(value, "nnz")


_SEQUENCES = ("builtins", "array", "collections")  # modules of range, bytes, array and deque, which have an end
# Attributes by which NumPy reads arrays of other libraries.
_ARRAYS = ("__array__", "__array_interface__", "__dlpack__", "__arrow_c_array__", "__dataframe__", "detach")


def is_data_set(value: object) -> bool:
    """Has the object `len` and `[i]`, and are its items examples, as in a torch Dataset?

    NumPy treats it as a sequence and reads items until one raises IndexError, which need not happen, although `len`
    gives their number.
    """
    if isinstance(value, np.ndarray | list | tuple | Mapping | Set | type) or type(value).__module__ in _SEQUENCES:
        return False
    has_items = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return has_items and not is_sparse(value) and not any(hasattr(value, name) for name in _ARRAYS)
