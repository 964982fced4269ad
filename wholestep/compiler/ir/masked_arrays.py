"""What is no plain array, refused wherever arrays come in: masked arrays, sparse matrices, data sets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set

import numpy as np

from wholestep.errors import InputError, UsageError


def refuse_mask(value: object, what: str) -> None:
    """Raise where NumPy would drop a mask, see a sparse matrix as one object, or read a data set without end."""
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
    masked_arrays = sys.modules.get("numpy.ma")  # absent until someone has made a masked array; it loads in 2 ms
    if masked_arrays is None or not isinstance(value, masked_arrays.MaskedArray):
        return
    masked = int(masked_arrays.getmaskarray(value).sum())
    if masked:
        raise InputError(
            f"{what} received a masked array with {masked} masked values; a step does not support masks. Fill them: "
            "array.filled(0.0), or drop the rows."
        )


def is_sparse(value: object) -> bool:
    """A matrix of scipy.sparse, or one like it."""
    return hasattr(value, "toarray") and hasattr(value, "nnz")


_SEQUENCES = ("builtins", "array", "collections")  # range, bytes, deque: they end by themselves
# How arrays of other libraries are read.
_ARRAYS = ("__array__", "__array_interface__", "__dlpack__", "__arrow_c_array__", "__dataframe__", "detach")


def is_data_set(value: object) -> bool:
    """An object with `len` and `[i]` whose items are examples, as a torch Dataset.

    NumPy takes it for a sequence and reads items until one raises IndexError, which need not happen: `len` says how
    many there are.
    """
    if isinstance(value, np.ndarray | list | tuple | Mapping | Set | type) or type(value).__module__ in _SEQUENCES:
        return False
    has_items = hasattr(value, "__len__") and hasattr(value, "__getitem__")
    return has_items and not is_sparse(value) and not any(hasattr(value, name) for name in _ARRAYS)
