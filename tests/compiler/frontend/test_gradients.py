"""`ws.gradients`: section A of the conformance page, recorded by the frontend and run by the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.support.recording import run, value, value_and_gradients
from wholestep.errors import DTypeError, GradientError, ShapeError, UsageError


def test_one_gradient_per_parameter_in_the_order_given():  # A01
    a, b = np.array(3.0), np.array(5.0)
    assert [float(s) for s in value_and_gradients(lambda x, y: x * x * y, a, b)[1]] == [30.0, 9.0]
    assert [float(s) for s in value_and_gradients(lambda y, x: x * x * y, b, a)[1]] == [9.0, 30.0]


def test_the_dot_product_of_the_guide():  # A02
    g = ws.Graph()
    weights, x = g.named_tensor("Weights", [2.0, 3.0]), g.named_tensor("Input", [10.0, 5.0])
    loss = (x * weights).sum_reduce(0)
    dw, dx = ws.gradients(loss, [weights, x])
    g.set_outputs({"loss": loss, "dw": dw, "dx": dx})
    out = run(g.to_ir()).outputs
    assert out["loss"] == 35.0
    np.testing.assert_array_equal(out["dw"], [10.0, 5.0])
    np.testing.assert_array_equal(out["dx"], [2.0, 3.0])


class Module:
    def __init__(self, *parameters):
        self._parameters = parameters

    def parameters(self):
        return self._parameters


def test_forms_of_params():  # A03
    g = ws.Graph()
    x, w = g.input("x", (2,)), g.parameter("w", (2,))
    loss = (x * w).sum()
    assert [t.name for t in ws.gradients(loss, w)] == ["w.grad"]
    assert [t.name for t in ws.gradients(loss, (w, x))] == ["w.grad", "x.grad"]
    assert {k: t.name for k, t in ws.gradients(loss, {"weights": w}).items()} == {"weights": "w.grad"}
    assert list(ws.gradients(loss, Module(w))) == ["w"]
    assert ws.gradients(loss, []) == []
    with pytest.raises(ShapeError, match=r"(?s)shape \(2,\)\. Reduce it first.*test_gradients\.py"):
        ws.gradients(x * w, w)
    for wrong in (3, "w"):
        with pytest.raises(UsageError, match="params must be a tensor, a list, a dict or a module"):
            ws.gradients(loss, wrong)
    with pytest.raises(UsageError, match="gradients needs tensors; received 3"):
        ws.gradients(loss, [3])
    i = g.input("i", (), "int32")
    with pytest.raises(DTypeError, match="needs a float tensor"):
        ws.gradients(loss * i.astype("float32"), i)


def test_one_gradient_node_for_all_parameters():
    g = ws.Graph()
    params = [g.parameter(name, ()) for name in "abc"]
    grads = ws.gradients(params[0] * params[1] + params[2], params)
    assert len({t.node.inputs[0] for t in grads}) == 1


def test_of_itself_and_with_several_uses():  # A04
    g = ws.Graph()
    x = g.input("x", ())
    loss = x * x + 3 * x
    g.set_outputs({"itself": ws.gradients(loss, loss)[0], "slope": ws.gradients(loss, x)[0]})
    out = run(g.to_ir(), {"x": np.array(2.0)}).outputs
    assert (out["itself"], out["slope"]) == (1.0, 7.0)


def test_a_parameter_without_a_path_is_named():  # A06
    g = ws.Graph()
    with pytest.raises(GradientError, match=r"does not depend on 'lonely'"):
        ws.gradients(g.parameter("w", ()) * 2.0, g.parameter("lonely", ()))


def test_gradients_nest():
    g = ws.Graph()
    x = g.input("x", ())
    (first,) = ws.gradients(x**3, x)
    (second,) = ws.gradients(first, x)
    g.set_outputs({"second": second})
    assert run(g.to_ir(), {"x": np.array(2.0)}).outputs["second"] == 12.0


def test_the_two_layers_of_the_guide():  # A15
    x, w1, w2 = np.array([[10.0, 5.0]]), np.array([[2.0, 4.0], [3.0, 1.0]]), np.array([[6.0], [5.0]])
    loss, (_, d1, d2) = value_and_gradients(lambda x, a, b: (ws.relu(x @ a) @ b).sum(), x, w1, w2)
    assert loss == 435.0
    np.testing.assert_allclose(d1, [[60, 50], [30, 25]])
    np.testing.assert_allclose(d2, [[35], [45]])


@pytest.mark.parametrize(
    ("function", "expected", "slope"),
    [
        (ws.softmax, [0.01321289, 0.26538793, 0.72139918], [-0.00953177, -0.19145064, 0.2009824]),  # A16
        (ws.layer_norm, [-1.37281057, 0.39223159, 0.98057898], [0.06788532, -0.27154469, 0.20365936]),  # A17
    ],
)
def test_softmax_and_layer_norm(function, expected, slope):
    x = np.array([-1.0, 2.0, 3.0])
    np.testing.assert_allclose(value(function, x), expected, atol=1e-8)
    np.testing.assert_allclose(value_and_gradients(lambda t: function(t).max(), x)[1][0], slope, atol=1e-8)
