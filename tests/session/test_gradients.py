"""Section A of the conformance page: gradients, through compiled sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.ops.cases.custom_gradients import BENT
from tests.ops.compiled_ops import compiled
from tests.ops.table import GROUPS, Array
from tests.support.oracles import assert_close
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.errors import GradientError, ShapeError

Recorded = dict[str, ws.Tensor]


def compute(record: Callable[..., Recorded], *arrays: Any) -> dict[str, Array]:
    """What a recorded function of arrays gives in float64, after float32 was found to agree to 1e-5."""
    g, given, outputs = ws.Graph(), {}, {}
    for dtype in ("float64", "float32"):
        names = [f"{dtype} {i}" for i in range(len(arrays))]
        given |= {n: np.asarray(a, dtype) for n, a in zip(names, arrays, strict=True)}
        tensors = [g.input(n, given[n].shape, dtype) for n in names]
        outputs |= {f"{dtype} {name}": t for name, t in record(*tensors).items()}
    g.set_outputs({"nothing": outputs[next(iter(outputs))].sum(), **outputs})
    out = ws.build_inference_session(g).step(given).outputs
    exact = {name.removeprefix("float64 "): v for name, v in out.items() if name.startswith("float64")}
    for name, value in exact.items():
        np.testing.assert_allclose(out[f"float32 {name}"], value, rtol=1e-5, atol=1e-6)
    return exact


def slopes(function: Callable[..., ws.Tensor], *arrays: Any) -> tuple[float, list[Array]]:
    """The value of a scalar function and its gradients."""

    def record(*tensors: ws.Tensor) -> Recorded:
        loss = function(*tensors)
        grads = ws.gradients(loss, list(tensors))
        return {"loss": loss, **{f"grad{i}": t for i, t in enumerate(grads)}}

    out = compute(record, *arrays)
    return float(out["loss"]), [out[f"grad{i}"] for i in range(len(arrays))]


def digits(actual: Any, expected: Any) -> None:
    """Equal to the eight digits that the page shows."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=5.1e-9)


def test_a01_one_gradient_per_parameter_in_the_order_given() -> None:
    def record(a: ws.Tensor, b: ws.Tensor) -> Recorded:
        loss = a * a * b
        (first, second), (third, fourth) = ws.gradients(loss, [a, b]), ws.gradients(loss, [b, a])
        return {"da": first, "db": second, "swapped db": third, "swapped da": fourth}

    out = compute(record, 3.0, 5.0)
    assert (out["da"], out["db"]) == (out["swapped da"], out["swapped db"]) == (30.0, 9.0)


def test_a02_the_dot_product_of_the_guide() -> None:
    g = ws.Graph()
    weights, x = g.named_tensor("weights", [2.0, 3.0]), g.named_tensor("input", [10.0, 5.0])
    loss = (x * weights).sum_reduce(0)
    dw, dx = ws.gradients(loss, [weights, x])
    g.set_outputs({"loss": loss, "dw": dw, "dx": dx})
    out = ws.build_inference_session(g).step()
    assert (out.loss, out["dw"].tolist(), out["dx"].tolist()) == (35.0, [10.0, 5.0], [2.0, 3.0])


class Module:
    def __init__(self, *parameters: ws.Tensor) -> None:
        self._parameters = parameters

    def parameters(self) -> tuple[ws.Tensor, ...]:
        return self._parameters


def test_a03_forms_of_params() -> None:
    g = ws.Graph()
    x, w = g.input("x", (2,)), g.parameter("w", (2,), init=[3.0, 4.0])
    loss = (x * w * w).sum()
    one, many = ws.gradients(loss, w), ws.gradients(loss, (w, x))
    by_key, by_name = ws.gradients(loss, {"weights": w}), ws.gradients(loss, Module(w))
    assert (len(one), len(many), list(by_key), list(by_name)) == (1, 2, ["weights"], ["w"])
    g.set_outputs({"loss": loss, "a": one[0], "b": many[0], "c": by_key["weights"], "d": by_name["w"], "e": many[1]})
    out = ws.build_inference_session(g).step(x=np.array([1.0, 10.0], np.float32))
    assert all(out[name].tolist() == [6.0, 80.0] for name in "abcd")
    assert out["e"].tolist() == [9.0, 16.0]
    with pytest.raises(ShapeError, match=r"(?s)the loss has shape \(2,\)\. Reduce it first.*test_gradients\.py"):
        ws.gradients(x * w, w)


def test_a04_of_itself_and_with_several_uses() -> None:
    def record(x: ws.Tensor) -> Recorded:
        loss = x * x + 3 * x
        return {"itself": ws.gradients(loss, loss)[0], "slope": ws.gradients(loss, x)[0]}

    assert {k: float(v) for k, v in compute(record, 2.0).items()} == {"itself": 1.0, "slope": 7.0}


def test_a05_branches_off_the_path_add_no_backward_nodes() -> None:
    def backward_nodes(*, unreached: bool = False, unread: bool = False) -> int:
        g = ws.Graph()
        x, other, w = g.input("x", (3,)), g.input("other", (3,)), g.parameter("w", (3,))
        extra = ws.exp(other).sum() if unreached else g.constant(1.0) * 1.0
        loss = (x * w * w).sum() + extra
        outputs = {"loss": loss, **({"unread": ws.tanh(w).sum()} if unread else {})}
        g.set_outputs(outputs)
        forward = len(g.to_ir().nodes)
        g.set_outputs({**outputs, "dw": ws.gradients(loss, w)[0]})
        return len(expand_gradients(g.to_ir()).nodes) - forward

    assert backward_nodes() == backward_nodes(unreached=True) == backward_nodes(unread=True)


