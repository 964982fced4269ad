"""The sum over ranks in the order that group.h defines, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def tree_sum(parts: Sequence[Array]) -> Array:
    """The first half of the ranks, the larger one, plus the rest."""
    if len(parts) == 1:
        return parts[0].copy()
    half = (len(parts) + 1) // 2
    return tree_sum(parts[:half]) + tree_sum(parts[half:])
