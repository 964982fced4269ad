"""Columns of numbers as scikit-learn hands them over: a matrix, NaN where a value is missing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wholestep.data.tables.column import Array
from wholestep.sklearn.networks import InputColumns


@dataclass(frozen=True)
class ColumnStatistics:
    """Means and spreads of columns, and which had gaps: those get a second column that says where."""

    mean: Array
    std: Array
    gaps: Array  # numbers of columns

    @staticmethod
    def learnt(X: Array, standardize: bool, weight: Array | None = None) -> ColumnStatistics:
        """What training rows say; a row of weight 2 counts as two."""
        missing = np.isnan(X)
        gaps = np.flatnonzero(missing.any(axis=0))
        if not standardize:
            return ColumnStatistics(np.zeros(X.shape[1]), np.ones(X.shape[1]), gaps)
        parts = (1.0 if weight is None else weight[:, None].astype(np.float64)) * ~missing
        parts /= np.maximum(parts.sum(axis=0), 1e-30)  # of each value in its column's mean
        known = np.where(missing, 0.0, X.astype(np.float64))
        mean = (parts * known).sum(axis=0)
        std = np.sqrt((parts * (known - mean) ** 2).sum(axis=0))
        # What rounding leaves of the spread of a column of one value is not blown up.
        return ColumnStatistics(mean, np.where(std > 1e-9 * np.abs(mean), std, 1.0), gaps)

    @property
    def sizes(self) -> InputColumns:
        return InputColumns(len(self.mean) + len(self.gaps))

    def encode(self, X: Array) -> Array:
        """(rows, columns and gaps) as float32."""
        scaled = (X - self.mean) / self.std
        missing = np.isnan(X)
        if missing.any() or len(self.gaps):
            scaled = np.hstack([np.where(missing, 0.0, scaled), missing[:, self.gaps]])
        return scaled.astype(np.float32)
