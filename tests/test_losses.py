"""Losses: section B of the conformance page, and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.recording import value, value_and_gradients
from wholestep import losses
from wholestep.errors import DTypeError, OptionError, ShapeError

F = torch.nn.functional
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


@pytest.mark.parametrize("name", [n for n in losses.__all__ if "cross_entropy" not in n or "binary" in n])
def test_shapes_are_not_broadcast(name):  # B16
    g = ws.Graph()
    with pytest.raises(ShapeError, match=r"(?s)one shape; received \(4, 1\) and \(4,\).*test_losses\.py"):
        getattr(losses, name)(g.input("p", (4, 1)), g.input("t", (4,)))


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


def test_ignored_rows_against_torch():
    logits, labels = RNG.normal(size=(5, 3)), np.array([0, -100, 2, -100, 1], np.int64)
    x = torch.tensor(logits, requires_grad=True)
    expected = F.cross_entropy(x, torch.tensor(labels))
    expected.backward()
    out, (slope,) = value_and_gradients(lambda a, b: losses.cross_entropy(a, b, ignore_index=-100), logits, labels)
    close(out, expected.item())
    close(slope, x.grad)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions_against_torch(reduction):
    p, t = RNG.normal(size=(4, 3)), RNG.uniform(size=(4, 3))
    pairs = [
        (losses.mse_loss, F.mse_loss), (losses.mae_loss, F.l1_loss), (losses.huber_loss, F.huber_loss),
        (losses.smooth_l1_loss, F.smooth_l1_loss), (losses.cross_entropy, F.cross_entropy),
        (losses.binary_cross_entropy_with_logits_loss, F.binary_cross_entropy_with_logits),
    ]  # fmt: skip
    for ours, theirs in pairs:
        expected = theirs(torch.tensor(p), torch.tensor(t), reduction=reduction)
        close(value(lambda a, b, ours=ours: ours(a, b, reduction=reduction), p, t), expected)


def test_wrong_targets_and_options():
    g = ws.Graph()
    logits = g.input("logits", (4, 3))
    with pytest.raises(DTypeError, match=r"holds probabilities and needs dtype float32; received int32"):
        losses.cross_entropy(logits, g.input("one_hot", (4, 3), "int32"))
    with pytest.raises(ShapeError, match=r"need labels of shape \(4,\); received \(5,\)"):
        losses.cross_entropy(logits, g.input("labels", (5,), "int32"))
    with pytest.raises(ShapeError, match=r"cross_entropy: prediction and target must have one shape"):
        losses.cross_entropy(logits, g.input("float_labels", (4,)))
    with pytest.raises(OptionError, match="'mean', 'sum' or 'none'; received 'average'"):
        losses.mse_loss(logits, logits, reduction="average")
    with pytest.raises(OptionError, match="ignore_index needs class indices"):
        losses.cross_entropy(logits, logits, ignore_index=0)


@pytest.mark.parametrize("name", losses.__all__)
def test_examples_run(name):
    g = ws.Graph()
    known = {"ws": ws, "x": g.input("x", (4, 3)), "w": g.parameter("w", (3, 2)), "y": g.input("y", (4, 2))}
    known |= {
        "logits": known["x"],
        "probabilities": known["x"],
        "targets": known["x"],
        "labels": g.input("l", (4,), "int32"),
    }
    example = getattr(losses, name).__doc__.split("Example: `")[1].split("`")[0]
    assert eval(example, known).shape == ()  # noqa: S307


def test_a_symbolic_batch_gives_the_mean_of_the_rows_that_are_there():
    p, t = RNG.normal(size=(5, 3)), RNG.normal(size=(5, 3))
    out = value(losses.mse_loss, p, t, dims=(("batch", 3), ("batch", 3)))
    close(out, np.mean((p - t) ** 2))
