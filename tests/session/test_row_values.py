"""`session.step(per_row=...)`: values of every row from single steps of a session that was built without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import emulated_device
from tests.compiler.passes.per_row.cases import CASES, norm_of, row_by_row

BOTH = ["loss", "gradient_norm"]
NAMES = ("shared weights", "weights of rows", "a convolution and a pool")


@pytest.mark.parametrize("device", ["reference", "cpu", "emulated"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_single_step_returns_the_values_of_its_rows(device: str, accumulate: int) -> None:
    """Between plain steps, which have the numbers that they have without it; learning rates are 0."""
    case = CASES["weights of rows"]
    losses, gradients = row_by_row(case)
    share = case.weights / case.weights.mean()
    sizes = {"batch_size": 5, "accumulate": 1} if accumulate == 1 else {"batch_size": 3, "accumulate": 2}
    with emulated_device():
        session = case.session(device, **sizes)
        plain = session.step(case.arrays())
        result = session.step(case.arrays(), per_row=BOTH)
        assert session.read_loss() == result.loss
        again = session.step(case.arrays())
    np.testing.assert_allclose(result["row_loss"], losses, rtol=1e-9)
    np.testing.assert_allclose(
        result["row_gradient_norm"], [norm_of(g) * s for g, s in zip(gradients, share, strict=True)]
    )
    assert plain.loss == again.loss == pytest.approx(result.loss, rel=1e-12)
    assert "row_loss" not in again.outputs
    assert session.updates_made == 3
    assert session.read_loss() == again.loss


@pytest.mark.parametrize("name", NAMES)
def test_such_steps_train_as_plain_ones_do(name: str) -> None:
    case = CASES[name]
    options: dict[str, Any] = {
        "optimizer": ws.Adam(),
        "schedule": ws.schedules.Cosine(0.1, 9, unit="step"),
        "clip_norm": 1.0,
    }
    plain, mixed = case.session("reference", **options), case.session("reference", **options)
    for step in range(4):
        expected = plain.step(case.arrays())
        result = mixed.step(case.arrays(), per_row=["gradient_norm"] if step in (1, 2) else ())
        assert result.loss == pytest.approx(expected.loss, rel=1e-9)
        assert result.metrics["grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-9)
    assert mixed.updates_made == plain.updates_made == 4
    for parameter in plain.parameter_names:
        np.testing.assert_allclose(mixed.get(parameter), plain.get(parameter), rtol=1e-9, atol=1e-12)


def test_other_settings_of_the_step_hold_for_it_too() -> None:
    case = CASES["shared weights"]
    session = case.session("reference", optimizer=ws.SGD(lr=1.0))
    session.step(case.arrays(), per_row=["loss"])
    session.optimizer.lr = 0.0
    before = session.state_dict()
    session.step(case.arrays(), per_row=["loss"])
    assert all(np.array_equal(session.get(name), before[name]) for name in session.parameter_names)
    session.set_optimizer(ws.Adam(lr=0.0))
    assert session.step(case.arrays(), per_row=["loss"])["row_loss"].shape == (5,)
    recorded = case.session("reference", per_row=BOTH)
    assert recorded.step(case.arrays(), per_row=["loss"])["row_loss"].shape == (5,)
    assert len(recorded._programs.entries) == 1, "the step has these values anyway"


def test_what_has_no_values_of_rows_is_refused() -> None:
    case = CASES["numbers"]
    with pytest.raises(ws.errors.OptionError, match=r"per_row=\['norm'\]: expected some of 'loss', 'gradient_norm'"):
        case.session("reference").step(case.arrays(), per_row=["norm"])
    private = case.session("reference", privacy=ws.Privacy(noise=1.0, clip=1.0))
    with pytest.raises(ws.errors.UsageError, match=r"privacy= with per_row= is not supported"):
        private.step(case.arrays(), per_row=["loss"])

    @ws.step(inputs={"x": ws.Spec(("batch", 6)), "y": ws.Spec(("batch", 2))})
    def own(g: ws.Graph, x: ws.Tensor, y: ws.Tensor) -> Any:
        w = g.parameter("w", (6, 2))
        loss = ((x @ w - y) ** 2).mean()
        ws.SGD().update(g, {"w": w}, ws.gradients(loss, [w]))
        return loss

    session = ws.build_session(own, batch_size=5, device="reference")
    with pytest.raises(ws.errors.UsageError, match=r"step\(per_row=\.\.\.\) needs a step that trains a ws\.nn\.Module"):
        session.step(x=np.ones((5, 6), "f4"), y=np.ones((5, 2), "f4"), per_row=["loss"])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_memory_of_values_is_known_before_the_first_step(accumulate: int) -> None:
    """`ws.estimate` has the bytes that the session maps, which are more than without the values."""
    settings: dict[str, Any] = {
        "inputs": ws.Spec(("batch", 16, 24)),
        "targets": ws.Spec(("batch", 16), "int32"),
        "loss": "cross_entropy",
        "batch_size": 8,
        "accumulate": accumulate,
    }

    def model() -> ws.nn.Module:
        return ws.nn.Sequential(ws.nn.Linear(24, 32), ws.nn.ReLU(), ws.nn.Linear(32, 5))

    plain, measured = ws.estimate(model(), **settings), ws.estimate(model(), **settings, per_row=BOTH)
    assert plain.peak_bytes < measured.peak_bytes
    session = ws.build_session(model(), **settings, per_row=BOTH)
    session.step(x=np.ones((8 * accumulate, 16, 24), "f4"), labels=np.zeros((8 * accumulate, 16), "i4"))
    assert session.peak_bytes == measured.peak_bytes