def test_a06_a_parameter_without_a_path_is_named_when_the_session_is_built() -> None:
    g = ws.Graph()
    w, _ = g.parameter("w", (3,)), g.parameter("lonely", (3,))
    g.set_outputs([(w * w).sum()])
    with pytest.raises(GradientError, match=r"does not depend on 'lonely' \(made at .*test_gradients\.py"):
        ws.build_session(g)


def test_a07_add_and_mul() -> None:
    assert slopes(lambda x, y: x.add(y), 3.0, 5.0) == (8.0, [1.0, 1.0])
    assert slopes(lambda x, y: x.mul(y), 3.0, 5.0) == (15.0, [5.0, 3.0])


def test_a08_sum_reduce_with_an_upstream() -> None:
    _, (dx, _) = slopes(lambda x, u: (x.sum_reduce(1) * u).sum(), np.arange(6.0).reshape(2, 3), [2.0, -1.0])
    assert dx.tolist() == [[2, 2, 2], [-1, -1, -1]]


def test_a09_max_reduce() -> None:
    assert slopes(lambda x: x.max_reduce() * 2.5, [3.0, 7.0, 5.0])[1][0].tolist() == [0, 2.5, 0]


def test_a10_max_reduce_splits_ties() -> None:
    assert slopes(lambda x: x.max_reduce(0), [2.0, 7.0, 7.0])[1][0].tolist() == [0, 0.5, 0.5]


def test_a11_unary_ops() -> None:
    points = {"log2": 4.0, "exp2": 3.0, "sin": np.pi / 3, "sqrt": 4.0, "recip": 4.0}

    def record(*tensors: ws.Tensor) -> Recorded:
        out = {}
        for name, x in zip(points, tensors, strict=True):
            out[name] = getattr(x, name)()
            out[f"d{name}"] = ws.gradients(out[name], x)[0]
        return out

    out = compute(record, *points.values())
    digits([out[name] for name in points], [2.0, 8.0, 0.8660254038, 2.0, 0.25])
    digits([out[f"d{name}"] for name in points], [0.36067376, 5.54517744, 0.5, 0.25, -0.0625])


def test_a12_mod_and_comparisons_have_no_gradient() -> None:
    g = ws.Graph()
    w = g.parameter("w", (3,))
    g.set_outputs([w.sum() + ws.exp(w).mod(2.0).sum()])
    with pytest.raises(GradientError, match=r"(?s)arrived at `mod` \(.*test_gradients\.py:\d+\).*w -> exp -> mod"):
        ws.build_session(g)
    g = ws.Graph()
    w = g.parameter("w", (3,))
    g.set_outputs([(w * 2.0).less_than(1.0).astype("float32").sum()])
    with pytest.raises(
        GradientError, match=r"(?s)no gradient reaches `w`.*`less` \(.*test_gradients\.py:\d+\).*w -> mul -> less"
    ):
        ws.build_session(g)


def test_a13_a_comparison_beside_another_path() -> None:
    assert slopes(lambda x: (x * (x > 0).astype(x.dtype)).sum(), [-1.0, 2.0])[1][0].tolist() == [0, 1]


def test_a14_a_broadcast_bias() -> None:
    assert slopes(lambda x, b: (x + b).sum(), np.ones((2, 3)), np.zeros(3))[1][1].tolist() == [2, 2, 2]


def test_a15_the_two_layers_of_the_guide() -> None:
    loss, (_, d1, d2) = slopes(
        lambda x, a, b: (ws.relu(x @ a) @ b).sum(), [[10.0, 5.0]], [[2.0, 4.0], [3.0, 1.0]], [[6.0], [5.0]]
    )
    assert (loss, d1.tolist(), d2.tolist()) == (435.0, [[60, 50], [30, 25]], [[35], [45]])


def value_and_slope_of_the_maximum(function: Callable[[ws.Tensor], ws.Tensor]) -> tuple[Array, Array]:
    def record(x: ws.Tensor) -> Recorded:
        y = function(x)
        return {"y": y, "slope": ws.gradients(y.max(), x)[0]}

    out = compute(record, [-1.0, 2.0, 3.0])
    return out["y"], out["slope"]


def test_a16_softmax() -> None:
    y, slope = value_and_slope_of_the_maximum(ws.softmax)
    digits(y, [0.01321289, 0.26538793, 0.72139918])
    digits(slope, [-0.00953177, -0.19145064, 0.2009824])


def test_a17_layer_norm() -> None:
    y, slope = value_and_slope_of_the_maximum(lambda x: ws.layer_norm(x, eps=1e-5))
    digits(y, [-1.37281057, 0.39223159, 0.98057898])
    digits(slope, [0.06788532, -0.27154469, 0.20365936])


@pytest.mark.parametrize("group", GROUPS)
def test_a18_a_loss_times_two_and_a_half(group: str) -> None:
    one, more = (compiled(group, "float64", upstream) for upstream in (1.0, 2.5))
    for name in GROUPS[group]:
        np.testing.assert_array_equal(one.values[name], more.values[name])
        for a, b in zip(one.grads[name], more.grads[name], strict=True):
            if name not in BENT:
                assert_close(b, 2.5 * a, "float64")
