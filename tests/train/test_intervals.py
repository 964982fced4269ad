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
    result = found.predict(NEW, interval=0.8)
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
    assert np.isinf(found.predict(NEW, interval=0.99).high).all()
    with pytest.raises(ws.errors.OptionError, match="a coverage between 0 and 1"):
        found.predict(NEW, interval=90)
    classes = ws.cross_validate(
        ws.nn.Linear(2, 3), (X, np.arange(23) % 3), folds=2, **{**GIVEN, "loss": "cross_entropy"}
    )
    with pytest.raises(ws.errors.InputError, match="intervals are for numbers"):
        classes.predict(NEW, interval=0.9)


def test_the_interval_of_a_model_is_that_of_split_conformal_prediction() -> None:
    model = ws.nn.Linear(2, 1)
    ws.fit(model, (X, Y), **GIVEN)
    x = RNG.normal(size=(19, 2)).astype(np.float32)
    y = (x @ np.array([[1.0], [-2.0]]) + 0.3 * RNG.normal(size=(19, 1))).astype(np.float32)
    result = model.predict(NEW, interval=0.9, calibration=(x, y), device="reference")
    radius = np.sort(np.abs(y - model.predict(x))[:, 0])[math.ceil(0.9 * 20) - 1]
    np.testing.assert_allclose(result.high - result.prediction, radius, rtol=1e-5)
    np.testing.assert_allclose(result.prediction - result.low, radius, rtol=1e-5)
    np.testing.assert_allclose(result.prediction, model.predict(NEW), rtol=1e-6)
    with pytest.raises(ws.errors.UsageError, match=r"calibration=\(xv, yv\)"):
        model.predict(NEW, interval=0.9)


def test_intervals_contain_the_targets_as_often_as_asked() -> None:
    """The mean coverage over draws of the rows: 0.9 by design of the method, within its standard error."""
    rng = np.random.default_rng(0)
    model = ws.nn.Linear(1, 1)
    ws.fit(model, (X[:, :1], X[:, :1]), **GIVEN)
    share = []
    for _ in range(40):
        x = rng.normal(size=(130, 1)).astype(np.float32)
        y = (x + rng.normal(size=(130, 1))).astype(np.float32)
        found = model.predict(x[30:], interval=0.9, calibration=(x[:30], y[:30]), device="reference")
        share.append(float(((found.low <= y[30:]) & (y[30:] <= found.high)).mean()))
    assert np.mean(share) == pytest.approx(0.9, abs=0.03)
