"""The base class of both estimators: it encodes columns, trains a network of the pool, and copies its weights."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from wholestep.data.tables.column import Array
from wholestep.data.tables.encoder import Encoder
from wholestep.data.tables.encoding import Encoding
from wholestep.data.tables.frame import as_frame, is_frame
from wholestep.data.tables.frame_data import Framed
from wholestep.models.tabular import ACTIVATIONS
from wholestep.options import CompileOptions
from wholestep.sklearn.matrix import ColumnStatistics, pack_state, unpack_state
from wholestep.sklearn.networks import POOL, InputColumns, NetworkKey, SharedNetwork, Weights

AUTO = 32  # rows of batch_size="auto"
WORTH_THREADS = 1 << 19  # multiplications of a forward pass, below which threads cost more time than they save
SOLVERS = ("adam", "adamw", "sgd")
EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a weight of 2 is the same row twice, in the loss and in the scale of columns; but rows are drawn into "
        "batches, of which a longer table has more, and sums in float32 do not agree to 1e-7"
    ),
}


class Estimator(BaseEstimator, ABC):
    """The base class of `Classifier` and `Regressor`: parameters, training and pickling."""

    _loss: str

    def __init__(
        self,
        hidden_layer_sizes: Any = (100,),
        activation: str = "relu",
        *,
        solver: str = "adam",
        alpha: float = 0.05,
        batch_size: Any = "auto",
        learning_rate_init: float = 4e-3,
        max_iter: int = 200,
        shuffle: bool = True,
        random_state: Any = None,
        tol: float = 5e-4,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        dropout: float = 0.0,
        standardize: bool = True,
        device: str = "cpu",
        threads: int | None = None,
        options: CompileOptions | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.solver = solver
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.random_state = random_state
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.dropout = dropout
        self.standardize = standardize
        self.device = device
        self.threads = threads
        self.options = options

    # -- columns -------------------------------------------------------------------------------------------------

    def _learn(self, X: Any, y: Any, sample_weight: Any, **checks: Any) -> tuple[dict[str, Array], Any, Array | None]:
        """Fit the encoding of the columns; return the arrays of the training data, its targets and weights."""
        if _has_names_or_dates(X):
            validate_data(self, X, y, skip_check_array=True)
            frame = as_frame(X)
            self.n_features_in_ = len(frame.columns)
            self._columns: Encoding | ColumnStatistics = Encoder(self.standardize).fit(Framed(frame))
            return self._columns.encode(frame), y, _weights_of(frame, sample_weight)
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan", **checks)
        weight = _weights_of(X, sample_weight)
        self._columns = ColumnStatistics.learnt(X, self.standardize, weight)
        return {"x": self._columns.encode(X)}, y, weight

    def _encode(self, X: Any) -> dict[str, Array]:
        check_is_fitted(self)
        if isinstance(self._columns, Encoding):
            validate_data(self, X, reset=False, skip_check_array=True)
            return self._columns.encode(as_frame(X))
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan")
        return {"x": self._columns.encode(X)}

    # -- training ------------------------------------------------------------------------------------------------

    def _train(self, arrays: dict[str, Array], y: Array, outputs: int, weight: Array | None) -> None:
        self._check_parameters()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        data = {**arrays, "labels": y} | ({} if weight is None else {"sample_weight": weight})
        data, held = self._split_columns(data, seed)
        rows = len(data["labels"])
        batch = min(AUTO, rows) if self.batch_size == "auto" else min(int(self.batch_size), rows)
        kind = self._kind(outputs, weighted=weight is not None)
        with POOL.borrow(kind) as network:
            network.restart(seed)
            live = network.session.optimizer
            live.lr = float(self.learning_rate_init)
            if kind.decays:
                live.weight_decay = self.alpha if self.solver == "adamw" else self.alpha / batch
            stop = Stopping(float(self.tol), self.n_iter_no_change, self._measure(network, held))
            self._weights: Weights = self._epochs(network, data, batch, seed, stop)
        self.loss_curve_, self.n_iter_ = stop.losses, len(stop.losses)
        self.best_loss_ = min(stop.losses)
        if held is not None:
            self.validation_scores_ = stop.scores
        self._kind_used = kind

    def _epochs(self, network: SharedNetwork, data: dict[str, Array], batch: int, seed: int, stop: Stopping) -> Weights:
        """Train until the score stops improving; return the weights, those of the best epoch if rows are held out."""
        updates, total = -(-len(data["labels"]) // batch), 0.0
        slices = network.session.run_in_slices(
            data, epochs=self.max_iter, shuffle=self.shuffle, batch_size=batch, order_seed=seed
        )
        best: Weights | None = None
        for part in slices:
            total += float(part.losses @ part.rows)
            if part.end < updates:
                continue
            ended = stop.after(total / len(data["labels"]))
            total = 0.0
            if stop.scores and stop.improved:
                best = network.weights()
            if ended:
                break
        else:
            warnings.warn(
                f"{type(self).__name__}: max_iter={self.max_iter} epochs were made and the loss still fell; more of "
                "them may do better.",
                ConvergenceWarning,
                stacklevel=4,
            )
        return network.weights() if best is None else best

    def _split_columns(self, data: dict[str, Array], seed: int) -> tuple[dict[str, Array], dict[str, Array] | None]:
        if not self.early_stopping:
            return data, None
        from sklearn.model_selection import train_test_split

        rows = np.arange(len(data["labels"]))
        by = data["labels"] if self._loss == "cross_entropy" else None
        train, held = train_test_split(rows, test_size=self.validation_fraction, random_state=seed, stratify=by)
        return {n: a[train] for n, a in data.items()}, {n: a[held] for n, a in data.items()}

    def _measure(self, network: SharedNetwork, held: dict[str, Array] | None) -> Callable[[], float] | None:
        if held is None:
            return None
        inputs = {name: a for name, a in held.items() if name not in ("labels", "sample_weight")}
        return lambda: self._score(network.outputs(inputs), held["labels"], held.get("sample_weight"))

    @abstractmethod
    def _score(self, outputs: Array, y: Array, weight: Array | None) -> float:
        """The score of outputs; larger is better."""

    def _kind(self, outputs: int, weighted: bool) -> NetworkKey:
        hidden = self.hidden_layer_sizes
        sizes = tuple(int(h) for h in (hidden if np.iterable(hidden) else [hidden]))
        most = AUTO if self.batch_size == "auto" else int(self.batch_size)
        columns = self._columns.sizes if isinstance(self._columns, ColumnStatistics) else columns_of(self._columns)
        products = most * sum(a * b for a, b in pairwise((columns.numbers, *sizes, outputs)))
        return NetworkKey(
            columns,
            outputs,
            sizes,
            self.activation,
            float(self.dropout),
            self.solver,
            self.alpha > 0,
            self._loss,
            weighted,
            1 << max(most - 1, 1).bit_length(),
            self.device,
            1 if self.threads is None and products < WORTH_THREADS else self.threads,
            self.options,
        )

    def _outputs(self, X: Any) -> Array:
        arrays = self._encode(X)
        with POOL.borrow(self._kind_used) as network:
            network.load(self._weights)
            return network.outputs(arrays)

    def _check_parameters(self) -> None:
        """Raise ValueError, as scikit-learn's estimators do, with what was expected."""
        for name, kind, low, high in NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
                what = "an integer" if kind is Integral else "a number"
                raise ValueError(
                    f"{type(self).__name__}: {name} must be {what} from {low} to {high}; received {value!r}."
                )
        for name, choices in (("solver", SOLVERS), ("activation", tuple(ACTIVATIONS))):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{type(self).__name__}: {name} must be one of {', '.join(map(repr, choices))}; received "
                    f"{getattr(self, name)!r}."
                )
        if self.batch_size != "auto" and (not isinstance(self.batch_size, Integral) or self.batch_size < 1):
            raise ValueError(f"batch_size must be 'auto' or at least 1; received {self.batch_size!r}.")

    # -- scikit-learn --------------------------------------------------------------------------------------------

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # missing values are passed to the network as a separate column
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_weights")

    def __getstate__(self) -> dict[str, Any]:
        """The parameters and the fitted state: numbers, texts, and the weights as the bytes of a safetensors file."""
        return pack_state({**super().__getstate__()})

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__(unpack_state(dict(state)))


