"""Dropout: its meaning belongs to the entry point, its rate is a runtime scalar."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.support.recording import value
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.errors import OptionError, UsageError

X = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)


def graph(p: object = 0.25) -> ws.Graph:
    g = ws.Graph()
    x = g.input("x", ("batch", 32))
    w = g.parameter("w", (32,), init=1.0).keep()
    with g.scope("block"):
        out = ws.dropout(x * w, p)
    g.set_outputs({"loss": (out * out).mean(), "out": out})
    return g


def test_training_drops_and_scales_the_rest() -> None:
    session = ws.build_session(graph(), optimizer=ws.SGD(lr=0.0), batch_size=64)
    first, second = (session.step(x=X) for _ in range(2))
    kept = first["out"] != 0
    assert abs(kept.mean() - 0.75) < 0.03
    np.testing.assert_allclose(first["out"][kept], X[kept] / 0.75, rtol=1e-6)
    assert (kept != (second["out"] != 0)).any(), "new numbers in every step"
    # d mean(out²)/dw = Σ 2·out·x·kept/0.75 / n: the gradient drops what the forward pass dropped
    expected = (2 * first["out"] * X * kept / 0.75).sum(0) / X.size
    np.testing.assert_allclose(first["w.grad"], expected, rtol=1e-4)


def test_evaluation_and_prediction_drop_nothing() -> None:
    session = ws.build_session(graph(), optimizer=ws.SGD(lr=0.0), batch_size=64)
    np.testing.assert_array_equal(session.predict(x=X), X)
    np.testing.assert_array_equal(session.evaluate(x=X)["out"], X)
    np.testing.assert_array_equal(ws.build_inference_session(graph(), batch_size=64).step(x=X)["out"], X)


def test_the_rate_changes_without_a_recompile() -> None:
    session = ws.build_session(graph(), optimizer=ws.SGD(lr=0.0), batch_size=64)
    session.step(x=X)
    before = compile_counter.value
    session.scalars["block/random0.rate"] = 0.0
    np.testing.assert_array_equal(session.step(x=X)["out"], X)
    session.scalars["block/random0.rate"] = 1.0
    assert not session.step(x=X)["out"].any()
    assert compile_counter.value == before


def test_off_leaves_no_trace_unless_it_is_to_stay_switchable() -> None:
    assert not graph(0.0).scalars
    assert list(graph(ws.runtime(0.0)).scalars) == ["block/random0.rate"]


def test_one_scalar_may_serve_several_calls() -> None:
    g = ws.Graph()
    x, rate = g.input("x", ("batch", 32)), g.scalar("rate", 0.5)
    a, b = ws.dropout(x, rate), ws.dropout(x, rate)
    g.set_outputs({"both": a * b})
    assert list(g.scalars) == ["rate"]
    assert a.node.attrs != b.node.attrs, "two draws"


def test_refusals() -> None:
    with pytest.raises(OptionError, match=r"dropout: p must be a probability between 0 and 1; received 1.5"):
        value(lambda x: ws.dropout(x, 1.5), X)
    with pytest.raises(UsageError, match="record x in one first"):
        ws.dropout(ws.arange(3, "float32"), 0.5)


def test_by_mode_is_one_value_in_training_and_another_elsewhere() -> None:
    g = ws.Graph()
    x, w = g.input("x", ("batch", 3)), g.parameter("w", (3,), init=2.0).keep()
    running = g.state("running", (3,), init=10.0)
    out = x * w + ws.by_mode(w * w, running)
    g.set_outputs({"loss": out.mean(), "out": out})
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.0), batch_size=4)
    x = np.ones((4, 3), np.float32)
    trained = session.step(x=x)
    np.testing.assert_array_equal(trained["out"], np.full((4, 3), 6.0))
    np.testing.assert_allclose(trained["w.grad"], np.full(3, (1 + 4) / 3), rtol=1e-6)
    np.testing.assert_array_equal(session.predict(x=x), np.full((4, 3), 12.0))
    np.testing.assert_array_equal(session.evaluate(x=x)["out"], np.full((4, 3), 12.0))
