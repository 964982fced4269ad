"""`ws.gradcheck` of functions, modules and losses: what is right passes, what is wrong is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws

RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 2))
HOW: dict[str, Any] = {"device": "reference"}


def test_a_function_of_several_arrays_compiled() -> None:
    report = ws.gradcheck(lambda x, w: (ws.tanh(x @ w), ws.sort(x)), X, W)
    assert report
    assert report.worst < 1e-7
    assert [a.checked for a in report.arrays] == [12, 6]
    assert "gradients agree with finite differences: worst error" in str(report)


def test_a_module_keeps_its_numbers_and_dtype() -> None:
    model = ws.nn.Sequential(ws.nn.Linear(3, 5), ws.nn.BatchNorm1d(5), ws.nn.Tanh(), ws.nn.Linear(5, 2))
    before = model.state_dict()
    report = ws.gradcheck(model, X, loss="cross_entropy", targets=np.array([0, 1, 1, 0]), elements=3, **HOW)
    assert report, report
    names = {a.name.removeprefix("model.") for a in report.arrays}
    assert names == {"input0", "0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}
    for name, value in model.state_dict().items():
        assert value.dtype == before[name].dtype
        np.testing.assert_array_equal(value, before[name])


def test_indices_are_given_as_they_are() -> None:
    assert ws.gradcheck(ws.nn.Embedding(5, 3), np.array([[0, 4], [1, 1]]), **HOW)


@pytest.mark.parametrize("loss", ["huber", "bce", "log_cosh"])
def test_a_loss_by_name(loss: str) -> None:
    report = ws.gradcheck(loss, X, np.clip(np.abs(X), 0.1, 0.9), **HOW)
    assert report, report


def wrong() -> Any:
    @ws.custom_gradient
    def cube(x: ws.Tensor) -> Any:
        return x * x * x, lambda g: g * x * x * 2.0  # should be 3

    return cube


def test_a_wrong_gradient_is_named_with_its_place() -> None:
    report = ws.gradcheck(lambda x: wrong()(x) + x, X + 3.0, **HOW)
    assert not report
    text = str(report)
    assert "do not agree" in text
    assert "! input0 (4, 3): 12 of 12 elements, worst error" in text
    assert "A kink (relu at 0" in text
    bad = report.arrays[0]
    assert bad.compiled < bad.by_differences


def test_in_float32_the_tolerance_is_wider() -> None:
    assert ws.gradcheck(lambda x: ws.sigmoid(x) * x, X, dtype="float32", **HOW)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ws.gradcheck(lambda x: ws.dropout(x, 0.5), X, **HOW), "dropout at .* draws new numbers in every step"),
        (
            lambda: ws.gradcheck(lambda i: i.astype("float64"), np.arange(3), **HOW),
            "needs an input of floats or a parameter",
        ),
        (lambda: ws.gradcheck(lambda x: x > 0, X, **HOW), "gives tensors of floats; it gave"),
        (lambda: ws.gradcheck(3, X), "takes a function of tensors, a module or the name of a loss; received 3"),
        (lambda: ws.gradcheck(ws.tanh, X, dtype="bfloat16"), "dtype is 'float32' or 'float64'"),
    ],
)
def test_errors_teach(call: Any, text: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=text):
        call()
