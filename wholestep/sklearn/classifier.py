"""`Classifier`: a multilayer perceptron for classification, as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from wholestep.data.tables.column import Array
from wholestep.sklearn.estimator import Estimator


class Classifier(ClassifierMixin, Estimator):
    """A multilayer perceptron that classifies labels of any type, with the parameters of scikit-learn's
    `MLPClassifier`.

    X is an array, NaN where a value is missing, or a frame with numbers, text, categories and dates.  Columns are
    standardised, and what else `ws.data.Encoder` does is done, by what the training rows say.  What predicts is
    an exponential average of the weights.  A pickle holds parameters, and the weights as safetensors.

    Args:
        hidden_layer_sizes: the width of each hidden layer.
        activation: "relu", "tanh", "logistic", "gelu", "silu" or "identity".
        solver: "adam", "adamw" or "sgd" (with Nesterov's momentum, 0.9).
        alpha: the L2 penalty, divided by the rows of a batch; of "adamw" the decoupled decay.
        batch_size: rows of a step; "auto" is min(32, rows).
        learning_rate_init: the learning rate.
        max_iter: the most epochs.
        shuffle: visit rows in another order in every epoch.
        random_state: the seed of weights and orders.
        tol, n_iter_no_change: training ends after this many epochs in a row without an improvement of more than `tol`.
        early_stopping: "better" is the score of `validation_fraction` of the rows, which are held out, rather than the
            loss; the weights of the best epoch are kept.
        dropout: after each hidden layer.
        standardize: bring every column to mean 0 and spread 1.
        threads: None is one for small networks, all cores for others; the numbers are the same.
        device, options: as for `ws.build_session`.

    Example: `wholestep.sklearn.Classifier((64,)).fit(X, y).predict_proba(X)`.
    """

    _loss = "cross_entropy"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Classifier:
        """Train on X and y; `sample_weight` is the weight of each row in the loss."""
        arrays, y, weight = self._learn(X, y, sample_weight)
        y = column_or_1d(y, warn=True)
        check_consistent_length(y, *arrays.values())
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        self._train(arrays, codes.astype(np.int32), max(2, len(self.classes_)), weight)
        return self

    def predict(self, X: Any) -> Array:
        """The predicted class of each row."""
        scores = self._outputs(X)[:, : self._class_count()]
        labels: Array = self.classes_[np.argmax(scores, axis=1)]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, in the order of `classes_`."""
        scores = self._outputs(X)[:, : self._class_count()].astype(np.float64)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities: Array = powers / powers.sum(axis=1, keepdims=True)
        return probabilities

    def predict_log_proba(self, X: Any) -> Array:
        """Its logarithm."""
        return np.log(self.predict_proba(X))

    def _class_count(self) -> int:
        return len(self.classes_)

    def _score(self, outputs: Array, y: Array, weight: Array | None) -> float:
        return float(np.average(np.argmax(outputs, axis=1) == y, weights=weight))
