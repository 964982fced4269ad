"""What users write by hand, family by family: it reaches its name or its cheaper form, with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.passes.common import assert_same_values, graph_of, leaf
from tests.compiler.targets import optimize
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import Dim
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.simplify.fold import fold

T = ws.Tensor


def recorded(function: Callable[..., Any], *shapes: tuple[Any, ...], dtype: str = "float64") -> IRGraph:
    """A function of tensors as a graph; labels, where a shape ends with "labels", are int32."""
    g = ws.Graph()
    tensors = [
        g.input(f"x{i}", s[:-1] if s[-1:] == ("labels",) else s, "int32" if s[-1:] == ("labels",) else dtype)
        for i, s in enumerate(shapes)
    ]
    made = function(*tensors)
    g.set_outputs(list(made) if isinstance(made, tuple) else [made])
    return g.to_ir()


def ops(graph: IRGraph) -> list[str]:
    return sorted(n.op for n in graph.nodes if n.op != "input")


def optimized(graph: IRGraph, before_autodiff: bool = False) -> IRGraph:
    rewritten, report = optimize(graph, dict.fromkeys(graph.symbols, 64), before_autodiff=before_autodiff)
    assert not report.failure, report.failure
    assert_same_values(graph, rewritten, rtol=1e-8)
    return rewritten


def check(expected: list[str], function: Callable[..., Any], *shapes: tuple[Any, ...], before: bool = True) -> None:
    """The ops that are left, on the whole step and, where a name decides the gradient, before autodiff."""
    graph = recorded(function, *shapes)
    assert ops(optimized(graph)) == sorted(expected)
    if before:
        assert ops(optimized(graph, before_autodiff=True)) == sorted(expected)


ROWS = ("n", 6)

# -- stability -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        lambda x: ws.log(1 + ws.exp(x)),
        lambda x: ws.log1p(ws.exp(x)),
        lambda x: ws.maximum(x, 0.0) + ws.log1p(ws.exp(-ws.abs(x))),
        lambda x: 0.5 * (x + ws.abs(x)) + ws.log(1 + ws.exp(-ws.abs(x))),
        lambda x: -ws.log(1 - ws.sigmoid(x)),
        lambda x: -ws.log(1 / (1 + ws.exp(x))),
    ],
)
def test_softplus(written: Callable[[T], T]) -> None:
    graph = recorded(written, ROWS)
    assert "softplus" in ops(optimized(graph, before_autodiff=True))
    assert not {"exp", "log", "log1p"} & set(ops(optimized(graph, before_autodiff=True)))


BCE = {
    "probabilities": lambda x, y: -(y * ws.log(ws.sigmoid(x)) + (1 - y) * ws.log(1 - ws.sigmoid(x))),
    "probabilities, signs inside": lambda x, y: -y * ws.log(ws.sigmoid(x)) - (1 - y) * ws.log(1 - ws.sigmoid(x)),
    "softplus": lambda x, y: ws.log(1 + ws.exp(x)) - x * y,
    "steady": lambda x, y: ws.maximum(x, 0.0) - x * y + ws.log1p(ws.exp(-ws.abs(x))),
    "library": lambda x, y: ws.losses.binary_cross_entropy_with_logits_loss(x, y, reduction="none"),
}


@pytest.mark.parametrize("name", BCE)
def test_sigmoid_cross_entropy(name: str) -> None:
    check(["bce_with_logits"], BCE[name], ROWS, ROWS)


def test_sigmoid_cross_entropy_far_from_zero() -> None:
    graph = recorded(BCE["probabilities"], (4,), (4,))
    values = {"x0": np.array([-900.0, 900.0, -900.0, 900.0]), "x1": np.array([0.0, 1.0, 1.0, 0.0])}
    (plain,) = interpret(graph, inputs=values).outputs.values()
    assert not np.isfinite(plain).all()
    (steady,) = interpret(optimize(graph, {}, before_autodiff=True)[0], inputs=values).outputs.values()
    np.testing.assert_allclose(steady, [0.0, 0.0, 900.0, 900.0])


def test_logsumexp() -> None:
    check(["logsumexp"], lambda x: ws.log(ws.exp(x).sum(-1)), ROWS)

    def shifted(x: T) -> T:
        top = x.max(-1, keepdims=True)
        return (top + ws.log(ws.exp(x - top).sum(-1, keepdims=True))).reshape("n")

    check(["logsumexp"], shifted, ROWS)
    check(["log_softmax"], lambda x: x - ws.logsumexp(x, keepdims=True), ROWS)


def test_tanh() -> None:
    check(["tanh"], lambda x: (ws.exp(x) - ws.exp(-x)) / (ws.exp(x) + ws.exp(-x)), ROWS)
    check(["tanh"], lambda x: 2 * ws.sigmoid(2 * x) - 1, ROWS)


# -- gates and norms -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gate",
    [
        lambda a, c: a * ws.sigmoid(a) * c,
        lambda a, c: c * a * ws.sigmoid(a),
        lambda a, c: a * (ws.sigmoid(a) * c),
        lambda a, c: c * (a / (1 + ws.exp(-a))),
    ],
)
def test_swiglu(gate: Callable[[T, T], T]) -> None:
    check(["mul", "silu"], gate, ROWS, ROWS)


def layer_norm(x: T, *affine: T) -> T:
    centred = x - x.mean(-1, keepdims=True)
    out = centred / ws.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return out * affine[0] + affine[1] if affine else out


def rms_norm(x: T, weight: T) -> T:
    return x * (x * x).mean(-1, keepdims=True).__add__(1e-6) ** -0.5 * weight


def group_norm_in_rows(x: T) -> T:
    return layer_norm(x.reshape("n", 2, 24)).reshape(*x.shape)


def group_norm_over_axes(x: T, weight: T, bias: T) -> T:
    split = x.reshape("n", 2, 3, 4, 2)
    centred = split - split.mean((2, 3, 4), keepdims=True)
    normal = centred / ws.sqrt((centred * centred).mean((2, 3, 4), keepdims=True) + 1e-5)
    return normal.reshape(*x.shape) * weight.reshape(6, 1, 1) + bias.reshape(6, 1, 1)


def test_norms() -> None:
    check(["layer_norm"], layer_norm, ("n", 3, 6))
    check(["layer_norm"], layer_norm, ("n", 3, 6), (6,), (6,))
    check(["rms_norm"], rms_norm, ("n", 3, 6), (6,))


def test_group_norm() -> None:
    check(["group_norm"], group_norm_in_rows, ("n", 6, 4, 2))
    check(["group_norm"], group_norm_over_axes, ("n", 6, 4, 2), (6,), (6,))


def batch_norm(x: T, weight: T, bias: T) -> T:
    centred = x - x.mean((0, 2, 3)).reshape(6, 1, 1)
    spread = ws.sqrt((centred**2).mean((0, 2, 3)) + 1e-5)
    return centred / spread.reshape(6, 1, 1) * weight.reshape(6, 1, 1) + bias.reshape(6, 1, 1)


def batch_norm_with_axes_kept(x: T) -> T:
    centred = x - x.mean((0, 2, 3), keepdims=True)
    return centred / ws.sqrt((centred**2).mean((0, 2, 3), keepdims=True) + 1e-5)


def test_batch_norm() -> None:
    check(["batch_norm"], batch_norm_with_axes_kept, ("n", 6, 4, 2))
    check(["batch_norm"], batch_norm, ("n", 6, 4, 2), (6,), (6,))


def test_variance_by_moments_is_computed_without_cancelling() -> None:
    graph = recorded(lambda x: (x * x).mean(-1) - x.mean(-1) ** 2, (3, 6))
    x = 1e8 + np.random.default_rng(0).normal(size=(3, 6))
    (plain,) = interpret(graph, inputs={"x0": x}).outputs.values()
    (steady,) = interpret(optimize(graph, {})[0], inputs={"x0": x}).outputs.values()
    np.testing.assert_allclose(steady, x.var(-1), rtol=1e-6)
    assert np.abs(plain / x.var(-1) - 1).max() > 0.1


# -- attention, forward and backward, by hand ----------------------------------------------------------------------


def probabilities(q: T, k: T, causal: bool) -> T:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        time = q.shape[-2]
        scores = ws.where(ws.iota((time, time), 1) <= ws.iota((time, time), 0), scores, -float("inf"))
    e = ws.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention_and_gradient(causal: bool) -> Callable[..., tuple[T, ...]]:
    def both(q: T, k: T, v: T, g: T) -> tuple[T, ...]:
        p = probabilities(q, k, causal)
        dp = g @ v.transpose(-1, -2)
        ds = p * dp - p * (p * dp).sum(-1, keepdims=True)
        scale = 1 / q.shape[-1] ** 0.5
        return p @ v, (ds @ k) * scale, (ds.transpose(-1, -2) @ q) * scale, p.transpose(-1, -2) @ g

    return both


@pytest.mark.parametrize("causal", [False, True])
def test_attention_forward_and_backward(causal: bool) -> None:
    shapes = ("n", 2, 5, 4), ("n", 2, 5, 4), ("n", 2, 5, 4), ("n", 2, 5, 4)
    found = ops(optimized(recorded(attention_and_gradient(causal), *shapes)))
    assert found.count("attention") == found.count("attention_grad") == 1
    assert not {"matmul", "exp", "softmax", "where", "max"} & set(found)


@pytest.mark.parametrize(
    "scores",
    [
        lambda q, k: (q * 0.5) @ k.transpose(-1, -2),
        lambda q, k: q @ (k * 0.5).transpose(-1, -2),
        lambda q, k: q @ k.transpose(-1, -2) / 2.0,
        lambda q, k: q @ k.transpose(-1, -2),
    ],
    ids=["queries scaled", "keys scaled", "divided", "plain"],
)
def test_attention_however_it_is_scaled(scores: Callable[[T, T], T]) -> None:
    check(["attention"], lambda q, k, v: ws.softmax(scores(q, k)) @ v, ("n", 5, 4), ("n", 7, 4), ("n", 7, 3))


def test_attention_with_a_mask() -> None:
    def masked(q: T, k: T, v: T, mask: T) -> T:
        return ws.softmax(q @ k.transpose(-1, -2) * 0.5 + mask) @ v

    check(["attention"], masked, ("n", 5, 4), ("n", 7, 4), ("n", 7, 3), ("n", 5, 7))


def test_gradient_of_layer_norm() -> None:
    def by_hand(x: T, weight: T, g: T) -> tuple[T, ...]:
        centred = x - x.mean(-1, keepdims=True)
        factor = 1 / ws.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        normal, scaled = centred * factor, g * weight
        inner = scaled - normal * (scaled * normal).mean(-1, keepdims=True) - scaled.mean(-1, keepdims=True)
        return factor * inner, (g * normal).sum((0, 1)), g.sum((0, 1))

    found = ops(optimized(recorded(by_hand, ("n", 3, 6), (6,), ("n", 3, 6))))
    assert found == ["item", "item", "item", "layer_norm_grad"]


# -- cross entropy and softmax: gradients by hand are those of autodiff --------------------------------------------


def test_gradient_of_cross_entropy() -> None:
    def by_hand(x: T, labels: T) -> T:
        e = ws.exp(x - x.max(-1, keepdims=True))
        return (e / e.sum(-1, keepdims=True) - ws.one_hot(labels, 5, "float64")) / 7.0

    def by_autodiff(x: T, labels: T) -> T:
        return ws.gradients(ws.losses.cross_entropy(x, labels), [x])[0]

    graphs = [fold(expand_gradients(recorded(f, (7, 5), (7, "labels")))) for f in (by_hand, by_autodiff)]
    hand, auto = (ops(optimized(g)) for g in graphs)
    assert hand == ["cast", "constant", "equal", "expand", "expand", "iota", "mul", "softmax", "sub"]
    one_hot = ["constant", "constant", "expand", "expand", "where"]  # where a user's is a cast
    assert auto == sorted([*(op for op in hand if op != "cast"), *one_hot])


def test_gradient_of_softmax() -> None:
    def by_hand(x: T, g: T) -> T:
        e = ws.exp(x)
        y = e / e.sum(-1, keepdims=True)
        return y * g - y * (y * g).sum(-1, keepdims=True)

    check(["expand", "mul", "mul", "softmax", "sub", "sum"], by_hand, ROWS, ROWS, before=False)


# -- regions, repeated values, products ----------------------------------------------------------------------------


def test_slices_of_what_was_joined() -> None:
    check([], lambda x, y: (ws.concat([x, y], 1)[:, :6], ws.concat([x, y], 1)[:, 6:]), ROWS, ROWS)
    check([], lambda x: ws.concat([x[:, :2], x[:, 2:5], x[:, 5:]], 1), ROWS)
    check([], lambda x: ws.pad(x, [(0, 0), (2, 1)])[:, 2:-1], ROWS)


def test_the_gradient_of_slices_is_one_concatenation() -> None:
    def cut(x: T) -> T:
        q, k, v = x[:, :2], x[:, 2:4], x[:, 4:]
        return ws.gradients((ws.exp(q) * ws.sin(k) + ws.cos(v)).sum(), [x])[0]

    found = ops(optimized(expand_gradients(recorded(cut, ROWS))))
    assert found.count("concat") == 1
    assert "pad" not in found


def test_a_repeated_value_is_counted() -> None:
    spread = b.expand_to(leaf("x", ROWS), (Dim.symbol("n"), 4, 6), (0, 2))
    assert ops(optimized(graph_of(b.sum_axes(spread, (1,))))) == ["constant", "expand", "mul"]
    assert ops(optimized(graph_of(b.sum_axes(spread, (1, 2))))) == ["constant", "expand", "mul", "sum"]
    assert ops(optimized(graph_of(b.max_axes(spread, (1,))))) == []


def test_products_are_ordered_by_work() -> None:
    graph = recorded(lambda x, u, v: x @ (u @ v), ("n", 40), (40, 2), (2, 50))
    inner = [n.inputs[0].op for n in optimized(graph).nodes if n.op == "matmul"]
    assert inner == ["input", "matmul"]  # (x·u)·v
    other = recorded(lambda x, u, v: x @ (u @ v), ("n", 4), (4, 40), (40, 3))
    assert ops(optimized(other)) == ["matmul", "matmul"]
    assert optimized(other) is other


def test_a_long_chain_of_products_stays_within_bounds() -> None:
    def chain(x: T, *factors: T) -> T:
        for f in factors:
            x = x @ f
        return x

    sizes = (50, 3, 40, 2, 60, 5, 30, 1)
    graph = recorded(chain, ("n", 50), *pairwise(sizes))
    rewritten, report = optimize(graph, {"n": 64})
    assert report.enodes < 400
    assert report.stopped == "saturated"
    assert report.cost_after < 0.7 * report.cost_before
    assert_same_values(graph, rewritten, rtol=1e-8)


# -- strength ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (lambda x: x**2, ["mul"]),
        (lambda x: x**-1, ["recip"]),
        (lambda x: (x * x) ** 0.5, ["abs"]),
        (lambda x: x / 4.0, ["constant", "expand", "mul"]),
        (lambda x: x**-0.5, ["recip", "sqrt"]),
        (lambda x: ws.where(x > 0, x, x), []),
    ],
)
def test_strength(written: Callable[[T], T], expected: list[str]) -> None:
    check(expected, written, ROWS, before=False)
