"""`python -m benchmarks adamw`: what an update adds to a step, and that steps without one keep their gradients."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from benchmarks import adamw
from benchmarks.cases import CASES, INSIDE
from benchmarks.frameworks.kept_gradients import KeepGradients
from benchmarks.harness import Measurements, summary
from benchmarks.tables import show_adamw
from benchmarks.update_worker import FORMS


def test_an_update_costs_the_median_difference_within_rounds() -> None:
    measured = Measurements(
        "adamw_in_bigmlp",
        {
            "wholestep": {"adamw": [110.0, 1010.0, 120.0], "none": [100.0, 1000.0, 100.0]},
            "torch_eager": {"adamw": [230.0, 2020.0, 250.0], "none": [200.0, 2000.0, 200.0]},
        },
    )
    assert adamw.update_cost(measured) == {
        "step_us": {"wholestep": 120.0, "torch_eager": 250.0},
        "update_us": {"wholestep": 10.0, "torch_eager": 30.0},
        "ratio": 3.0,
        "target": 1.3,
    }


def test_an_update_that_cannot_be_told_from_nothing_has_no_ratio() -> None:
    cells = {"adamw": [1.0], "none": [1.0]}
    assert adamw.update_cost(Measurements("x", {"wholestep": cells, "torch_eager": cells}))["ratio"] is None


def test_its_contenders_are_known_to_the_workers() -> None:
    assert {"wholestep", *adamw.PEERS} <= set(FORMS)
    assert {cell.optimizer for case in INSIDE.values() for cell in case.cells} == {"adamw", "none"}
    assert not set(INSIDE) & set(CASES)


def test_a_step_without_an_update_keeps_its_gradients_and_its_parameters() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 3))
    w = g.parameter("w", (3, 2), init=ws.init.ones())
    g.set_outputs([(x @ w).sum()])
    session = ws.build_session(g, optimizer=KeepGradients(), batch_size=4, threads=1)
    given = np.arange(12, dtype=np.float32).reshape(4, 3)
    session.step(x=given)
    assert session.get("w") == pytest.approx(np.ones((3, 2)))
    assert session.get("w.kept.gradient") == pytest.approx(np.repeat(given.sum(axis=0)[:, None], 2, axis=1))


def test_the_table_has_what_was_asked_beside_the_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    alone = Measurements("adamw", {"wholestep": {"adamw": [1.0]}}, {"wholestep": 0.5})
    row = {"step_us": {}, "update_us": {"wholestep": 10.0, "torch_eager": 30.0}, "ratio": 3.0, "target": 1.3}
    show_adamw({**summary(alone), "inside": {"adamw_in_gpt": row, "adamw_in_bigmlp": {**row, "ratio": None}}})
    lines = capsys.readouterr().out.splitlines()
    assert next("3.00x" in line and "1.3x" in line for line in lines if "adamw_in_gpt" in line)
    assert next(" - " in line for line in lines if "adamw_in_bigmlp" in line)
