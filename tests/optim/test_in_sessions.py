"""Section D of the conformance page: optimizers, through compiled sessions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.errors import UsageError

Array = np.ndarray[Any, Any]


def moved(optimizer: ws.Optimizer, start: object, slopes: list[float]) -> list[Array]:
    """The parameter after each of the given gradients."""
    w = np.array(start, np.float64)
    path = []
    for slope in slopes:
        optimizer.step([w], [np.full(w.shape, slope, np.float64)])
        path.append(w.copy())
    return path


def close(actual: object, expected: object) -> None:
    np.testing.assert_allclose(np.ravel(np.asarray(actual)), np.asarray(expected), rtol=0, atol=6e-9)


def test_d01_sgd_defaults() -> None:
    o = ws.SGD()
    assert (o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov) == (0.01, 0.0, 0.0, 0.0, False)


def test_d02_names_of_the_seeds() -> None:
    assert ws.Adam(learning_rate=0.1, beta1=0.8, beta2=0.9, epsilon=1e-6) == ws.Adam(0.1, (0.8, 0.9), 1e-6)
    for both in (
        {"lr": 0.1, "learning_rate": 0.1},
        {"betas": (0.9, 0.9), "beta1": 0.9},
        {"eps": 1e-8, "epsilon": 1e-8},
    ):
        with pytest.raises(UsageError, match="are the same option; give one of them"):
            ws.Adam(**both)


def test_d03_plain_descent() -> None:
    close(moved(ws.SGD(lr=0.01), 0.5, [0.2]), [0.498])


def on_graph(update: Any) -> tuple[Any, ws.Session]:
    """A graph whose state w starts as 1 and whose gradient is written by hand, with an update of its own."""
    g = ws.Graph()
    w = g.named_tensor("w", np.array([1.0]), dtype="float64")
    made = update(g, [w], [g.constant(np.array([1.0]))])
    g.set_outputs([w.sum()])
    return made, ws.build_session(g)


def test_d04_sgd_on_graph() -> None:
    (new_weights, lr), session = on_graph(ws.sgd_on_graph)
    compiles = compile_counter.value
    session.step()
    close(session.get("w"), [0.9997])
    session.set("w", np.array([1.0]))
    session.scalars[lr.name] = 0.1
    session.step()
    close(session.get("w"), [0.9])
    assert compile_counter.value == compiles
    assert [t.shape for t in new_weights] == [(1,)]


def test_d05_sgd_in_a_graph_of_its_own() -> None:
    g = ws.Graph()
    w = g.parameter("w", (2,))
    made = ws.sgd(ws.gradients((w * w).sum(), [w]))
    assert made._fields == ("old_weights", "gradients", "new_weights", "graph", "lr")
    session = ws.build_inference_session(made.graph)
    one = np.ones(2, np.float32)
    out = session.step({made.old_weights[0].name: one, made.gradients[0].name: one})
    np.testing.assert_allclose(out["new_weight0"], [0.9997, 0.9997], rtol=1e-6)
    assert session.scalars[made.lr.name] == 3e-4


def test_d06_d07_momentum() -> None:
    close(moved(ws.SGD(lr=0.1, momentum=0.9), 1.0, [1, 1, 1]), [0.9, 0.71, 0.439])
    for slopes, velocities in (([1.0, 1, 1, 1], [1, 1.9, 2.71, 3.439]), ([1.0, -1, 1], [1, -0.1, 0.91])):
        o = ws.SGD(momentum=0.9)
        found = []
        for slope in slopes:
            o.step([np.zeros(1)], [np.array([float(slope)])])
            found.append(o.state_dict()["param0.sgd.velocity"])
        close(found, velocities)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"momentum": 0.9, "nesterov": True}, [0.81, 0.539, 0.1951]),
        ({"momentum": 0.9, "dampening": 0.5}, [0.9, 0.76, 0.584]),
        ({"weight_decay": 0.1}, [0.89, 0.7811, 0.673289]),
    ],
)
def test_d08_variants_of_sgd(options: dict[str, Any], expected: list[float]) -> None:
    close(moved(ws.SGD(lr=0.1, **options), [[1.0]], [1, 1, 1]), expected)


def test_d09_short_names() -> None:
    assert (ws.Adam().lr, ws.Adam().betas, ws.Adam().eps) == (1e-3, (0.9, 0.999), 1e-8)
    assert ws.Optimizer.adam(0.002) == ws.Adam(lr=2e-3)
    assert ws.Optimizer.sgd(0.05) == ws.SGD(lr=0.05)
    assert ws.Optimizer.default() == ws.SGD(lr=0.01)


def test_d10_equal_steps_for_equal_gradients() -> None:
    close(moved(ws.Adam(lr=1e-3), 1.0, [-5, -5, -5]), [1.001, 1.002, 1.003])


EXPECTED = {1: 0.01, 2: 0.01999912, 10: 0.09988967, 100: 0.93755360, 1000: 2.9991084}


def parabola() -> tuple[ws.AdamOptimizer, ws.Graph]:
    """(x - 3)² from 0, its gradient written by hand."""
    g = ws.Graph()
    x = g.tensor([0.0], dtype="float64").keep()
    slope = (2.0 * (x - g.constant(3.0))).keep("slope")
    adam = ws.AdamOptimizer(g, [x], [slope])
    g.set_outputs([slope.sum()])
    return adam, g


def test_d11_d12_adam_on_a_parabola() -> None:
    adam, g = parabola()
    session = ws.build_session(g)
    assert dict(session.scalars.items()) == {
        "optimizer.lr": 1e-3, "optimizer.beta1": 0.9, "optimizer.beta2": 0.999, "optimizer.eps": 1e-8,
    }  # fmt: skip
    adam.set_learning_rate(1e-2)
    for step in range(1, 1001):
        session.step()
        if step in EXPECTED:
            close(adam.new_weight_datas(), [EXPECTED[step]])


def test_d11_a_larger_rate_set_before_the_session_is_built() -> None:
    adam, g = parabola()
    adam.set_learning_rate(0.1)
    session = ws.build_session(g)
    for _ in range(100):
        session.step()
        adam.step_after_execution()
    close(adam.new_weight_datas(), [2.98065544])


def test_d13_setters_act_on_the_next_step_without_a_recompile() -> None:
    adam, g = parabola()
    session = ws.build_session(g)
    session.step()
    compiles = compile_counter.value
    (w,) = adam.new_weight_datas()
    adam.set_learning_rate(0.05)
    adam.set_beta1(0.5)
    adam.set_beta2(0.9)
    adam.set_epsilon(0.1)
    session.step()
    m, v, slope = 0.1 * -6.0, 0.001 * 36.0, 2.0 * (w - 3.0)
    m, v = 0.5 * m + 0.5 * slope, 0.9 * v + 0.1 * slope**2
    expected = w - 0.05 * (m / (1 - 0.5**2)) / (np.sqrt(v / (1 - 0.9**2)) + 0.1)
    close(adam.new_weight_datas(), expected)
    assert compile_counter.value == compiles
    assert [t.shape for t in adam.new_weights()] == [(1,)]


def test_d14_the_step_itself_advances_time_and_moments() -> None:
    adam, g = parabola()
    session = ws.build_session(g)
    for _ in range(2):
        session.step()
    state = session.state_dict()
    assert state["session/step"] == 2
    adam.step_after_execution()
    for name, value in session.state_dict().items():
        assert value.tobytes() == state[name].tobytes()
    assert abs(float(state["tensor0.adam.m"][0])) > 0.6 * 1.5


def test_d15_adamw() -> None:
    assert (ws.AdamW().betas, ws.AdamW().eps, ws.AdamW().weight_decay) == ((0.9, 0.999), 1e-8, 0.01)
    np.testing.assert_allclose(
        np.ravel(moved(ws.AdamW(), [[1.0]], [0, 0])), [0.99999, 0.9999800001], rtol=0, atol=1e-14
    )
    close(moved(ws.AdamW(), [[1.0]], [2, 2]), [0.99899, 0.99798001])
    slopes = [0.3, -2.0, 0.7]
    without, plain = moved(ws.AdamW(weight_decay=0.0), [[1.0]], slopes), moved(ws.Adam(), [[1.0]], slopes)
    assert [a.tobytes() for a in without] == [a.tobytes() for a in plain]


def test_d16_rmsprop() -> None:
    assert (ws.RMSprop().lr, ws.RMSprop().alpha, ws.RMSprop().eps) == (0.01, 0.99, 1e-8)
    close(moved(ws.RMSprop(), 1.0, [1, 1, 1]), [0.90000001, 0.82911189, 0.77108699])


@pytest.mark.parametrize("optimizer", [ws.SGD(0.1, weight_decay=0.1), ws.AdamW(), ws.Lion(weight_decay=0.1)])
def test_d17_decay_leaves_biases_alone(optimizer: ws.Optimizer) -> None:
    weights = {"weight": np.ones((2, 2)), "bias": np.ones(2), "norm": np.ones(())}
    optimizer.step(weights, {n: np.zeros_like(a) for n, a in weights.items()})
    assert (weights["weight"] < 1.0).all()
    for name in ("bias", "norm"):
        assert weights[name].tobytes() == np.ones_like(weights[name]).tobytes()


def test_d18_arrays_in_place() -> None:
    w, slope = np.array([0.5]), np.array([0.2])
    held, optimizer = [w], ws.SGD()
    optimizer.step(held, [slope])
    assert held[0] is w
    close(w, [0.498])
    assert optimizer.get_lr() == 0.01
    optimizer.set_lr(0.1)
    assert optimizer.get_lr() == 0.1
    optimizer.step(held, [slope])
    close(w, [0.478])
    optimizer.zero_grad([slope])
    assert slope[0] == 0.0
    optimizer.zero_grad()


def test_d19_restored_after_five_steps() -> None:
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(10, 3))
    whole, first, second = ws.AdamW(), ws.AdamW(), ws.AdamW()
    a, b = np.ones((1, 3)), np.ones((1, 3))
    for slope in slopes:
        whole.step([a], [slope[None]])
    for slope in slopes[:5]:
        first.step([b], [slope[None]])
    second.load_state_dict(first.state_dict())
    for slope in slopes[5:]:
        second.step([b], [slope[None]])
    assert a.tobytes() == b.tobytes()
