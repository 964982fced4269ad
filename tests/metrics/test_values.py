"""Section I of the conformance page: metrics."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws

TRUE, PREDICTED = np.array([2, 0, 2, 2, 0, 1]), np.array([0, 0, 2, 2, 0, 2])


@pytest.mark.parametrize("as_scores", [True, False])
def test_i01_accuracy(as_scores: bool) -> None:
    accuracy = ws.metrics.Accuracy()
    for right, rows in ((3, 4), (5, 8)):
        labels = np.arange(rows) % 3
        classes = np.where(np.arange(rows) < right, labels, (labels + 1) % 3)
        accuracy.update(np.eye(3)[classes] if as_scores else classes, labels)
    assert (accuracy.correct, accuracy.total) == (8, 12)
    np.testing.assert_allclose(accuracy.compute(), 0.66666667, atol=1e-8)
    accuracy.reset()
    assert (accuracy.correct, accuracy.total) == (0, 0)
    assert np.isnan(accuracy.compute())


def test_i02_confusion_precision_recall_f1() -> None:
    matrix = ws.metrics.ConfusionMatrix()
    matrix.update(PREDICTED, TRUE)
    np.testing.assert_array_equal(matrix.compute(), [[2, 0, 0], [0, 0, 1], [1, 0, 2]])
    for name, expected in (("precision", 0.44444444), ("recall", 0.55555556), ("f1", 0.48888889)):
        metric = ws.metrics.get(name)
        metric.update(PREDICTED, TRUE)
        np.testing.assert_allclose(metric.compute(), expected, atol=1e-8)


@pytest.mark.parametrize(("name", "expected"), [("roc_auc", 0.75), ("average_precision", 0.83333333)])
def test_i03_ranking(name: str, expected: float) -> None:
    metric = ws.metrics.get(name)
    metric.update([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    np.testing.assert_allclose(metric.compute(), expected, atol=1e-8)


def test_i04_the_loss_is_averaged_over_rows() -> None:
    """That any metric is the same in one update and in many is in tests/metrics/test_contract.py."""
    tracker = ws.metrics.LossTracker()
    assert np.isnan(tracker.compute())
    tracker.update(1.0, 4)
    tracker.update(2.0, np.zeros(1))
    np.testing.assert_allclose(tracker.compute(), 1.2)
