"""Many rows: predictions in constant memory, with the bits of all at once, and no part where rows need each other."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from wholestep.errors import OptionError, UsageError

X = np.random.default_rng(0).standard_normal((700, 6)).astype(np.float32)


class Centred(ws.nn.Module):
    """Every row depends on all of them."""

    def __init__(self) -> None:
        self.fc = ws.nn.Linear(6, 3)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.fc(x - x.mean(0))


class Pair(ws.nn.Module):
    def __init__(self) -> None:
        self.fc = ws.nn.Linear(6, 3)

    def forward(self, x: ws.Tensor, scale: ws.Tensor) -> tuple[ws.Tensor, ws.Tensor]:
        y = self.fc(x) * scale
        return y, ws.softmax(y, axis=-1)


def planned_rows(model: ws.nn.Module) -> list[dict[str, int]]:
    return [dict(p.session.plan.sizes) for p in model.__dict__["_predictors"].by_key.values()]


def weights(model: ws.nn.Module) -> tuple[np.ndarray, np.ndarray]:
    found = model.state_dict()
    return found["fc.weight"], found["fc.bias"]


def test_many_rows_need_no_more_memory_than_a_batch() -> None:
    model = ws.nn.Sequential(ws.nn.Linear(6, 8), ws.nn.ReLU(), ws.nn.Dropout(0.5), ws.nn.Linear(8, 3))
    parts = model.predict(X)
    assert planned_rows(model) == [{"batch": 256}]
    np.testing.assert_array_equal(parts, model.predict(X, batch_size=1024))
    np.testing.assert_array_equal(parts, model.predict(X, batch_size=100))
    assert planned_rows(model) == [{"batch": 256}, {"batch": 1024}, {"batch": 128}]


def test_tuples_and_several_inputs_are_joined_row_by_row() -> None:
    model, scale = Pair(), np.linspace(1, 2, len(X), dtype=np.float32)[:, None]
    y, p = model.predict(X, scale, batch_size=64)
    weight, bias = weights(model)
    np.testing.assert_allclose(y, (X @ weight.T + bias) * scale, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-5)


def test_rows_that_depend_on_each_other_are_taken_at_once() -> None:
    model = Centred()
    found = model.predict(X)
    assert planned_rows(model) == [{"batch": 1024}]
    weight, bias = weights(model)
    np.testing.assert_allclose(found, (X - X.mean(0)) @ weight.T + bias, rtol=1e-4, atol=1e-5)


def test_a_session_refuses_to_cut_such_rows_and_names_the_line() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 6))
    g.set_outputs({"y": x - x.mean(0)})
    session = ws.build_inference_session(g, batch_size=32)
    with pytest.raises(UsageError, match=r"more rows than the capacity.*test_predict_in_parts.*larger batch_size"):
        session.predict(x=X)
    np.testing.assert_allclose(session.predict(x=X[:32]), X[:32] - X[:32].mean(0), atol=1e-6)


def test_a_batch_size_is_a_number_of_rows() -> None:
    with pytest.raises(OptionError, match="batch_size=0: expected an integer of rows, at least 1"):
        ws.nn.Linear(6, 3).predict(X, batch_size=0)
