"""`Regressor`: a multilayer perceptron for regression, as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_array, check_consistent_length

from wholestep.data.tables.column import Array
from wholestep.sklearn.estimator import Estimator
from wholestep.sklearn.matrix import ColumnStatistics


class Regressor(RegressorMixin, Estimator):
    """A multilayer perceptron that predicts one number or several, with the parameters of scikit-learn's
    `MLPRegressor`.

    The parameters are those of `Classifier`.  The loss is the mean squared error of targets that are standardised, so
    `loss_curve_` and `tol` are in these units; predictions are in those of y.  `early_stopping` goes by R².

    Example: `wholestep.sklearn.Regressor((64, 64)).fit(X, y).predict(X)`.
    """

    _loss = "mse"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Regressor:
        """Train on X and y; `sample_weight` is the weight of each row in the loss."""
        arrays, y, weight = self._learn(X, y, sample_weight, multi_output=True, y_numeric=True)
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        check_consistent_length(y, *arrays.values())
        numbers = y.reshape(len(y), -1)
        units = ColumnStatistics.learnt(numbers, True, weight)
        self._middle, self._spread, self._in_columns = units.mean, units.std, y.ndim == 2
        scaled = units.encode(numbers)
        self._train(arrays, scaled[:, 0] if scaled.shape[1] == 1 else scaled, scaled.shape[1], weight)
        return self

    def predict(self, X: Any) -> Array:
        """The predicted numbers of each row."""
        outputs = self._outputs(X)
        numbers = outputs.reshape(len(outputs), -1).astype(np.float64) * self._spread + self._middle
        return numbers if self._in_columns else numbers[:, 0]

    def _score(self, outputs: Array, y: Array, weight: Array | None) -> float:
        return float(r2_score(y, outputs, sample_weight=weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
