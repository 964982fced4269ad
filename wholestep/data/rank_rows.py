"""A worker's own rows of a batch: it reads no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholestep.compiler.runtime.process_group import rows_of_rank
from wholestep.data.table import Batch


@dataclass(frozen=True)
class OwnRows:
    """Which rows of a batch a worker makes its part of a step of: of each micro-batch, those that are its own."""

    rank: int  # its place along the data axis: those along the other one have the same rows
    ranks: int
    part: int  # rows of a micro-batch

    def of(self, rows: int) -> NDArray[np.int64]:
        """Their places in a batch of so many rows."""
        found = []
        for first in range(0, rows, self.part):
            before, count = rows_of_rank(min(self.part, rows - first), self.rank, self.ranks)
            found.append(np.arange(first + before, first + before + count))
        return np.concatenate(found) if found else np.arange(0)


def spread(batch: Batch, places: NDArray[np.int64], rows: int) -> Batch:
    """A batch of `rows` rows that has these at their places; the others are zero, and nobody here looks at them."""

    def whole(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping):
            return {name: whole(array) for name, array in value.items()}
        array = np.asarray(value)
        made = np.zeros((rows, *array.shape[1:]), array.dtype)
        made[places] = array[: len(places)]
        return made

    return Batch(whole(batch.inputs), whole(batch.targets), whole(batch.weights))
