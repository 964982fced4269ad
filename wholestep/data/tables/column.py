"""A column of a table: values of one type, and which of them are missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wholestep.errors import InputError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Column:
    """Values, and a mask of missing ones; the value at a missing row has no meaning."""

    values: Array  # numbers, booleans, datetime64[us], or str as objects
    missing: Array  # booleans
    categorical: bool = False  # are numeric values names of categories?

    def __len__(self) -> int:
        return len(self.values)

    @property
    def kind(self) -> str:
        """ "number", "date" or "text"."""
        letter = self.values.dtype.kind
        return "text" if letter == "O" else "date" if letter == "M" else "number"

    @property
    def type_name(self) -> str:
        """The type as tables print it: "category", "text", "date", or NumPy's name of a dtype."""
        if self.categorical:
            return "category"
        return str(self.values.dtype) if self.kind == "number" else self.kind

    @property
    def present(self) -> Array:
        """The values that are not missing."""
        return self.values[~self.missing]

    def select(self, rows: Array) -> Column:
        return Column(self.values[rows], self.missing[rows], self.categorical)


def need_finite(name: str, column: Column) -> None:
    """Raise InputError if a column holds infinity."""
    values = column.present
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.flatnonzero(~column.missing)[np.flatnonzero(~np.isfinite(values))[0]])
        raise InputError(
            f"the column {name!r} holds {column.values[row]} in row {row}; replace it by a number, or by a gap: "
            "frame.replace([np.inf, -np.inf], np.nan)."
        )
