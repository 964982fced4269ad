"""Column statistics of a matrix, NaN where a value is missing, and fitted estimators as data for pickles."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wholestep.data.tables.column import Array
from wholestep.data.tables.encoding import Encoding
from wholestep.options import CompileOptions
from wholestep.sklearn.networks import InputColumns, NetworkKey


@dataclass(frozen=True)
class ColumnStatistics:
    """Means and standard deviations of columns, and the columns with missing values, which get an indicator column."""

    mean: Array
    std: Array
    gaps: Array  # indices of the columns with missing values

    @staticmethod
    def learnt(X: Array, standardize: bool, weight: Array | None = None) -> ColumnStatistics:
        """The statistics of the training rows; a row of weight 2 counts as two rows."""
        missing = np.isnan(X)
        gaps = np.flatnonzero(missing.any(axis=0))
        if not standardize:
            return ColumnStatistics(np.zeros(X.shape[1]), np.ones(X.shape[1]), gaps)
        parts = (1.0 if weight is None else weight[:, None].astype(np.float64)) * ~missing
        parts /= np.maximum(parts.sum(axis=0), 1e-30)  # the share of each value in its column's mean
        filled = np.where(missing, 0.0, X.astype(np.float64))
        mean = (parts * filled).sum(axis=0)
        std = np.sqrt((parts * (filled - mean) ** 2).sum(axis=0))
        # A column of equal values has a standard deviation of rounding errors only, and is not scaled by it.
        return ColumnStatistics(mean, np.where(std > 1e-9 * np.abs(mean), std, 1.0), gaps)

    @property
    def sizes(self) -> InputColumns:
        return InputColumns(len(self.mean) + len(self.gaps))

    def encode(self, X: Array) -> Array:
        """The matrix (rows, columns and indicators) as float32."""
        scaled = (X - self.mean) / self.std
        missing = np.isnan(X)
        if missing.any() or len(self.gaps):
            scaled = np.hstack([np.where(missing, 0.0, scaled), missing[:, self.gaps]])
        return scaled.astype(np.float32)


# -- pickles: numbers, texts, arrays, and weights as the bytes of a safetensors file -----------------------------------

WEIGHTS, COLUMNS, KIND = "_weights", "_columns", "_kind_used"


def pack_state(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a fitted estimator as numbers, texts, arrays and bytes only."""
    if WEIGHTS in state:
        from safetensors.numpy import save

        state[WEIGHTS] = save({name: np.ascontiguousarray(a) for name, a in state[WEIGHTS].items()})
        state[COLUMNS] = _columns_as_data(state[COLUMNS])
        state[KIND] = asdict(state[KIND])
    return state


def unpack_state(state: dict[str, Any]) -> dict[str, Any]:
    """Restore the attributes from `pack_state`."""
    if WEIGHTS in state:
        from safetensors.numpy import load

        state[WEIGHTS] = load(state[WEIGHTS])
        state[COLUMNS] = _columns_from_data(state[COLUMNS])
        state[KIND] = _kind_from_data(state[KIND])
    return state


def _columns_as_data(columns: ColumnStatistics | Encoding) -> Any:
    return columns.to_json() if isinstance(columns, Encoding) else (columns.mean, columns.std, columns.gaps)


def _columns_from_data(data: Any) -> ColumnStatistics | Encoding:
    return Encoding.from_json(data, "the pickle") if isinstance(data, str) else ColumnStatistics(*data)


def _kind_from_data(data: dict[str, Any]) -> NetworkKey:
    options = data["options"]
    fields = {**data, "columns": InputColumns(**data["columns"]), "hidden": tuple(data["hidden"])}
    return NetworkKey(**{**fields, "options": None if options is None else CompileOptions(**options)})
