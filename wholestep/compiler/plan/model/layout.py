"""Memory layouts: the bytes of a stored tensor, and packing between a user's array and its stored form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from wholestep.compiler.ir.types import Extent, TensorType, evaluate
from wholestep.compiler.plan.model.kernel import Layout

# Bytes: every buffer starts at a multiple of it, and its size is a multiple of it.  Not a field of a target, since
# offsets are part of every plan and states move between devices in their stored form.  A backend may align to more.
ALIGNMENT = 64

Flat = np.ndarray[Any, Any]


def layout_bytes(type: TensorType, layout: Layout, sizes: Mapping[str, int]) -> int:
    """The bytes of a buffer, padding included: the last block has all its columns, the size is a multiple of 64."""
    shape = [evaluate(e, sizes) for e in type.shape]
    return align_up(prod(stored_shape(shape, layout)) * type.dtype.size)


def align_up(size: int) -> int:
    """`size` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def stored_shape(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """The shape of the stored array: the tensor's own, or (..., blocks, rows, columns of a block)."""
    if layout == Layout.ROWS:
        return tuple(shape)
    assert len(shape) >= 2, f"blocks need rows and columns; received shape {tuple(shape)}"
    *lead, rows, columns = shape
    if layout.rows > 1:
        return (*lead, -(-columns // layout.columns), -(-rows // layout.rows), layout.columns, layout.rows)
    return (*lead, -(-columns // layout.columns), rows, layout.columns)


def pack(array: Flat, layout: Layout) -> Flat:
    """The stored form of an array, flat and contiguous; the padding columns of the last block are zero."""
    if layout == Layout.ROWS:
        return np.ascontiguousarray(array).reshape(-1)
    assert layout.rows == 1, "only copies of states have rows side by side"
    *lead, blocks, rows, width = stored_shape(array.shape, layout)
    padded = np.zeros((*lead, rows, blocks * width), array.dtype)
    padded[..., : array.shape[-1]] = array
    return np.ascontiguousarray(padded.reshape(*lead, rows, blocks, width).swapaxes(-3, -2)).reshape(-1)


def unpack(flat: Flat, shape: Sequence[Extent], layout: Layout, sizes: Mapping[str, int] | None = None) -> Flat:
    """The array of `shape` that `pack` stored in `flat`: a fresh copy, rows contiguous."""
    extents = [evaluate(e, sizes or {}) for e in shape]
    stored = stored_shape(extents, layout)
    values = flat[: prod(stored)].reshape(stored)
    if layout == Layout.ROWS:
        return values.copy()
    assert layout.rows == 1, "only copies of states have rows side by side"
    *lead, blocks, rows, width = stored
    joined = values.swapaxes(-3, -2).reshape(*lead, rows, blocks * width)
    if blocks > 1 and rows > 1 and extents[-1] == blocks * width:
        return joined  # reshape had to copy already
    return joined[..., : extents[-1]].copy()  # one block is contiguous, so that reshape returned a view of the state
