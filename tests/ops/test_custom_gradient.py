"""`ws.custom_gradient` in programs: modules, steps, micro-batches, second order; values: cases/custom_gradients.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

import wholestep as ws
from tests.ops.cases.custom_gradients import projected, reversed_gradient, straight_through, theirs
from tests.ops.cases.loops import loop
from tests.support.oracles import assert_close
from tests.support.recording import run, value_and_gradients
from wholestep.compiler.ir.fingerprint import fingerprint
from wholestep.compiler.ir.printer import parse_graph, print_graph

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
    session = ws.build_session(
        Quantized(), inputs=ws.Spec(("batch", 6)), targets=ws.Spec(("batch", 4)), loss="mse", optimizer=ws.SGD(lr=0.1),
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


@ws.custom_gradient
def held(h: Any, x: Any) -> Any:
    def gradient(upstream: Any) -> Any:
        return 0.5 * upstream * x * h, None

    return ws.tanh(h * x), gradient


def recurrent(scan: Any, cell: Any) -> Any:
    def run(x: Any, h: Any) -> Any:
        def body(h: Any, x: Any) -> Any:
            h = cell(h, x) + 0.1 * h
            return h, h * x

        last, every = scan(body, h, x)
        return every + last

    return run


def test_inside_a_loop_to_the_second_order() -> None:
    theirs_held = theirs(lambda h, x: torch.tanh(h * x), lambda h, x, g: (0.5 * g * x * h, None))

    def loss(x: Any, h: Any) -> Any:
        first = (recurrent(ws.scan, held)(x, h) ** 2).sum()
        return first + sum((d * d).sum() for d in ws.gradients(first, [x, h]))

    arrays = 0.7 * RNG.normal(size=(5, 2, 3)), 0.7 * RNG.normal(size=(2, 3))
    x, h = (torch.tensor(a, requires_grad=True) for a in arrays)
    first = (recurrent(loop, theirs_held)(x, h) ** 2).sum()
    total = first + sum((d * d).sum() for d in torch.autograd.grad(first, [x, h], create_graph=True))
    total.backward()
    value, (dx, dh) = value_and_gradients(loss, *arrays)
    np.testing.assert_allclose(value, total.detach().numpy())
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-9)
    np.testing.assert_allclose(dh, h.grad.numpy(), rtol=1e-9)


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
