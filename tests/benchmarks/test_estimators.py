"""The comparison with scikit-learn's networks: what is compared, and its arithmetic on small ones."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.neural_network import MLPClassifier

import wholestep as ws
from benchmarks import estimators
from wholestep.sklearn import Classifier


def test_all_figures_of_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ws.CompileOptions(verify=False, egraph=False)

    def small(threads: int) -> dict[str, Any]:
        ours = {"max_iter": 30, "learning_rate_init": 0.03, "threads": threads, "options": options}
        return {
            "wholestep": lambda seed: Classifier((8,), random_state=seed, **ours),
            "sklearn": lambda seed: MLPClassifier((8,), max_iter=60, random_state=seed),
            "plain": lambda seed: MLPClassifier((8,), max_iter=60, random_state=seed),
        }

    monkeypatch.setattr(estimators, "contenders", small)
    found = estimators.run(rounds=1, threads=1, repeats=1, sets=("iris",))["iris"]
    assert found["accuracy"] > 0.9
    assert found["sklearn_accuracy"] == found["plain_accuracy"] > 0.3
    assert found["ratio"] > 0
    assert found["fit_s"] > 0


def test_the_contenders_are_as_they_come() -> None:
    found = estimators.contenders(2)
    assert found["wholestep"](3).get_params() == Classifier(random_state=3, threads=2).get_params()
    assert found["plain"](3).get_params() == MLPClassifier(random_state=3).get_params()
    assert estimators.data("wine")[0].shape == (178, 13)
