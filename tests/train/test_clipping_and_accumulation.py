"""Section E of the conformance page: clipping and accumulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.errors import AccumulationError, AccumulatorFull, NoGradients, OptionError, ShapeMismatch

Array = np.ndarray[Any, Any]


def clipped(gradients: list[list[float]], max_norm: float) -> tuple[list[Array], float]:
    """Gradients clipped by their global norm inside a compiled program, and the norm before."""
    g = ws.Graph()
    slopes = [g.input(f"g{i}", (len(x),), "float64") for i, x in enumerate(gradients)]
    out, norm = ws.optim.clip_by_global_norm(slopes, g.scalar("limit", max_norm))
    g.set_outputs({"norm": norm, **{f"out{i}": t for i, t in enumerate(out)}})
    result = ws.build_inference_session(g).step({f"g{i}": np.array(x, float) for i, x in enumerate(gradients)})
    return [result[f"out{i}"] for i in range(len(gradients))], float(result["norm"])


def test_e01_global_norm() -> None:
    (out,), norm = clipped([[100, -200, 50]], 1)
    assert norm == pytest.approx(229.12878475, abs=5e-9)
    np.testing.assert_allclose(out, [0.43643578, -0.87287156, 0.21821789], atol=5e-9)


@pytest.mark.parametrize(("gradient", "limit"), [([0.3, -0.4], 1.0), ([3.0, 4.0], 5.0), ([0.0, 0.0], 1.0)])
def test_e02_nothing_to_clip_changes_no_bit(gradient: list[float], limit: float) -> None:
    (out,), _ = clipped([gradient], limit)
    assert out.tobytes() == np.array(gradient).tobytes()


def test_e03_one_norm_over_all() -> None:
    (a, b), norm = clipped([[3], [4]], 1)
    assert (float(a[0]), float(b[0]), norm) == (pytest.approx(0.6), pytest.approx(0.8), 5.0)


# -- the objects -------------------------------------------------------------------------------------------------


def accumulator(steps: int, **options: Any) -> ws.GradientAccumulator:
    made = ws.GradientAccumulator(ws.AccumulationConfig(steps, **options))
    made.register("w", (2,))
    return made


def test_e04_to_e06_config() -> None:
    config = ws.AccumulationConfig()
    assert (config.accumulation_steps, config.normalize, config.max_grad_norm) == (4, True, None)
    assert config.effective_batch_size(32) == 128
    assert ws.AccumulationConfig.new(7).accumulation_steps == 7
    with pytest.warns(
        UserWarning, match=r"AccumulationConfig.new\(0\): an update takes at least 1 micro-batch; 1 is used"
    ):
        assert ws.AccumulationConfig.new(0).accumulation_steps == 1
    with pytest.raises(OptionError, match="accumulation_steps=0: expected an integer of at least 1"):
        ws.AccumulationConfig(accumulation_steps=0)
    with pytest.raises(OptionError, match=r"max_grad_norm=-1.0: expected a number above 0"):
        ws.AccumulationConfig(max_grad_norm=-1.0)
    built = ws.AccumulationConfig.new(3).with_normalize(False).with_max_grad_norm(5.0)
    assert built == ws.AccumulationConfig(3, False, 5.0)


def test_e07_e08_buffer() -> None:
    buffer = ws.GradientBuffer((3, 4))
    assert (buffer.data.shape, buffer.data.dtype, buffer.shape, buffer.accumulated_count) == ((12,), float, (3, 4), 0)
    assert not buffer.data.any()
    buffer = ws.GradientBuffer((3,))
    for count, expected in ((1, [1, 2, 3]), (2, [2, 4, 6])):
        buffer.accumulate([1, 2, 3])
        assert (buffer.data.tolist(), buffer.accumulated_count) == (expected, count)
    buffer.reset()
    assert (buffer.data.tolist(), buffer.accumulated_count) == ([0, 0, 0], 0)


def test_e09_a_refused_gradient_leaves_nothing_behind() -> None:
    buffer = ws.GradientBuffer((3,))
    buffer.accumulate([1, 2, 3])
    with pytest.raises(ShapeMismatch, match=r"has shape \(3,\); received \(2,\)") as caught:
        buffer.accumulate([1, 2])
    assert (caught.value.name, caught.value.expected, caught.value.got) == ("", (3,), (2,))
    assert (buffer.data.tolist(), buffer.accumulated_count) == ([1, 2, 3], 1)


def test_e10_e11_get_and_norm() -> None:
    buffer = ws.GradientBuffer((2,))
    assert buffer.get(True).tolist() == [0, 0]
    buffer.accumulate([2, 4])
    buffer.accumulate([6, 8])
    assert (buffer.get(True).tolist(), buffer.get(False).tolist()) == ([4, 6], [8, 12])
    buffer.reset()
    for norm in (5.0, 10.0):
        buffer.accumulate([3, 4])
        assert buffer.l2_norm() == pytest.approx(norm, abs=1e-10)


def test_e12_to_e14_register_and_refuse() -> None:
    acc = accumulator(2)
    acc.accumulate("w", [1, 1])
    acc.register("w", (5,))
    assert (len(acc.buffers), acc.buffers["w"].data.tolist()) == (1, [1, 1])
    with pytest.raises(NoGradients, match=r"there is no parameter 'b'; registered parameters: 'w'. Call register"):
        acc.accumulate("b", [1])
    with pytest.raises(ShapeMismatch, match="gradient of 'w'") as caught:
        acc.accumulate("w", [1])
    assert caught.value.name == "w"
    acc.accumulate("w", [1, 1])
    for gradient in ([1, 1], [1]):
        with pytest.raises(AccumulatorFull, match="all 2 micro-batches of an update are there") as full:
            acc.accumulate("w", gradient)
        assert full.value.steps == 2


def test_e15_should_update() -> None:
    acc = accumulator(2)
    seen = []
    for _ in range(2):
        seen.append(acc.should_update())
        acc.accumulate("w", [1, 1])
    acc.register("b", (1,))
    assert [*seen, acc.should_update()] == [False, False, True]


def test_e16_to_e19_gradients() -> None:
    acc = accumulator(2)
    with pytest.raises(NoGradients, match="there are no gradients yet"):
        acc.get_gradients()
    with pytest.raises(NoGradients, match="there are no gradients yet"):
        ws.GradientAccumulator().get_gradients()
    acc.accumulate("w", [2, 4])
    acc.accumulate("w", [6, 8])
    assert [acc.get_gradients()["w"].tolist() for _ in range(2)] == [[4, 6], [4, 6]]
    one = accumulator(1, normalize=False, max_grad_norm=5.0)
    one.accumulate("w", [30, 40])
    np.testing.assert_allclose(one.get_gradients()["w"], [3, 4], rtol=0, atol=1e-10)
    for normalize, expected in ((True, [30, 40]), (False, [36, 48])):
        two = accumulator(2, normalize=normalize, max_grad_norm=60.0)
        two.accumulate("w", [30, 40])
        two.accumulate("w", [30, 40])
        np.testing.assert_allclose(two.get_gradients()["w"], expected, rtol=0, atol=1e-10)


def test_e20_to_e22_reset_and_step() -> None:
    acc = accumulator(2)
    assert [acc.step({"w": [1, 1]}), acc.step({"w": [1, 1]})] == [False, True]
    assert acc.stats().total_micro_batches == 2
    acc.reset()
    assert (acc.buffers["w"].data.tolist(), acc.stats().total_updates) == ([0, 0], 1)
    acc.accumulate("w", [1, 2])
    acc.register("b", (1,))
    assert acc.stats().total_micro_batches == 2
    with pytest.raises(ShapeMismatch):
        acc.step({"w": [1, 1], "b": [1, 2]})
    assert (acc.buffers["w"].data.tolist(), acc.buffers["w"].accumulated_count) == ([1, 2], 1)
    assert acc.stats().total_micro_batches == 2


def test_e23_e24_what_is_really_there() -> None:
    acc = ws.GradientAccumulator(ws.AccumulationConfig(4))
    acc.register("w", (1,))
    for value in (1, 2, 6):
        acc.accumulate("w", [value])
    assert acc.get_gradients()["w"].tolist() == [3]
    acc = ws.GradientAccumulator(ws.AccumulationConfig(3))
    acc.register("a", (2, 3))
    acc.register("b", (4,))
    stats = acc.stats()
    assert stats == ws.AccumulationStats(0, 0, 3, 2, 10)
    assert stats.effective_batch_multiplier() == 3


def test_e25_errors() -> None:
    for kind, builtin in ((ShapeMismatch, ValueError), (NoGradients, LookupError), (AccumulatorFull, RuntimeError)):
        assert issubclass(kind, AccumulationError)
        assert issubclass(kind, builtin)


# -- in the step -------------------------------------------------------------------------------------------------

T = np.array([1.0, 2.0, 3.0, 6.0])


def one_weight(loss: str) -> ws.Graph:
    g = ws.Graph()
    t, w = g.input("t", ("batch",), "float64"), g.parameter("w", (), init=0.0, dtype="float64")
    predicted = w.expand(*t.shape)
    g.set_outputs([getattr(ws.losses, loss)(predicted, t)])
    return g


@pytest.mark.parametrize(
    ("loss", "value", "gradient"), [("mse_loss", 12.5, -6.0), ("rmse_loss", 3.53553391, -0.84852814)]
)
def test_e26_e27_a_window_is_one_batch(loss: str, value: float, gradient: float) -> None:
    session = ws.build_session(one_weight(loss), optimizer=ws.SGD(lr=1.0), batch_size=3, accumulate=2)
    assert float(session.step(t=T)) == pytest.approx(value, abs=5e-9)
    assert float(session.get("w")) == pytest.approx(-gradient, abs=5e-9)


def test_e26_the_objects_average_micro_batches() -> None:
    acc = accumulator(2)
    acc.register("v", (1,))
    for part in (T[:3], T[3:]):
        acc.step({"v": [np.mean(2 * (0 - part))]})
    assert acc.get_gradients()["v"].tolist() == [-8]


def test_e28_an_update_a_window() -> None:
    g = ws.Graph()
    x, w = g.input("x", ("batch", 1)), g.parameter("w", (1, 1), init=1.0)
    g.set_outputs([(x @ w).mean()])
    schedule = ws.schedules.Exponential(0.1, 0.5)
    optimizer = ws.SGD(lr=0.1, weight_decay=0.5)
    session = ws.build_session(g, optimizer=optimizer, schedule=schedule, batch_size=2, accumulate=4)
    rows = np.zeros((19, 1), np.float32)  # two windows of eight rows, and one of three
    losses = session.run(x=rows, shuffle=False)
    assert (len(losses), session.state.step) == (3, 3)
    expected = (1 - 0.5 * 0.1) * (1 - 0.5 * 0.05) * (1 - 0.5 * 0.025)
    np.testing.assert_allclose(session.get("w"), [[expected]], rtol=1e-6)