NUMBERS: tuple[tuple[str, Any, float, float], ...] = (
    ("alpha", Real, 0, np.inf),
    ("learning_rate_init", Real, 1e-30, np.inf),
    ("max_iter", Integral, 1, np.inf),
    ("tol", Real, 0, np.inf),
    ("validation_fraction", Real, 1e-9, 1 - 1e-9),
    ("n_iter_no_change", Integral, 1, np.inf),
    ("dropout", Real, 0, 0.999),
)


@dataclass
class Stopping:
    """Early stopping: after this number of consecutive epochs without an improvement of more than `tol`."""

    tol: float
    patience: int
    measure: Callable[[], float] | None  # the score of the held-out rows; None: the training loss is used

    def __post_init__(self) -> None:
        self.losses: list[float] = []
        self.scores: list[float] = []
        self.best, self.idle, self.improved = -np.inf, 0, False

    def after(self, loss: float) -> bool:
        """Called after an epoch: should training end?"""
        self.losses.append(loss)
        value = -loss
        if self.measure is not None:
            value = self.measure()
            self.scores.append(value)
        self.improved = value > self.best
        self.idle = 0 if value > self.best + self.tol else self.idle + 1
        self.best = max(self.best, value)
        return self.idle > self.patience


def _weights_of(X: Any, sample_weight: Any) -> Array | None:
    if sample_weight is None:
        return None
    weights: Array = _check_sample_weight(
        sample_weight, np.empty((len(X), 1)), dtype=np.float32, ensure_non_negative=True
    )
    return weights


def _has_names_or_dates(X: Any) -> bool:
    """Does a frame have columns that are not numeric?"""
    if not is_frame(X):
        return False
    return any(column.kind != "number" or column.categorical for column in as_frame(X).columns.values())


def columns_of(encoding: Encoding) -> InputColumns:
    """The input columns of a network for an encoding."""
    entries, words = encoding.entries
    length = max((w.length for w in encoding.words), default=0)
    return InputColumns(encoding.width, len(encoding.categories), entries, len(encoding.words), length, words)
