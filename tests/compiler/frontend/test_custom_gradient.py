"""What `ws.custom_gradient` says where it is used wrongly; what it computes is in tests/ops/test_custom_gradient.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.recording import run, value_and_gradients
from wholestep.errors import GradientError, GraphError, ShapeError, UsageError

RNG = np.random.default_rng(3)
X = RNG.normal(size=(10, 6)).astype(np.float32)
W = RNG.normal(size=(6, 4)).astype(np.float32)


def called(function: Any, *more: Any) -> Any:
    g = ws.Graph()
    x, i, w = g.input("x", ("batch", 6)), g.input("i", ("batch",), "int32"), g.parameter("w", (6, 4))
    given = {"x": x, "i": i, "w": w}
    return ws.custom_gradient(function)(*(given[name] for name in more or ("x",)))


def lost(x: Any) -> Any:
    w = x.graph.parameters["w"]
    return x @ w, lambda upstream: upstream @ w.T


def wide(x: Any, w: Any) -> Any:
    return x @ w, lambda upstream: (upstream, x.T @ upstream)


def other_dtype(x: Any) -> Any:
    return x * x, lambda upstream: upstream.astype("float64")


def in_words(x: Any) -> Any:
    return "x", lambda upstream: upstream


def two_results(x: Any) -> Any:
    return (x, x * x), lambda upstream: upstream


def index_slope(x: Any, i: Any) -> Any:
    return x * 1.0, lambda upstream: (upstream, upstream)


MISTAKES = {
    "no gradient function": (
        lambda: called(lambda x: x * 2.0),
        UsageError,
        r"<lambda> must return its value and a function .*; it returned <Tensor float32\(batch, 6\) from mul>. "
        "Write: return y, gradient",
    ),
    "a tensor for a function": (lambda: called(lambda x: (x, x)), UsageError, "must return its value and a function"),
    "no tensor": (lambda: called(in_words), UsageError, "in_words must return a tensor, .*; it returned 'x'"),
    "no float": (lambda: called(lambda x: (x > 0, lambda g: g)), UsageError, "<lambda> returns no float tensor"),
    "too few": (
        lambda: called(lambda x, w: (x @ w, lambda g: g @ w.T), "x", "w"),
        UsageError,
        "<lambda> takes 2 tensors, and its gradient returned 1 values. Return one tensor for each, in order; None",
    ),
    "too many": (
        lambda: called(lambda x: (x + 1.0, lambda g: (g, g))),
        UsageError,
        "takes 1 tensors, and its gradient returned 2",
    ),
    "another shape": (
        lambda: called(wide, "x", "w"),
        ShapeError,
        r"type float32\[batch, 4\] was returned for number 0 of the tensors that wide takes, which is "
        r"float32\[batch, 6\]. Return one of its shape and dtype: sum over",
    ),
    "another dtype": (
        lambda: called(other_dtype),
        ShapeError,
        r"float64\[batch, 6\] was returned .* other_dtype .* cast, upstream.astype\(x.dtype\)",
    ),
    "a number": (
        lambda: called(lambda x: (x + 1.0, lambda g: 0.0)),
        UsageError,
        "0.0 was returned for number 0 of the tensors that <lambda> takes, .* Return a tensor, or None",
    ),
    "for integers": (
        lambda: called(index_slope, "x", "i"),
        UsageError,
        r"for number 1 of the tensors that index_slope takes, which is int32\[batch\]: only floats have one. Return N",
    ),
    "arity": (
        lambda: called(two_results),
        UsageError,
        "the gradient of two_results gets one upstream gradient per output, 2 in all: too many",
    ),
    "a parameter from outside": (
        lambda: called(lost),
        GradientError,
        r"lost uses the parameter 'w', .* that is not among its arguments; its gradient would be lost. Pass it as an "
        r"argument and return a gradient for it, or write ws.stop_gradient",
    ),
    "a carry from outside": (
        lambda: ws.scan(
            lambda h, x: (ws.custom_gradient(lambda x: (h * x, lambda g: g))(x), None),
            ws.Graph().input("h", ()),
            length=3,
            xs=ws.arange(3, "float32"),
        ),
        GradientError,
        "<lambda> uses a parameter of the enclosing function",
    ),
    "random numbers in a loop": (
        lambda: ws.scan(
            lambda h, _: (ws.custom_gradient(lambda h: (h * 2.0, lambda g: ws.dropout(g, 0.5)))(h), None),
            ws.Graph().input("h", (5,)),
            length=3,
        ),
        GraphError,
        "random numbers inside the body",
    ),
    "not a function": (lambda: ws.custom_gradient(3), UsageError, "decorates a function; received 3"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_explained_at_the_users_line(name: str) -> None:
    make, kind, text = MISTAKES[name]
    with pytest.raises(kind, match=f"^(?:custom_gradient: .*|custom_gradient |scan: ){text}") as raised:
        make()
    assert f"\n  at {__file__}:" in str(raised.value)


INSIDE = {
    "gradient": ws.custom_gradient(lambda x: (x * x, lambda upstream: (upstream * x).keep("inner"))),
    "loop": lambda x: ws.scan(lambda c, v: (c + (v * 2.0).keep("inner"), None), x.sum() * 0.0, x)[0],
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_is_computed_for_later_does_not_leave_its_function(name: str) -> None:
    g = ws.Graph()
    g.set_outputs([INSIDE[name](g.input("x", (3,)))])
    with pytest.raises(
        GraphError, match=r"'inner' is computed inside .* in the call at .*py:\d+; .* Return it from the"
    ):
        g.to_ir()


def test_a_constant_from_outside_is_fine() -> None:
    def loss(x: Any) -> Any:
        g = x.graph
        w, labels = ws.stop_gradient(g.parameter("w", (6, 4), init=W)), g.state("labels", (10, 4))
        return ws.custom_gradient(lambda x: (x @ w + labels, lambda u: u @ w.T))(x).sum()

    _, (slope,) = value_and_gradients(loss, X)
    np.testing.assert_allclose(slope, np.broadcast_to(W.astype(float).sum(1), X.shape))


@ws.custom_gradient
def spike(x: Any) -> Any:
    return (x > 0).astype(x.dtype), lambda upstream: upstream / (1.0 + ws.abs(x))


def test_a_wall_is_told_from_a_way_through() -> None:
    g = ws.Graph()
    w = g.parameter("w", (6,))
    expected = r"`custom_gradient` .* only path to the loss, and it has a custom gradient, which returns none for it"
    with pytest.raises(GradientError, match=expected):
        run_gradient(g, ws.custom_gradient(lambda x: (ws.exp(x), lambda u: None))(w).sum(), w)
    with pytest.raises(GradientError, match=r"`stop_gradient` .* The path is w -> custom_gradient -> item -> stop_gr"):
        run_gradient(g, ws.stop_gradient(spike(w)).sum(), w)


def run_gradient(g: ws.Graph, loss: ws.Tensor, w: ws.Tensor) -> None:
    g.set_outputs({"loss": loss, "slope": ws.gradients(loss, w)[0]})
    run(g.to_ir())
