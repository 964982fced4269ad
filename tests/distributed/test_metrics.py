"""Metrics of workers equal the metrics of one process; metrics that store rows, such as AUC, are equal bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.distributed.support.training import CASES
from tests.metrics.groups import OF_IMAGES, OF_NUMBERS
from wholestep.errors import GraphError
from wholestep.metrics.row_buffers import KeptRows
from wholestep.metrics.table import METRICS

KEPT = {name for name, cls in METRICS.items() if issubclass(cls, KeptRows)} | {"median_error"}


def told(case: str, **where: Any) -> dict[str, np.ndarray]:
    """What two epochs say of weights that stay as they are, so that all runs have the same scores."""
    _, history = CASES[case](optimizer=ws.SGD(lr=0.0), **where)
    return {name: np.asarray(history[name]) for name in history.names if not name.endswith("seconds")}


@pytest.mark.parametrize(
    ("case", "of"), [("classes", {*METRICS} - {*OF_NUMBERS, *OF_IMAGES}), ("numbers", {*OF_NUMBERS})]
)
def test_metrics_of_ranks_are_those_of_one(case: str, of: set[str]) -> None:
    """Of training and of validation, with last batches that ranks divide unevenly, or of which one has nothing."""
    alone, ranks = told(case), told(case, shards=3)
    assert alone.keys() == ranks.keys() >= of | {f"val_{name}" for name in of}
    for name, value in alone.items():
        if name.removeprefix("val_") in KEPT:
            assert ranks[name].tobytes() == value.tobytes(), name
        else:
            rtol = 1e-6 if name in ("loss", "val_loss") else 1e-12
            np.testing.assert_allclose(ranks[name], value, rtol=rtol, atol=1e-15, err_msg=name)
    assert any(np.isfinite(alone[name]).all() for name in KEPT & of)


def test_rows_of_tokens_are_kept_in_order() -> None:
    """Several of each row of the batch: the scores of its places, in a plan that is checked."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 7, (13, 4)).astype(np.int32), rng.integers(0, 2, (13, 4)).astype(np.int32)

    def measured(**where: Any) -> tuple[list[Any], np.ndarray]:
        model = ws.nn.Sequential(ws.nn.Embedding(7, 5), ws.nn.Linear(5, 2))
        about = {"inputs": ws.Spec(("batch", 4), "int32"), "targets": ws.Spec(("batch", 4), "int32")}
        metric = ws.metrics.RocAuc(capacity=60)
        told = {"loss": "cross_entropy", "metrics": [metric], "batch_size": 8, "optimizer": ws.SGD(lr=0.0), "seed": 1}
        session = ws.build_session(model, **about, **told, options=ws.CompileOptions(verify=True), **where)
        for part in (slice(0, 8), slice(8, 13)):
            session.step(x=x[part], labels=y[part])
        found = session.metrics()["roc_auc"]
        return [found, session.evaluate_together({"x": x, "labels": y})["roc_auc"]], session.get(
            "metrics.roc_auc.scores"
        )

    (alone, scores), (ranks, kept) = measured(), measured(shards=2)
    assert alone == ranks
    assert scores.tobytes() == kept.tobytes()
    assert np.count_nonzero(scores) == 52


def test_rows_that_stand_behind_another_axis_are_refused() -> None:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 3)), g.input("labels", ("batch",), "int32")
    w = g.parameter("w", (3, 2))
    kept = g.state("kept", (60,), 0.0)
    g.update(kept, ws.write_rows(kept, x.T.reshape(-1), 0))
    g.set_outputs({"loss": ws.losses.cross_entropy(x @ w, labels)})
    with pytest.raises(
        GraphError, match=r"`write_rows`.* stores rows of the batch in a different order than that of the b"
    ):
        ws.build_session(g, batch_size=8, shards=2, device="null")
