"""The product in ten tests.  Read from top to bottom, they are its documentation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter

Array = np.ndarray[Any, Any]


def digits() -> tuple[Array, Array]:
    """1280 of the handwritten digits that ship with the package: images (1280, 64) and labels (1280,)."""
    x, y = ws.datasets.digits()
    return x[:1280], y[:1280]


def network() -> ws.Graph:
    """A network is described once; `"batch"` is a size that may differ from step to step."""
    g = ws.Graph()
    x = g.input("x", ("batch", 64))
    labels = g.input("labels", ("batch",), dtype="int32")
    w1, b1 = g.parameter("w1", (64, 48)), g.parameter("b1", (48,))
    w2, b2 = g.parameter("w2", (48, 10)), g.parameter("b2", (10,))
    logits = ws.relu(x @ w1 + b1) @ w2 + b2  # (batch, 10)
    g.set_outputs({"loss": ws.losses.cross_entropy(logits, labels), "logits": logits})
    return g


def build(**arguments: Any) -> ws.Session:
    return ws.build_session(network(), optimizer=ws.Adam(lr=1e-3), batch_size=64, seed=0, **arguments)


def test_1_describe_a_network_and_train_it() -> None:
    """Gradients and the optimizer's update are added by the session: nobody calls backward."""
    x, y = digits()
    session = build()
    losses = [session.step(x=x[i : i + 64], labels=y[i : i + 64]).loss for i in 5 * list(range(0, 1280, 64))]
    assert losses[0] == pytest.approx(np.log(10), rel=0.2)  # it knows nothing
    assert losses[-1] < 0.5 * losses[0]


def test_2_a_step_is_one_native_call_and_a_new_learning_rate_needs_no_compiler() -> None:
    x, y = digits()
    session = build()
    session.step(x=x[:64], labels=y[:64])
    compiled = compile_counter.value
    before = session.get("w1")
    session.set_learning_rate(0.0)  # or session.optimizer.lr = ...
    session.step(x=x[64:128], labels=y[64:128])
    np.testing.assert_array_equal(session.get("w1"), before)
    session.set_learning_rate(1e-2)
    session.step(x=x[64:128], labels=y[64:128])
    assert np.abs(session.get("w1") - before).max() > 1e-3
    assert compile_counter.value == compiled


@pytest.mark.native
def test_3_every_byte_is_known_before_the_first_step() -> None:
    planned = ws.build_session(network(), optimizer=ws.Adam(), batch_size=64, device="null", threads=2)
    session = build(threads=2)
    known = session.peak_bytes
    assert known == planned.peak_bytes == session.report().peak_bytes
    x, y = digits()
    session.run(x=x, labels=y)
    assert session.peak_bytes == known
    weights = 4 * (64 * 48 + 48 + 48 * 16 + 10)  # the 10 columns of w2 fill a panel of 16
    assert session.report().footprint.state >= 3 * weights  # and Adam's two averages of each


def test_4_a_smaller_batch_is_exact_and_needs_no_compiler() -> None:
    x, y = digits()
    session, small = build(), ws.build_session(network(), optimizer=ws.Adam(lr=1e-3), batch_size=13)
    session.step(x=x[:64], labels=y[:64])
    small.load_state_dict(session.state_dict())
    compiled = compile_counter.value
    ours, alone = (s.step(x=x[:13], labels=y[:13]) for s in (session, small))
    assert ours.loss == alone.loss
    assert ours.logits.shape == (13, 10)
    np.testing.assert_array_equal(session.get("w1"), small.get("w1"))
    assert compile_counter.value == compiled


def test_5_run_trains_whole_epochs_inside_the_native_loop() -> None:
    """The batches of an epoch are gathered by index where they are needed; the last one may be smaller."""
    x, y = digits()
    session = build()
    losses = session.run(x=x[:1000], labels=y[:1000], epochs=10, shuffle=True)
    assert losses.shape == (10 * 16,)  # 15 batches of 64 and one of 40
    assert losses[-16:].mean() < 0.4 * losses[:16].mean()
    np.testing.assert_array_equal(build().run(x=x[:1000], labels=y[:1000], epochs=10), losses)


def test_6_predict_and_evaluate_change_nothing() -> None:
    x, y = digits()
    session = build()
    session.run(x=x[:1000], labels=y[:1000], epochs=20)
    before = session.state_dict()
    logits = np.concatenate([session.predict(x=x[i : i + 40]) for i in range(1000, 1280, 40)])  # needs no labels
    assert (logits.argmax(axis=1) == y[1000:]).mean() > 0.85
    assert session.evaluate(x=x[1000:1064], labels=y[1000:1064]).loss < 0.8
    after = session.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_7_a_loss_of_your_own_is_an_expression() -> None:
    g = ws.Graph()
    x, y = g.input("x", ("batch", 3)), g.input("y", ("batch", 1))
    w = g.parameter("w", (3, 1))
    error = x @ w - y  # (batch, 1)
    g.set_outputs([(error**2).mean() + 0.01 * (w**2).sum()])
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=8)

    rng = np.random.default_rng(0)
    xs, start = rng.normal(size=(5, 3)), session.get("w").astype(float)
    ys = rng.normal(size=(5, 1))
    session.step(x=xs.astype(np.float32), y=ys.astype(np.float32))
    by_hand = start - 0.1 * (2 * xs.T @ (xs @ start - ys) / 5 + 0.02 * start)  # a mean over the 5 rows that came
    np.testing.assert_allclose(session.get("w"), by_hand, rtol=1e-5)


def test_8_gradients_are_tensors_and_have_gradients() -> None:
    """Newton's method for Σ cosh(w): the second derivative is the gradient of a gradient."""

    @ws.step
    def newton(g: ws.Graph) -> dict[str, ws.Tensor]:
        w = g.parameter("w", (3,), init=[1.0, -0.5, 0.25], dtype="float64")
        loss = (ws.exp(w) + ws.exp(-w)).sum() * 0.5
        (slope,) = ws.gradients(loss, [w])
        (curvature,) = ws.gradients(slope.sum(), [w])
        g.update(w, w - slope / curvature)
        return {"loss": loss, "curvature": curvature}

    session = ws.build_session(newton)
    result = session.step()
    np.testing.assert_allclose(result.curvature, np.cosh([1.0, -0.5, 0.25]), rtol=1e-12)
    np.testing.assert_allclose(session.get("w"), np.array([1.0, -0.5, 0.25]) - np.tanh([1.0, -0.5, 0.25]), rtol=1e-12)
    for _ in range(4):
        result = session.step()
    assert result.loss == pytest.approx(3.0)  # cosh is 1 at its minimum


@pytest.mark.native
def test_9_the_report_and_the_source_can_be_read() -> None:
    session = build()
    report = session.report()
    assert f"{report.peak_bytes:,}" in str(report)
    assert "matmul, add, relu" in str(report)  # one kernel
    first = 2 * 64 * 64 * 48 + 64 * 48 + 64 * 48  # batch x inputs x hidden, then bias and relu
    assert report.plan.kernels[0].flops == first
    assert "kernel 0: matmul, add, relu" in session.source  # each function says what it was
    assert "state w1, float32[64, 48], panels" in session.source


def test_10_threads_do_not_change_a_bit() -> None:
    x, y = digits()

    def weights(threads: int) -> list[bytes]:
        session = build(threads=threads)
        losses = session.run(x=x[:300], labels=y[:300], epochs=2)
        return [losses.tobytes(), *(session.get(name).tobytes() for name in session.state.names)]

    alone = weights(1)
    assert all(weights(threads) == alone for threads in (2, 3, 7))
