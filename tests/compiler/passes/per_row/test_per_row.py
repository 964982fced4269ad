"""Losses and gradient norms of single rows equal those of steps over one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep import nn

rng = np.random.default_rng(0)
ROWS = 5
VECTORS = rng.standard_normal((ROWS, 6)).astype("f4")
SEQUENCES = rng.standard_normal((ROWS, 4, 6)).astype("f4")
IMAGES = rng.standard_normal((ROWS, 4, 7, 6)).astype("f4")
TOKENS = rng.integers(0, 11, (ROWS, 5)).astype("i4")
CLASSES = rng.integers(0, 3, ROWS).astype("i4")
MASKED = np.where(rng.random((ROWS, 5)) < 0.3, -1, rng.integers(0, 11, (ROWS, 5))).astype("i4")


class SharedWeights(nn.Module):
    """One layer twice, and a weight used without a layer: contributions are sums of several terms."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(ws.tanh(self.layer(ws.tanh(self.layer(x)))))


def images(*layers: nn.Module, features: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.Linear(features, 3))


# name: (model, inputs, targets, loss)
Case = tuple[Callable[[], nn.Module], Any, Any, Any]
CASES: dict[str, Case] = {
    "dense layers and a norm": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 3)), VECTORS, CLASSES,
        "cross_entropy",
    ),
    "a sequence, whose contribution is a Gram form": (
        lambda: nn.Sequential(nn.Linear(6, 9), nn.RMSNorm(9), nn.Linear(9, 3)), SEQUENCES,
        rng.integers(0, 3, (ROWS, 4)).astype("i4"), "cross_entropy",
    ),
    "shared weights": (SharedWeights, VECTORS, CLASSES, "cross_entropy"),
    "a convolution": (images(nn.Conv2d(4, 3, 3, stride=2, padding=1), features=36), IMAGES, CLASSES, "cross_entropy"),
    "a wide convolution of few pixels": (
        images(nn.Conv2d(4, 16, (7, 5)), features=32), IMAGES, CLASSES, "cross_entropy"
    ),
    "a grouped and a dilated convolution": (
        images(nn.Conv2d(4, 6, 3, groups=2), nn.Conv2d(6, 2, 2, dilation=2), features=12), IMAGES, CLASSES,
        "cross_entropy",
    ),
    "group norm": (images(nn.GroupNorm(2, 4), features=168), IMAGES, CLASSES, "cross_entropy"),
    "a tied embedding, attention, and masked targets": (
        lambda: ws.models.gpt2(layers=1, width=8, heads=2, vocabulary=11, context=5), TOKENS, MASKED,
        ws.losses.Loss("cross_entropy", ignore_index=-1),
    ),
    "recurrent layers": (lambda: ws.models.lstm_lm(11, width=6, layers=2), TOKENS, np.abs(MASKED), "cross_entropy"),
    "numbers": (lambda: nn.Linear(6, 2), VECTORS, rng.standard_normal((ROWS, 2)).astype("f4"), "mse"),
    "binary targets": (
        lambda: nn.Linear(6, 2), VECTORS, rng.integers(0, 2, (ROWS, 2)).astype("f4"), "bce"
    ),
}  # fmt: skip


def session_of(case: Case, device: str, **options: Any) -> ws.Session:
    make, x, y, loss = case
    return ws.build_session(
        make(),
        inputs=ws.Spec(("batch", *x.shape[1:]), str(x.dtype)),
        targets=ws.Spec(("batch", *y.shape[1:]), str(y.dtype)),
        loss=loss,
        optimizer=ws.SGD(lr=0.0),
        batch_size=ROWS,
        device=device,
        seed=0,
        options=ws.CompileOptions(egraph=False),
        **options,
    )


def row_by_row(case: Case, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """The loss, and the norm of the gradient of the sum that the loss divides, of each row in a step of its own."""
    session = session_of(case, "reference", gradient_norm=True, **options)
    steps = [session.step(x=case[1][i : i + 1], labels=case[2][i : i + 1]) for i in range(ROWS)]
    return np.array([float(s.loss) for s in steps]), np.array([float(s["grad_norm"]) for s in steps])


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_every_row_has_the_loss_and_the_gradient_norm_of_a_step_of_its_own(name: str, device: str) -> None:
    case = CASES[name]
    losses, norms = row_by_row(case)
    result = session_of(case, device, per_row=["loss", "gradient_norm"]).step(x=case[1], labels=case[2])
    np.testing.assert_allclose(result["row_loss"], losses, rtol=2e-5, atol=1e-6)
    if "masked" in name:  # a row with more targets has a larger share of the mean
        counted = (case[2] >= 0).sum(1)
        norms = norms * counted / counted.mean()
    np.testing.assert_allclose(result["row_gradient_norm"], norms, rtol=5e-5)


def test_the_step_itself_is_unchanged() -> None:
    case = CASES["a convolution"]
    plain, measured = session_of(case, "reference"), session_of(case, "reference", per_row=["gradient_norm"])
    assert plain.step(x=case[1], labels=case[2]).loss == measured.step(x=case[1], labels=case[2]).loss
    before, after = plain.state_dict(), measured.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])


def test_a_penalty_that_no_row_affects_is_left_out() -> None:
    make, x, y, loss = CASES["numbers"]
    losses, norms = row_by_row((make, x, y, loss))
    regularised = (lambda: nn.Linear(6, 2, kernel_regularizer="l2"), x, y, loss)
    result = session_of(regularised, "reference", per_row=["loss", "gradient_norm"]).step(x=x, labels=y)
    np.testing.assert_allclose(result["row_loss"], losses, rtol=1e-6)
    np.testing.assert_allclose(result["row_gradient_norm"], norms, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"per_row": ["losses"]}, r"per_row=\['losses'\]: expected some of 'loss', 'gradient_norm'"),
        ({"per_row": ["loss"], "accumulate": 2}, r"per_row= needs every batch in one step"),
    ],
)
def test_what_is_not_supported_is_refused(options: dict[str, Any], pattern: str) -> None:
    with pytest.raises((ws.errors.OptionError, ws.errors.UsageError), match=pattern):
        session_of(CASES["numbers"], "reference", **options)


def test_a_loss_that_is_no_mean_over_rows_has_no_losses_of_rows() -> None:
    make, x, y, _ = CASES["numbers"]
    with pytest.raises(ws.errors.GraphError, match=r"a weighted sum of means or sums over the rows; this one ends in"):
        session_of((make, x, y, "rmse"), "reference", per_row=["loss"])
