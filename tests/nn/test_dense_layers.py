"""Section C of the conformance page: activations and dense layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wholestep as ws

Array = np.ndarray[Any, Any]


def value_and_slope(function: Callable[[ws.Tensor], ws.Tensor], at: list[float]) -> tuple[Array, Array]:
    """The function and its derivative, compiled, in float64."""
    g = ws.Graph()
    x = g.parameter("x", (len(at),), init=ws.init.values(np.array(at)), dtype="float64")
    y = function(x)
    (slope,) = ws.gradients(y.sum(), [x])
    g.set_outputs({"y": y, "slope": slope})
    out = ws.build_inference_session(g).step()
    return out["y"], out["slope"]


def close(actual: object, expected: object, atol: float = 5e-9) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def test_c01_relu() -> None:
    y, slope = value_and_slope(ws.relu, [-0.1, 0.8, -0.5, 0.0])
    close(y, [0, 0.8, 0, 0])
    close(slope, [0, 1, 0, 0])


def test_c02_sigmoid() -> None:
    y, slope = value_and_slope(ws.sigmoid, [0.0, 2.0, 40.0, -40.0])
    close(y[:2], [0.5, 0.88079708])
    close(slope[:2], [0.25, 0.10499359])
    assert np.all(np.abs(slope[2:]) < 1e-16)
    grid = value_and_slope(ws.sigmoid, list(np.linspace(-3, 3, 61)))[1]
    assert grid.max() == pytest.approx(0.25)


def test_c03_tanh() -> None:
    y, slope = value_and_slope(ws.tanh, [0.0, 0.5])
    close(y, [0, 0.46211716])
    close(slope, [1, 0.78644773])


def test_c04_dense_layer() -> None:
    g = ws.Graph()
    w = g.parameter("w", (3, 2), init=ws.init.values(np.array([[1.0, 2], [3, 4], [5, 6]])), dtype="float64")
    b = g.parameter("b", (3,), init=0.0, dtype="float64")
    x = g.parameter("x", (2,), init=ws.init.values(np.array([1.0, 2])), dtype="float64")
    y = w @ x + b
    dw, dx, db = ws.gradients((y * g.constant(np.array([-0.3, 0.2, 0.1]))).sum(), [w, x, b])
    g.set_outputs({"dw": dw, "dx": dx, "db": db})
    out = ws.build_inference_session(g).step()
    close(out["dw"], [[-0.3, -0.6], [0.2, 0.4], [0.1, 0.2]])
    close(out["dx"], [0.8, 0.8])
    close(out["db"], [-0.3, 0.2, 0.1])


def test_c05_softmax() -> None:
    y, _ = value_and_slope(lambda x: ws.softmax(x), [0.1, 0.6, 0.2, 0.05, 0.05])
    close(y, [0.17679242, 0.29148143, 0.19538584, 0.16817015, 0.16817015])
