"""The comparison with scikit-learn's networks, on the smallest set: both learn it, and all figures are there."""

from __future__ import annotations

from benchmarks.estimators import contenders, data, run


def test_both_learn_iris() -> None:
    found = run(rounds=1, threads=1, repeats=1, sets=("iris",))["iris"]
    assert found["accuracy"] > 0.9
    assert found["sklearn_accuracy"] > 0.9
    assert found["ratio"] > 1.0
    assert found["fit_s"] > 0


def test_the_contenders_are_as_they_come() -> None:
    x, _ = data("wine")
    assert x.shape == (178, 13)
    assert contenders(2)["wholestep"](3).get_params()["random_state"] == 3
