"""`wholestep.sklearn.Classifier` against `MLPClassifier`: accuracy by cross-validation, and the time of a fit.

Both train with their defaults, on the data sets of scikit-learn.  `MLPClassifier` is preceded by a `StandardScaler`, as
its documentation recommends; ours scales by itself.  `plain` is `MLPClassifier` without the scaler.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import mean, median
from typing import Any

SETS = ("digits", "breast_cancer", "wine", "iris")


def run(rounds: int, threads: int, repeats: int = 4, sets: tuple[str, ...] = SETS) -> dict[str, dict[str, float]]:
    """The result for each data set: seconds of a fit, the ratio of theirs to ours, and both accuracies."""
    from threadpoolctl import threadpool_limits

    with warnings.catch_warnings(), threadpool_limits(threads):
        warnings.simplefilter("ignore")  # MLPClassifier warns that most of its fits have not converged
        return {name: measure(name, rounds, threads, repeats) for name in sets}


def measure(name: str, rounds: int, threads: int, repeats: int) -> dict[str, float]:
    """Measure one data set: all estimators use the same folds; the times are of alternating fits on all rows, without
    the first.
    """
    from sklearn.model_selection import RepeatedStratifiedKFold, cross_val_score

    x, y = data(name)
    makers = contenders(threads)
    seconds: dict[str, list[float]] = {who: [] for who in makers}
    for number in range(rounds + 1):
        for who in sorted(makers, reverse=bool(number % 2)):
            seconds[who].append(_seconds(makers[who], x, y, seed=number))
    folds = RepeatedStratifiedKFold(n_splits=5, n_repeats=repeats, random_state=0)
    scores = {who: float(mean(cross_val_score(make(0), x, y, cv=folds))) for who, make in makers.items()}
    ours = seconds["wholestep"][1:]
    return {
        "fit_s": median(ours),
        "ratio": median(theirs / our_time for theirs, our_time in zip(seconds["sklearn"][1:], ours, strict=True)),
        "plain_ratio": median(theirs / our_time for theirs, our_time in zip(seconds["plain"][1:], ours, strict=True)),
        "accuracy": scores["wholestep"],
        "sklearn_accuracy": scores["sklearn"],
        "plain_accuracy": scores["plain"],
    }


def data(name: str) -> tuple[Any, Any]:
    """The rows and classes of a data set of scikit-learn."""
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")(return_X_y=True)  # type: ignore[no-any-return]


def contenders(threads: int) -> dict[str, Callable[[int], Any]]:
    """Functions from a seed to a new estimator, by name."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from wholestep.sklearn import Classifier

    return {
        "wholestep": lambda seed: Classifier(random_state=seed, threads=threads),
        "sklearn": lambda seed: make_pipeline(StandardScaler(), MLPClassifier(random_state=seed)),
        "plain": lambda seed: MLPClassifier(random_state=seed),
    }


def _seconds(make: Callable[[int], Any], x: Any, y: Any, seed: int) -> float:
    estimator = make(seed)
    began = time.perf_counter()
    estimator.fit(x, y)
    return time.perf_counter() - began
