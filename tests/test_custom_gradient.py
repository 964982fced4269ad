"""`ws.custom_gradient` in programs: modules, steps, windows, second order; values against torch are in custom_cases."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from custom_cases import clipped, projected, reversed_gradient, straight_through, theirs
from oracles import assert_close
from recording import run, value_and_gradients

import wholestep as ws
from wholestep.compiler.ir.fingerprint import fingerprint
from wholestep.compiler.ir.text import parse_graph, print_graph
from wholestep.errors import GraphError

RNG = np.random.default_rng(3)
X = RNG.normal(size=(10, 6)).astype(np.float32)
W = RNG.normal(size=(6, 4)).astype(np.float32)


# -- where it may stand ----------------------------------------------------------------------------------------------


class Quantized(ws.nn.Module):
    """A linear layer whose weights are rounded to quarters, and trained as if they were not."""

    def __init__(self) -> None:
        self.weight = ws.nn.Parameter((6, 4), init=W)

    def forward(self, x: Any) -> Any:
        return x @ (straight_through(4.0 * self.weight) / 4.0)


def test_a_module_trains_like_its_torch_twin_with_partial_batches() -> None:
    target = RNG.normal(size=(10, 4)).astype(np.float32)
    model = Quantized()
    session = ws.build_session(
        model, inputs=ws.Spec(("batch", 6)), targets=ws.Spec(("batch", 4)), loss="mse", optimizer=ws.SGD(lr=0.1),
        batch_size=8,
    )  # fmt: skip
    w, floor = torch.tensor(W, requires_grad=True), theirs(torch.floor, lambda x, g: g)
    for rows in (slice(0, 8), slice(7, 10), slice(2, 7)):
        loss = session.step(x=X[rows], labels=target[rows]).loss
        expected = ((torch.tensor(X[rows]) @ (floor(4.0 * w) / 4.0) - torch.tensor(target[rows])) ** 2).mean()
        (slope,) = torch.autograd.grad(expected, w)
        w.data -= 0.1 * slope
        assert_close(loss, expected.detach().numpy())
        assert_close(session.get("weight"), w.detach().numpy())
    assert_close(model.predict(X), X @ (np.floor(4.0 * w.detach().numpy()) / 4.0))


def test_a_step_of_ones_own_trains_two_sides_against_each_other() -> None:
    @ws.step(inputs={"x": ws.Spec(("batch", 6)), "y": ws.Spec(("batch",))})
    def adversarial(g: Any, x: Any, y: Any) -> Any:
        w, judge = g.parameter("w", (6, 4), init=W), g.parameter("judge", (4,), init=1.0)
        loss = ((reversed_gradient(x @ w, factor=2.0) @ judge - y) ** 2).mean()
        ws.SGD(lr=0.1).update(g, [w, judge], ws.gradients(loss, [w, judge]))
        return loss

    y = X.sum(1)
    session = ws.build_session(adversarial, batch_size=10)
    session.step(x=X, y=y)
    w, judge = torch.tensor(W, requires_grad=True), torch.ones(4, requires_grad=True)
    ((torch.tensor(X) @ w @ judge - torch.tensor(y)) ** 2).mean().backward()
    assert_close(session.get("w"), W + 0.2 * w.grad.numpy())
    assert_close(session.get("judge"), 1.0 - 0.1 * judge.grad.numpy())


class Pair(NamedTuple):
    value: Any
    index: Any


@ws.custom_gradient
def best(parts: Any, *, scale: float) -> Any:
    """Tensors in a dict, a plain value, an output that is an integer, outputs with names."""
    total = (parts["a"] + parts["b"]) * scale

    def gradient(upstream: Any, nothing: Any) -> Any:
        assert nothing is None
        return upstream[:, None] * parts["b"], None

    return Pair(total.max(1), total.argmax(1)), gradient


def test_arguments_and_results_may_be_nested() -> None:
    def loss(a: Any, b: Any) -> Any:
        found = best({"a": a, "b": b}, scale=2.0)
        assert isinstance(found, Pair)
        assert found.index.dtype == ws.int32
        return (found.value * 3.0).sum() + (b * b).sum()

    a, b = RNG.normal(size=(2, 3, 4))
    value, (da, db) = value_and_gradients(loss, a, b)
    np.testing.assert_allclose(value, 6.0 * (a + b).max(1).sum() + (b * b).sum())
    np.testing.assert_allclose(da, 3.0 * b)
    np.testing.assert_allclose(db, 2.0 * b)


def test_the_same_tensor_twice_gets_both_gradients() -> None:
    @ws.custom_gradient
    def product(x: Any, y: Any) -> Any:
        return x * y, lambda upstream: (2.0 * upstream, 5.0 * upstream)

    _, (slope,) = value_and_gradients(lambda x: product(x, x).sum(), X)
    np.testing.assert_array_equal(slope, np.full(X.shape, 7.0))


def test_constants_alone_have_no_gradient_to_give() -> None:
    function = ws.custom_gradient(lambda c: (ws.exp2(c), lambda upstream: upstream))
    _, (slope,) = value_and_gradients(lambda x: (x * function(3.0)).sum(), X)
    np.testing.assert_array_equal(slope, np.full(X.shape, 8.0))


def test_inside_a_loop_with_a_loop_in_its_gradient() -> None:
    decay = W[0, :3].astype(float)

    @ws.custom_gradient
    def decayed(h: Any, x: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            slope, _ = ws.scan(lambda c, w: (c * w, None), upstream, decay)
            return slope, None

        return h + x, gradient

    g = ws.Graph()
    x, h = g.input("x", ("time", 4), "float64"), g.parameter("h", (4,), dtype="float64").keep()
    last, _ = ws.scan(lambda h, x: (decayed(h, x), None), h, x)
    g.set_outputs([(last * last).sum()])
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.0), capacity={"time": 4})
    xs = RNG.normal(size=(3, 4))
    expected = 2.0 * (xs.sum(0) + session.get("h")) * float(np.prod(decay)) ** 3
    assert_close(session.step(x=xs).outputs["h.grad"], expected, "float64")


# -- gradients of gradients ------------------------------------------------------------------------------------------


def test_second_order_goes_through_values_as_they_were_computed() -> None:
    """d(upstream · y)/dx takes y = floor(x) + x² for what it is, not for its custom gradient."""

    @ws.custom_gradient
    def odd(x: Any) -> Any:
        y = ws.floor(x) + x * x
        return y, lambda upstream: upstream * y

    def penalty(x: Any) -> Any:
        (slope,) = ws.gradients(odd(x).sum(), x)
        return (slope * 3.0).sum()

    value, (second,) = value_and_gradients(penalty, X.astype(float))
    np.testing.assert_allclose(value, 3.0 * (np.floor(X) + X.astype(float) ** 2).sum())
    np.testing.assert_allclose(second, 6.0 * X.astype(float))


def test_a_gradient_may_have_a_gradient_of_its_own() -> None:
    @ws.custom_gradient
    def cube(x: Any) -> Any:
        @ws.custom_gradient
        def slope(x: Any, upstream: Any) -> Any:
            return 3.0 * x * x * upstream, lambda g: (100.0 * g * upstream, 3.0 * x * x * g)

        return x * x * x, lambda upstream: slope(x, upstream)

    def penalty(x: Any) -> Any:
        (first,) = ws.gradients(cube(x).sum(), x)
        return first.sum()

    _, (second,) = value_and_gradients(penalty, X)
    np.testing.assert_allclose(second, np.full(X.shape, 100.0))


def test_a_gradient_by_ws_gradients_follows_one_argument_through_another() -> None:
    @ws.custom_gradient
    def blocked(h: Any, w: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return None, ws.gradients((h * w * upstream).sum(), w)[0]

        return ws.floor(h * w), gradient

    def loss(w: Any) -> Any:
        return (2.0 * blocked(w * w, w)).sum()

    _, (slope,) = value_and_gradients(loss, X.astype(float))
    np.testing.assert_allclose(slope, 6.0 * X.astype(float) ** 2)  # d w³ / dw, since h is w²


def test_a_true_gradient_agrees_with_finite_differences() -> None:
    def loss(x: Any, w: Any) -> Any:
        product, total = projected(x, w)
        return (ws.sin(product).sum(1) * total).sum()

    arrays = [0.3 * X.astype(float), W.astype(float)]
    directions = [RNG.normal(size=a.shape) for a in arrays]
    _, slopes = value_and_gradients(loss, *arrays)
    moved = [
        value_and_gradients(loss, *(a + s * d for a, d in zip(arrays, directions, strict=True)))[0]
        for s in (1e-5, -1e-5)
    ]
    along = sum((s * d).sum() for s, d in zip(slopes, directions, strict=True))
    np.testing.assert_allclose((moved[0] - moved[1]) / 2e-5, along, rtol=1e-7)


# -- nothing is left of it -------------------------------------------------------------------------------------------


@ws.custom_gradient
def own_relu(x: Any) -> Any:
    y = ws.relu(x)
    return y, lambda upstream: ws.where(x > 0, upstream, 0.0)


def network(activation: Any) -> ws.Graph:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 6)), g.input("labels", ("batch",), "int32")
    w1, w2 = g.parameter("w1", (6, 32)), g.parameter("w2", (32, 4))
    g.set_outputs({"loss": ws.losses.cross_entropy(activation(x @ w1) @ w2, labels)})
    return g


def test_it_compiles_to_the_kernels_of_ordinary_code() -> None:
    labels = np.arange(10, dtype=np.int32) % 4
    sessions = [ws.build_session(network(f), optimizer=ws.Adam(), batch_size=10) for f in (own_relu, ws.relu)]
    ours, plain = ([(k.kind, k.flops) for k in s.plan.kernels] for s in sessions)
    assert ours == plain
    for session in sessions:
        session.step(x=X, labels=labels)
    assert sessions[0].get("w1").tobytes() == sessions[1].get("w1").tobytes()


def test_prediction_computes_nothing_for_the_gradient() -> None:
    @ws.custom_gradient
    def wasteful(x: Any) -> Any:
        return x + 1.0, lambda upstream: upstream * ws.softmax(x @ x.T, 1).sum(1, keepdims=True)

    g = ws.Graph()
    g.set_outputs([wasteful(g.input("x", (10, 6)))])
    session = ws.build_inference_session(g)
    assert len(session.plan.kernels) == 1
    assert_close(session.step(x=X).outputs["output"], X + 1.0)


def test_the_text_of_a_traced_graph_and_back() -> None:
    g = network(own_relu)
    loss = g.outputs["loss"]
    ws.SGD(lr=0.1).update(g, list(g.parameters.values()), ws.gradients(loss, list(g.parameters.values())))
    traced = g.to_ir()
    again = parse_graph(print_graph(traced))
    assert print_graph(again) == print_graph(traced)
    assert fingerprint(again) == fingerprint(traced) != fingerprint(network(ws.relu).to_ir())
    inputs = {"x": X, "labels": np.zeros(10, np.int32)}
    for name, value in run(traced, inputs).state.items():
        np.testing.assert_array_equal(run(again, inputs).state[name], value)


def test_another_gradient_is_another_program() -> None:
    """A cached plan is found by its fingerprint."""
    halved, doubled = (
        fingerprint(network(lambda x, f=f: reversed_gradient(x, factor=f)).to_ir()) for f in (0.5, 2.0)
    )  # fmt: skip
    assert halved != doubled


# -- windows ---------------------------------------------------------------------------------------------------------


def fitted(loss: Any, accumulate: int, rows: slice = slice(None), **options: Any) -> tuple[float, np.ndarray[Any, Any]]:
    """The loss and the weights after one update with ten rows, or some of them."""
    g = ws.Graph()
    x, w = g.input("x", ("batch", 6)), g.parameter("w", (6, 4), init=W)
    g.set_outputs({"loss": loss(x, w)})
    session = ws.build_session(
        g, optimizer=ws.SGD(lr=0.1), batch_size=10 // accumulate, accumulate=accumulate, **options
    )
    return float(session.run(x=X[rows], shuffle=False)[0]), session.get("w")


def masked(w: Any) -> Any:
    return ws.custom_gradient(lambda w: (ws.sign(w), lambda g: ws.where(ws.abs(w) < 1.0, g, 0.0)))(w)


def terms(x: Any, w: Any) -> Any:
    """Rows, weights and a sum over the batch with gradients of their own."""
    total = reversed_gradient(ws.exp(x @ w).sum())
    return clipped(x @ w).mean() + (x @ masked(w)).mean() + (w * w).sum() + ws.ratio(total, 4 * x.shape[0])


def outer(x: Any, w: Any) -> Any:
    """A function of a mean: its slope comes in behind the gradients of the parts."""
    return ws.sqrt(((x @ masked(w)) ** 2).mean()) + (w * w).sum()


@pytest.mark.parametrize("loss", [terms, outer])
def test_a_window_equals_the_large_batch(loss: Any) -> None:
    whole, cut = fitted(loss, 1), fitted(loss, 2)
    assert_close(cut[0], whole[0])
    assert_close(cut[1], whole[1])


@ws.custom_gradient
def normalized(x: Any) -> Any:
    return x, lambda upstream: upstream / ws.sqrt((upstream * upstream).sum())


@ws.custom_gradient
def own_mean(x: Any) -> Any:
    return x.mean(), lambda upstream: upstream * ws.sign(x) / x.shape[0]


REFUSED = {
    "all rows at once": (lambda x, w: normalized(x @ w).mean(), "in which `mul` is not linear|`sqrt` is not linear"),
    "a part of a sum": (lambda x, w: (x @ clipped(w)).mean(), "in which `minimum` is not linear in a sum over"),
    "a constant": (
        lambda x, w: (x @ ws.custom_gradient(lambda w: (w, lambda g: w))(w)).mean(),
        "does not add up over the parts of a batch",
    ),
    "a mean": (lambda x, w: own_mean(x @ w), "for a mean over the batch; give it the sum, and divide behind it"),
    "bent, under a root": (
        lambda x, w: ws.sqrt((clipped(x @ w) ** 2).mean()),
        "not linear in what arrives, under a function of a mean",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused_by_name(name: str) -> None:
    loss, text = REFUSED[name]
    with pytest.raises(GraphError, match=rf"since `custom_gradient` .*(?:{text})"):
        fitted(loss, 2)


def test_evaluation_of_many_rows_asks_for_no_gradient() -> None:
    g = ws.Graph()
    x, w = g.input("x", ("batch", 6)), g.parameter("w", (6, 4), init=W)
    g.set_outputs({"loss": normalized(x @ w).mean()})
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=4)
    assert_close(session.evaluate(x=X).loss, (X @ W).mean(), scale=1.0)


def test_the_mean_of_the_parts_may_be_accepted() -> None:
    parts = [fitted(REFUSED["a mean"][0], 1, rows=rows) for rows in (slice(0, 5), slice(5, 10))]
    loss, weights = fitted(REFUSED["a mean"][0], 2, per_micro_batch=True)
    assert_close(loss, np.mean([p[0] for p in parts]))
    assert_close(weights, np.mean([p[1] for p in parts], axis=0))
