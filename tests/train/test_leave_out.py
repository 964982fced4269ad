"""Leave-out influence: a run in which some rows have no weight, alone and as replicas of one plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.compilers import quick
from wholestep.compiler import pipeline

RNG = np.random.default_rng(0)
X = RNG.normal(size=(42, 3)).astype("f4")
Y = (X @ np.array([[1.0], [-2.0], [0.5]], "f4")).astype("f4")
Y[5] += 30  # an outlier
GIVEN: dict[str, Any] = {
    "loss": "mse",
    "optimizer": ws.SGD(lr=0.1),
    "batch_size": 14,
    "epochs": 3,
    "shuffle": False,
    "progress": False,
    "options": quick(),
}


def line() -> ws.nn.Module:
    model = ws.nn.Linear(3, 1)
    model.load_state_dict({"weight": np.full((1, 3), 0.2, "f4"), "bias": np.zeros(1, "f4")})
    return model


def torch_without(rows: list[int], weights: np.ndarray | None = None) -> torch.nn.Linear:
    """The run in torch: each batch is the mean over its other rows."""
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.fill_(0.2)
        model.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for start in range(0, 42, 14):
            kept = [row for row in range(start, start + 14) if row not in rows]
            w = torch.ones(len(kept), 1) if weights is None else torch.tensor(weights[kept])[:, None]
            optimizer.zero_grad()
            errors = (model(torch.tensor(X[kept])) - torch.tensor(Y[kept])) ** 2
            ((w * errors).sum() / w.sum()).backward()
            optimizer.step()
    return model


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_each_replica_is_a_run_of_torch_without_the_rows(device: str) -> None:
    groups: list[list[int]] = [[], [5], [5, 20, 33]]
    model = line()
    history = ws.fit(model, (X, Y), validation=(X, Y), sweep={"leave_out": groups}, device=device, **GIVEN)
    for rows in groups:
        (replica,) = history.without(rows)
        expected = torch_without(rows).weight.detach().numpy()
        np.testing.assert_allclose(replica.model.state_dict()["weight"], expected, rtol=1e-4, atol=1e-5)
    whole, without = history.without([]), history.without(np.array([5]))
    assert len(without) == 3
    assert without["loss"][-1] < 0.1 * whole["loss"][-1]
    np.testing.assert_array_equal(model.state_dict()["weight"], whole.replicas[0].model.state_dict()["weight"])


def test_weights_of_rows_are_kept_and_seeds_give_a_spread() -> None:
    weights = np.linspace(0.5, 2.0, 42).astype("f4")
    history = ws.fit(line(), (X, Y, weights), sweep={"leave_out": [[], [5]]}, device="reference", **GIVEN)
    expected = torch_without([5], weights).weight.detach().numpy()
    (replica,) = history.without([5])
    np.testing.assert_allclose(replica.model.state_dict()["weight"], expected, rtol=1e-4, atol=1e-5)
    given = {**GIVEN, "shuffle": True, "device": "reference"}
    several = ws.fit(ws.nn.Linear(3, 1), (X, Y), sweep={"leave_out": [[], [5]]}, replicas=3, **given)
    assert [len(several.without(rows).replicas) for rows in ([], [5])] == [3, 3]
    assert several.without([5]).std("loss")[-1] > 0


def test_the_replicas_have_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    plan = pipeline.Compiler.plan

    def count_plan(self: Any, graph: Any, *more: Any) -> Any:
        plans.append(graph)
        return plan(self, graph, *more)

    monkeypatch.setattr(pipeline.Compiler, "plan", count_plan)
    options = ws.CompileOptions(verify=False, compiler=quick().compiler, cache=False)
    groups = [[], *([row] for row in range(5))]
    ws.fit(line(), (X, Y), sweep={"leave_out": groups}, **{**GIVEN, "options": options})
    assert len(plans) == 1


def test_a_single_run_leaves_rows_out_and_measures_without_them() -> None:
    model = line()
    loader = ws.DataLoader(X, Y, batch_size=14, shuffle=False)
    history = ws.fit(model, loader, leave_out=[5, 20, 33], metrics=["mae"], device="reference", **GIVEN)
    expected = torch_without([5, 20, 33]).weight.detach().numpy()
    np.testing.assert_allclose(model.state_dict()["weight"], expected, rtol=1e-4, atol=1e-5)
    assert history["mae"][-1] < 1.0  # the outlier alone would add 30 / 42 to it
    assert loader.source.weights is None  # type: ignore[union-attr]


def test_a_batch_of_rows_that_are_all_left_out_may_be_skipped() -> None:
    model, given = line(), {**GIVEN, "epochs": 1, "device": "reference"}
    with pytest.raises(ws.errors.NonFiniteError, match="it concerns every row"):
        ws.fit(line(), (X, Y), leave_out=range(14), **given)
    ws.fit(model, (X, Y), leave_out=range(14), nonfinite="skip", **given)
    other = line()
    ws.fit(other, (X[14:], Y[14:]), **given)
    np.testing.assert_allclose(model.state_dict()["weight"], other.state_dict()["weight"], rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([42], "expected rows of the training data, integers from 0 to 41"),
        ([-1], "integers from 0 to 41"),
        ([0.5], "integers from 0 to 41"),
        (range(42), "leaves out all 42 rows"),
    ],
)
def test_wrong_rows_are_refused(rows: Any, says: str) -> None:
    with pytest.raises(ws.errors.OptionError, match=says):
        ws.fit(line(), (X, Y), leave_out=rows, **{**GIVEN, "device": "reference"})


def test_data_that_is_read_row_by_row_and_unknown_rows_are_refused() -> None:
    rows = [(x, y) for x, y in zip(X, Y, strict=True)]

    class Rows:
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> Any:
            return rows[index]

    with pytest.raises(ws.errors.UsageError, match="leave_out= needs data in memory"):
        ws.fit(line(), Rows(), leave_out=[1], **{**GIVEN, "device": "reference"})
    history = ws.fit(line(), (X, Y), sweep={"leave_out": [[], [5]]}, device="reference", **GIVEN)
    with pytest.raises(ws.errors.UsageError, match=r"no replica was trained without the rows \[3\]"):
        history.without([3])
