"""Masked arrays: refused wherever arrays come in."""

from __future__ import annotations

import numpy as np

from wholestep.errors import InputError


def refuse_mask(value: object, what: str) -> None:
    """A masked array has places without a value; plain arrays have none, so what stands there is the user's to say."""
    if type(value) is np.ndarray or not isinstance(value, np.ma.MaskedArray):
        return
    masked = int(np.ma.getmaskarray(value).sum())
    if masked:
        raise InputError(
            f"{what} received a masked array with {masked} masked values; there are no masks in a step. Say what "
            "stands there: array.filled(0.0), or drop the rows."
        )
