"""CV+ and jackknife+ intervals, compared with the formula of the paper written out with loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import wholestep as ws

RNG = np.random.default_rng(2)
X = RNG.normal(size=(23, 2)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0]]) + 0.3 * RNG.normal(size=(23, 1))).astype(np.float32)
NEW = RNG.normal(size=(5, 2)).astype(np.float32)
GIVEN: dict[str, Any] = {
    "loss": "mse",
    "optimizer": ws.SGD(lr=0.3),
    "epochs": 8,
    "seed": 0,
    "progress": False,
    "device": "reference",
}


@pytest.mark.parametrize("folds", [4, len(X)])
def test_intervals_are_those_of_the_paper(folds: int) -> None:
    found = ws.cross_validate(ws.nn.Linear(2, 1), (X, Y), folds=folds, **GIVEN)
    result = found.predict_interval(NEW, 0.8)
    lows: list[list[float]] = [[] for _ in NEW]
    highs: list[list[float]] = [[] for _ in NEW]
    pairs = list(ws.data.folds((X, Y), folds, 0))
    for model, (_, held) in zip(found.models, pairs, strict=True):
        x, y = held.inputs["x"], held.targets["labels"]
        for row, target in zip(x, y, strict=True):
            residual = abs(float(target[0]) - float(model.predict(row[None])[0, 0]))
            for j, new in enumerate(NEW):
                center = float(model.predict(new[None])[0, 0])
                lows[j].append(center - residual)
                highs[j].append(center + residual)
    n = len(X)
    expected_low = [sorted(each)[math.floor(0.2 * (n + 1) + 1e-9) - 1] for each in lows]
    expected_high = [sorted(each)[math.ceil(0.8 * (n + 1) - 1e-9) - 1] for each in highs]
    np.testing.assert_allclose(result.low[:, 0], expected_low, rtol=1e-5)
    np.testing.assert_allclose(result.high[:, 0], expected_high, rtol=1e-5)
    np.testing.assert_allclose(result.prediction, found.predict(NEW), rtol=1e-6)


def test_a_coverage_that_the_rows_cannot_give_is_infinite() -> None:
    found = ws.cross_validate(ws.nn.Linear(2, 1), (X[:6], Y[:6]), folds=2, **GIVEN)
    assert np.isinf(found.predict_interval(NEW, 0.99).high).all()
    with pytest.raises(ws.errors.OptionError, match="a coverage between 0 and 1"):
        found.predict_interval(NEW, 90)
    classes = ws.cross_validate(
        ws.nn.Linear(2, 3), (X, np.arange(23) % 3), folds=2, **{**GIVEN, "loss": "cross_entropy"}
    )
    with pytest.raises(ws.errors.InputError, match="intervals are for numbers"):
        classes.predict_interval(NEW)
