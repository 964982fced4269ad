"""What `fit` adds to its steps: the arithmetic, and that native time is told from the rest."""

from __future__ import annotations

import json

import pytest

from benchmarks.fit_overhead import Taken, measure, summary


def test_percentages_are_medians_over_rounds_after_the_first() -> None:
    fit = Taken(whole=[9.0, 1.03, 1.02, 2.02], native=[1.0, 1.00, 1.00, 2.00])
    bare = Taken(whole=[1.0, 1.00, 1.00, 2.00], native=[1.0, 0.99, 0.99, 1.98])
    found = summary(fit, bare)
    assert found["fit_percent"] == pytest.approx(2.0)
    assert found["fit_python_percent"] == pytest.approx(1.0)


def test_native_calls_are_told_from_the_rest() -> None:
    found = json.loads(measure(rows=300, rounds=2))
    assert set(found) == {"fit_percent", "fit_python_percent"}
    assert found["fit_python_percent"] != 0
