"""Validation is measured by all ranks together, each over its rows of every batch; what cannot be divided, by each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.compilers import quick
from wholestep import metrics as m
from wholestep.steps.evaluate import VALIDATE

RNG = np.random.default_rng(0)
ROWS, BATCH = 29, 8  # the last batch has 5 rows, which 3 ranks divide unevenly
X = RNG.standard_normal((ROWS, 6)).astype(np.float32)
CLASSES = RNG.integers(0, 3, ROWS).astype(np.int32)
NUMBERS = RNG.standard_normal((ROWS, 3)).astype(np.float32)
WEIGHTS = RNG.uniform(0.5, 2, ROWS).astype(np.float32)


def session(targets: dict[str, ws.Spec], loss: Any, metrics: list[Any]) -> ws.Session:
    model, inputs = ws.nn.Sequential(ws.nn.Linear(6, 3)), ws.Spec(("batch", 6))
    told = {"inputs": inputs, "targets": targets, "loss": loss, "metrics": metrics, "options": quick()}
    return ws.build_session(model, batch_size=BATCH, shards=3, **told)


def measured_by(made: ws.Session, name: str) -> bool:
    """Is there such a program, and does each rank take its rows of a batch in it?"""
    found = made._programs.entries.get(name)
    return found is not None and found.plan.divided == "batch"


def test_ranks_measure_what_one_measures_alone() -> None:
    targets = {"labels": ws.Spec(("batch",), "int32"), "sample_weight": ws.Spec(("batch",))}
    made = session(targets, "cross_entropy", ["accuracy", m.ConfusionMatrix(), m.F1(average="macro"), m.LogLoss()])
    for rows in (ROWS, 5, 1):  # several batches; one; fewer rows than ranks
        given = {"x": X[:rows], "labels": CLASSES[:rows], "sample_weight": WEIGHTS[:rows]}
        together, alone = made.evaluate_together(given), made.evaluate_all(given)
        assert together.keys() == alone.keys() > {"loss", "f1"}
        for name, value in alone.items():
            np.testing.assert_allclose(together[name], value, rtol=1e-6, err_msg=f"{rows}: {name}")
        assert made.evaluate_together(given)["loss"] == together["loss"], "the same bits each time"
    assert measured_by(made, VALIDATE)
    assert measured_by(made, f"{VALIDATE} all rows")


def test_rows_are_counted_over_all_ranks_and_batches() -> None:
    made = session({"labels": ws.Spec(("batch", 3))}, "rmse", ["mae", "mse", m.R2()])
    together = made.evaluate_together({"x": X, "labels": NUMBERS})
    errors = made.predict(x=X) - NUMBERS
    expected = {"loss": np.sqrt((errors**2).mean()), "mae": np.abs(errors).mean(), "mse": (errors**2).mean()}
    for name, value in expected.items():
        np.testing.assert_allclose(together[name], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(together["r2"], made.evaluate_all({"x": X, "labels": NUMBERS})["r2"], rtol=1e-6)
    assert measured_by(made, f"{VALIDATE} all rows")


def test_a_loss_that_cannot_be_cut_is_measured_by_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "wholestep")

    def product(output: ws.Tensor, target: ws.Tensor) -> ws.Tensor:
        return ((output - target) ** 2).mean() * (output**2).mean()

    made = session({"labels": ws.Spec(("batch", 3))}, product, [])
    given = {"x": X, "labels": NUMBERS}
    assert made.evaluate_together(given) == made.evaluate_all(given)
    assert "validation runs on each worker, over all rows: evaluating more rows than the capacity" in caplog.text
    output = made.predict(x=X)
    losses = [
        ((output[at] - NUMBERS[at]) ** 2).mean() * (output[at] ** 2).mean() * len(output[at])
        for at in (slice(first, first + BATCH) for first in range(0, ROWS, BATCH))
    ]
    np.testing.assert_allclose(made.evaluate_together(given)["loss"], sum(losses) / ROWS, rtol=1e-5)
