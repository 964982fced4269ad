"""Section B of the conformance page: losses."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.support.recording import value, value_and_gradients
from wholestep import losses
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.errors import OptionError, ShapeError

RNG = np.random.default_rng(0)
LOGITS = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
TARGETS = np.array([[0.0, 0.0, 1.0], [0.5, 0.25, 0.25]])


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-8, atol=6e-9)


def test_mse():  # B01, B02
    loss, (slope, _) = value_and_gradients(losses.mse_loss, np.array([0.8, 0.3, 0.5]), np.array([1.0, 0.0, 0.5]))
    np.testing.assert_allclose(loss, 0.0433333, atol=1e-7)
    np.testing.assert_allclose(slope, [-0.1333333, 0.2, 0.0], atol=1e-7)
    assert value(losses.mse_loss, np.zeros((2, 3)), np.full((2, 3), 2.0)) == 4.0


@pytest.mark.parametrize(("loss", "expected"), [("mse_loss", 0.375), ("rmse_loss", 0.61237244), ("mae_loss", 0.5)])
def test_regression(loss, expected):  # B03
    close(value(getattr(losses, loss), np.array([3, -0.5, 2, 7]), np.array([2.5, 0, 2, 8])), expected)


@pytest.mark.parametrize("loss", [losses.rmse_loss, losses.mae_loss])
def test_zero_error_has_zero_gradient(loss):  # B04
    x = np.array([1.0, -2.0])
    out, slopes = value_and_gradients(loss, x, x)
    assert out == 0.0
    for slope in slopes:
        np.testing.assert_array_equal(slope, [0.0, 0.0])


def test_huber():  # B05, B06
    x = np.array([0, 0.5, 1, 2, -3])
    for delta, expected, smooth in ((1.0, 0.925, 0.925), (2.0, 1.325, 0.6625)):
        close(value(lambda p, d=delta: losses.huber_loss(p, 0.0, d), x), expected)
        close(value(lambda p, d=delta: losses.smooth_l1_loss(p, 0.0, d), x), smooth)
    for side in (-2.0, 2.0):
        out, (slope,) = value_and_gradients(lambda p: losses.huber_loss(p, 0.0, 2.0, reduction="sum"), np.array([side]))
        assert (out, slope[0]) == (2.0, side)
    with pytest.raises(OptionError, match="delta must be above 0; received 0"):
        value(lambda p: losses.huber_loss(p, 0.0, 0), x)


@pytest.mark.parametrize(
    ("p", "expected"),
    [([0.7, 0.2, 0.1], 0.35667494), ([0.95, 0.025, 0.025], 0.05129329), ([0.1, 0.7, 0.2], 2.30258509)],
)
def test_cross_entropy_of_log_probabilities(p, expected):  # B07
    close(value(losses.cross_entropy_with_logits_loss, np.log([p]), np.array([0], np.int32)), expected)


def test_cross_entropy_sums_classes_and_averages_rows():  # B08
    close(value(losses.cross_entropy_with_logits_loss, LOGITS, TARGETS), 0.75310913)


@pytest.mark.parametrize("rows", [1, 4])
def test_gradient_of_cross_entropy(rows):  # B09
    logits = np.log(np.tile([0.7, 0.2, 0.1], (rows, 1)))
    _, (slope,) = value_and_gradients(losses.cross_entropy, logits, np.zeros(rows, np.int32))
    close(slope, np.tile([-0.3, 0.2, 0.1], (rows, 1)) / rows)


def test_indices_and_one_hot_rows_have_the_same_bits():  # B10
    logits, labels = RNG.normal(size=(5, 4)), np.array([3, 0, 1, 1, 2], np.int32)
    by_index = value(lambda x, y: losses.cross_entropy(x, y, reduction="none"), logits, labels)
    by_row = value(lambda x, y: losses.cross_entropy(x, y, reduction="none"), logits, np.eye(4)[labels])
    np.testing.assert_array_equal(by_index, by_row)


def test_log_softmax_is_inside_and_shifts_change_nothing():  # B11
    label = np.array([0], np.int32)
    close(value(losses.cross_entropy, np.array([[0.7, 0.2, 0.1]]), label), 0.76794955)
    np.testing.assert_allclose(
        value(losses.cross_entropy, np.array([[1000.7, 1000.2, 1000.1]]), label), 0.76794955, rtol=1e-7
    )


def test_kl():  # B12
    rows = value(lambda x, t: losses.kl_div_with_logits_loss(x, t, reduction="none"), LOGITS, TARGETS)
    close(rows, [0.40760596, 0.05889152])
    close(value(losses.kl_div_with_logits_loss, LOGITS, TARGETS), 0.23324874)
    _, slopes = value_and_gradients(losses.kl_div_with_logits_loss, LOGITS, TARGETS)
    assert all(np.isfinite(s).all() for s in slopes)


def test_binary_cross_entropy():  # B13
    loss = losses.binary_cross_entropy_with_logits_loss
    close(value(loss, np.array([-2.0, 0, 3]), np.array([0, 1, 0.25])), 1.03955418)
    close(value(loss, np.array([1.5]), np.array([0.3])), 1.25141328)


@pytest.mark.parametrize(("target", "expected", "slope"), [(0.0, 0.0, 0.0), (1.0, 200.0, -1.0)])
def test_binary_cross_entropy_does_not_overflow(target, expected, slope):  # B14
    out, (got, _) = value_and_gradients(
        losses.binary_cross_entropy_with_logits_loss, np.array([-200.0]), np.array([target])
    )
    np.testing.assert_allclose([out, got[0]], [expected, slope], atol=1e-80)


def test_binary_cross_entropy_has_the_right_slope_at_zero():
    _, (slope, _) = value_and_gradients(losses.binary_cross_entropy_with_logits_loss, np.zeros(2), np.array([1.0, 0.0]))
    np.testing.assert_array_equal(slope, [-0.25, 0.25])


def test_calling_a_loss_records_nodes_and_compiles_nothing():  # B15
    count = compile_counter.value
    g = ws.Graph()
    loss = losses.mse_loss(g.input("p", (2, 3)), g.input("t", (2, 3)))
    assert (loss.node.op, loss.shape, compile_counter.value) == ("ratio", (), count)


ELEMENTWISE = [
    "mse_loss", "rmse_loss", "mae_loss", "huber_loss", "smooth_l1_loss", "log_cosh_loss", "quantile_loss",
    "poisson_nll_loss", "kl_div_with_logits_loss", "cosine_embedding_loss", "info_nce_loss",
]  # fmt: skip
YES_OR_NO = ["binary_cross_entropy_with_logits_loss", "focal_loss", "hinge_loss", "dice_loss"]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_shapes_are_not_broadcast(name):  # B16
    g = ws.Graph()
    with pytest.raises(ShapeError, match=r"(?s)one shape; received \(4, 1\) and \(4,\).*test_formulas\.py"):
        getattr(losses, name)(g.input("p", (4, 1)), g.input("t", (4,)))


@pytest.mark.parametrize("name", YES_OR_NO)
def test_one_score_for_each_row_is_one_answer_and_nothing_else_is_broadcast(name):  # B16
    """(4, 1) and (4,) say the same; the loss is that of equal shapes, not that of pairs."""
    scores, answers = np.array([0.3, -1.0, 2.0, 0.1], np.float32), np.array([1.0, 0.0, 1.0, 1.0], np.float32)
    aims = 2 * answers - 1 if name == "hinge_loss" else answers
    values = [losses.value_and_grad(name, p, t)[0] for p, t in [(scores[:, None], aims), (scores, aims)]]
    assert values[0] == values[1]
    g = ws.Graph()
    for i, (p, t) in enumerate([((4, 1), (3,)), ((4,), (3,))]):
        with pytest.raises(ShapeError, match=r"(?s)received.*test_formulas\.py|one for each row"):
            getattr(losses, name)(g.input(f"p{i}", p), g.input(f"t{i}", t))


def test_denominators():  # B17
    def denominator(loss):
        return loss.node.inputs[1]

    g = ws.Graph()
    mse = losses.mse_loss(g.input("p", (2, 3)), g.input("t", (2, 3)))
    assert denominator(mse).attrs.array.value == 6
    logits, labels = g.input("logits", (5, 3)), g.input("labels", (5,), "int32")
    assert denominator(losses.cross_entropy(logits, labels)).attrs.array.value == 5
    given = np.array([0, -100, 2, -100, 1], np.int32)
    count = value(
        lambda x, y: ws.Tensor(denominator(losses.cross_entropy(x, y, ignore_index=-100))),
        RNG.normal(size=(5, 3)),
        given,
    )
    assert count == 3


def test_value_and_grad_on_arrays():  # B18
    loss, slope = losses.value_and_grad(losses.cross_entropy, np.log([0.7, 0.2, 0.1]), 0)
    close(loss, 0.35667494)
    np.testing.assert_allclose(slope, [-0.3, 0.2, 0.1], rtol=1e-12)
