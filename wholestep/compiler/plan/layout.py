"""How tensors lie in memory: bytes of a layout, and the way between a user's array and a stored one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from wholestep.compiler.ir.types import Extent, TensorType, evaluate
from wholestep.compiler.plan.kernel import LANES, Layout

ALIGNMENT = 64  # bytes: a cache line; every buffer starts on one and fills whole ones
PANEL_COLUMNS = 8  # narrower matrices would be mostly padding

Flat = np.ndarray[Any, Any]


def state_layout(type: TensorType) -> Layout:
    """How a state is stored: a function of its type alone, so that every plan over a State agrees on it."""
    columns = type.shape[-1] if type.rank == 2 else 0
    return (
        Layout.PANELS if type.dtype.is_float and isinstance(columns, int) and columns >= PANEL_COLUMNS else Layout.ROWS
    )


def layout_bytes(type: TensorType, layout: Layout, sizes: Mapping[str, int]) -> int:
    """The bytes of a buffer, padding included: panels hold whole multiples of 16 columns, buffers whole cache lines."""
    shape = [evaluate(e, sizes) for e in type.shape]
    return aligned(prod(stored_shape(shape, layout)) * type.dtype.size)


def aligned(size: int) -> int:
    """`size` rounded up to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def stored_shape(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """The shape of the stored array: the tensor's own, (..., panels, rows, 16) or (..., panels, pairs, 16, 2)."""
    if layout is Layout.ROWS:
        return tuple(shape)
    assert len(shape) >= 2, f"panels need rows and columns; received shape {tuple(shape)}"
    *lead, rows, columns = shape
    if layout is Layout.PAIRS:
        return (*lead, -(-columns // LANES), -(-rows // 2), LANES, 2)
    return (*lead, -(-columns // LANES), rows, LANES)


def pack(array: Flat, layout: Layout) -> Flat:
    """The stored form of an array, flat and contiguous; the columns that pad the last panel are zero."""
    if layout is Layout.ROWS:
        return np.ascontiguousarray(array).reshape(-1)
    *lead, panels, rows, lanes = stored_shape(array.shape, layout)
    padded = np.zeros((*lead, rows, panels * lanes), array.dtype)
    padded[..., : array.shape[-1]] = array
    return np.ascontiguousarray(padded.reshape(*lead, rows, panels, lanes).swapaxes(-3, -2)).reshape(-1)


def unpack(flat: Flat, shape: Sequence[Extent], layout: Layout, sizes: Mapping[str, int] | None = None) -> Flat:
    """The array of `shape` that `pack` stored in `flat`: a fresh copy, rows contiguous."""
    known = [evaluate(e, sizes or {}) for e in shape]
    stored = stored_shape(known, layout)
    values = flat[: prod(stored)].reshape(stored)
    if layout is Layout.ROWS:
        return values.copy()
    *lead, panels, rows, lanes = stored
    joined = values.swapaxes(-3, -2).reshape(*lead, rows, panels * lanes)
    if panels > 1 and rows > 1 and known[-1] == panels * lanes:
        return joined  # a copy: nothing else brings these rows together
    return joined[..., : known[-1]].copy()  # one panel is contiguous already: it would be a view of the state
