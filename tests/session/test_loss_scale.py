"""The loss scale of float16: planted overflows, growth, resuming, micro-batches, steps of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.compilers import quick
from wholestep.errors import NonFiniteError, OptionError
from wholestep.steps.loss_scale import GOOD, SCALE, SKIPPED

QUICK = quick()
INIT = 1024.0
RNG = np.random.default_rng(0)
ROWS = 8
X = RNG.normal(size=(ROWS, 6)).astype(np.float32)
Y = RNG.normal(size=(ROWS, 3)).astype(np.float32)
# The loss stays finite, in float32; its gradient times the scale is beyond float16's 65,504, half of it is not.
FAR = Y.copy()
FAR[0, 0] = 65504.0 * ROWS * 3 / 2 / INIT * 1.5
OWN = {SCALE, GOOD, SKIPPED}


def graph() -> ws.Graph:
    g = ws.Graph()
    model = ws.nn.Sequential(ws.nn.Linear(6, 8), ws.nn.Tanh(), ws.nn.Linear(8, 3))
    prediction = model(g.input("x", ("batch", 6)))
    g.set_outputs({"loss": ws.losses.mse_loss(prediction, g.input("y", ("batch", 3))), "prediction": prediction})
    return g


def optimizer() -> ws.Optimizer:
    """Moments, counts, an average, a group of its own: all that a skipped step must leave alone."""
    return ws.optim.EMA(ws.Adam(lr=0.01, groups=[ws.Group("*.bias", lr=0.02)]), decay=0.9)


def build(**options: object) -> ws.Session:
    chosen = {"optimizer": ws.Adam(lr=0.01), "batch_size": ROWS, "precision": "float16", "options": QUICK, "threads": 1}
    return ws.build_session(graph(), seed=0, **{**chosen, "loss_scale": ws.LossScale(init=INIT), **options})


def numbers(session: ws.Session) -> dict[str, np.ndarray]:
    return {name: np.array(session.state.get(name)) for name in session.state.names}


def differing(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> set[str]:
    return {name for name in a if a[name].tobytes() != b[name].tobytes()}


def test_a_planted_overflow_skips_one_step_and_halves_the_scale():
    session, twin = build(optimizer=optimizer()), build(optimizer=optimizer())
    assert "products of float16" in str(session.report())
    assert session.loss_scale == INIT
    first = [session.step(x=X, y=Y).loss for _ in range(3)]
    before = numbers(session)
    assert session.loss_scale == INIT
    result = session.step(x=X, y=FAR)
    assert np.isfinite(result.loss)
    assert result.metrics["loss_scale"] == session.loss_scale == INIT / 2
    assert differing(before, numbers(session)) == OWN
    assert session.skipped_steps == 1
    assert session.state.get(GOOD) == 0
    assert session.updates_made == 3  # Adam's corrections do not count it
    after = [session.step(x=X, y=Y).loss for _ in range(3)]
    assert session.skipped_steps == 1
    # The same as if the batch had not been there: a power of two more or less changes no bit.
    assert [*first, *after] == [twin.step(x=X, y=Y).loss for _ in range(6)]
    assert differing(numbers(session), numbers(twin)) <= OWN


def test_it_grows_after_the_interval_which_is_a_runtime_scalar():
    session = build(loss_scale=ws.LossScale(init=INIT, growth=4.0, backoff=0.25, interval=3))
    key = session.plan
    scales = [session.step(x=X, y=Y).metrics["loss_scale"] for _ in range(6)]
    assert scales == [INIT, INIT, 4 * INIT, 4 * INIT, 4 * INIT, 16 * INIT]
    session.scalars["loss_scale.interval"] = 1
    session.scalars["loss_scale.growth"] = 2
    assert session.step(x=X, y=Y).metrics["loss_scale"] == 32 * INIT
    assert session.step(x=X, y=FAR).metrics["loss_scale"] == 8 * INIT
    assert session.plan is key
    assert ws.LossScale() == ws.LossScale(65536.0, 2.0, 0.5, 2000)


def test_gradients_are_unscaled_before_they_are_clipped():
    plain = build(precision="float32", loss_scale=None, clip_norm=0.1)
    half = build(clip_norm=0.1)
    norms = [s.step(x=X, y=Y).metrics["grad_norm"] for s in (half, plain)]
    np.testing.assert_allclose(*norms, rtol=4 * ws.float16.eps)
    assert half.evaluate(x=X, y=Y)["loss"] == pytest.approx(plain.evaluate(x=X, y=Y)["loss"], rel=4 * ws.float16.eps)


def test_without_a_scale_small_gradients_vanish():
    """What it is for: a loss whose gradients lie below float16's smallest number."""
    g = ws.Graph()
    w = g.parameter("w", (6, 3), 0.0)
    loss = ((g.input("x", ("batch", 6)) @ w - g.input("y", ("batch", 3))) ** 2).mean() * 1e-8
    g.set_outputs([loss])
    moved = {}
    for name, scale in (("scaled", ws.LossScale(init=2.0**24)), ("plain", ws.LossScale(init=2.0**-16))):
        session = ws.build_session(
            g, optimizer=ws.SGD(lr=1e8), batch_size=ROWS, precision="float16", loss_scale=scale, options=QUICK
        )
        session.set("w", np.zeros((6, 3), np.float32))
        session.state.set(SCALE, np.float32(0))
        session.step(x=X, y=Y)
        moved[name] = session.get("w").copy()
    exact = 2 * X.T @ Y / Y.size
    np.testing.assert_allclose(moved["scaled"], exact, rtol=0, atol=4 * ws.float16.eps * np.abs(exact).max())
    assert not moved["plain"].any()


def test_micro_batches_are_skipped_together():
    session = build(accumulate=2, batch_size=ROWS // 2)
    whole = build()
    losses = [session.step(x=X, y=Y).loss for _ in range(2)]
    np.testing.assert_allclose(losses, [whole.step(x=X, y=Y).loss for _ in range(2)], rtol=4 * ws.float16.eps)
    before = numbers(session)
    assert session.step(x=X, y=FAR).metrics["loss_scale"] == INIT / 2  # the overflow is in the first half alone
    changed = {n for n in differing(before, numbers(session)) if not n.startswith("accumulate/")}
    assert {n for n in changed if not n.startswith("window/")} <= OWN
    assert session.skipped_steps == 1
    session.step(x=X, y=Y)
    assert session.skipped_steps == 1


def test_policies_for_what_is_not_finite():
    session = build(nonfinite="raise")
    session.step(x=X, y=FAR)  # a smaller scale cures it
    assert session.skipped_steps == 1
    bad = np.where(np.arange(3) == 1, np.nan, Y).astype(np.float32)
    before = numbers(session)
    with pytest.raises(NonFiniteError, match="No state was changed"):
        session.step(x=X, y=bad)
    assert differing(before, numbers(session)) <= OWN


def test_an_epoch_in_memory_counts_the_same():
    """The native loop: the planted batch is the third of five."""
    xs, ys = np.concatenate([X] * 5), np.concatenate([Y, Y, FAR, Y, Y])
    session, stepped = build(), build()
    losses = session.run(x=xs, y=ys, epochs=1, shuffle=False)
    for i in range(5):
        stepped.step(x=X, y=(FAR if i == 2 else Y))
    assert session.skipped_steps == stepped.skipped_steps == 1
    assert session.loss_scale == INIT / 2
    assert session.updates_made == 4
    assert not differing(numbers(session), numbers(stepped))
    assert losses is not None


def test_a_run_resumes_with_its_scale(tmp_path: Path):
    xs, ys = np.concatenate([X] * 4), np.concatenate([Y, FAR, Y, Y])

    def run(epochs: int, **more: object) -> tuple[ws.nn.Module, ws.TrainHistory]:
        model = ws.nn.Sequential(ws.nn.Linear(6, 8), ws.nn.Tanh(), ws.nn.Linear(8, 3))
        arguments = {"loss": "mse_loss", "optimizer": ws.Adam(lr=0.01), "precision": "float16", "batch_size": ROWS}
        scale = ws.LossScale(init=INIT, interval=5)
        history = ws.fit(
            model, (xs, ys), **arguments, loss_scale=scale, shuffle=False, epochs=epochs, progress=False,
            options=QUICK, nonfinite="ignore", seed=0, **more,
        )  # fmt: skip
        return model, history

    whole, told = run(4)
    logs = [e.logs for e in told.epochs]
    assert logs[0]["loss_scale"] == INIT / 2
    assert logs[0]["skipped_steps"] == 1.0
    run(2, checkpoint=tmp_path / "run")
    again, rest = run(4, checkpoint=tmp_path / "run", resume=True, exact=True)
    assert [e.logs["loss_scale"] for e in rest.epochs] == [log["loss_scale"] for log in logs]
    for name, value in whole.state_dict().items():
        assert again.state_dict()[name].tobytes() == value.tobytes(), name


def test_a_step_of_ones_own():
    scale = ws.LossScale(init=INIT)

    @ws.step(inputs={"x": ws.Spec(("batch", 6)), "y": ws.Spec(("batch", 3))})
    def own(g: ws.Graph, x: ws.Tensor, y: ws.Tensor) -> dict[str, ws.Tensor]:
        w, b = g.parameter("w", (6, 3)), g.parameter("b", (3,))
        loss = ws.losses.mse_loss(x @ w + b, y)
        grads = scale.gradients(g, loss, [w, b])
        scale.update(g, ws.Adam(lr=0.01), [w, b], grads)
        return {"loss": loss}

    session = ws.build_session(own, batch_size=ROWS, precision="float16", options=QUICK)
    session.step(x=X, y=Y)
    before = numbers(session)
    session.step(x=X, y=FAR)
    assert differing(before, numbers(session)) == OWN
    assert (session.loss_scale, session.skipped_steps, session.updates_made) == (INIT / 2, 1, 1)
    session.step(x=X, y=Y)
    assert session.updates_made == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"precision": "float8"}, "precision='float8': expected one of 'float32', 'tf32', 'bfloat16', 'float16'"),
        ({"precision": "float64"}, r"For a model of float64 write model.astype\('float64'\)"),
        ({"precision": "bfloat16", "loss_scale": ws.LossScale()}, "received it with bfloat16.*Leave it out"),
        ({"loss_scale": 1024.0}, r"loss_scale must be a description, ws.LossScale\(init=1024.0\)"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], text: str):
    with pytest.raises(OptionError, match=text):
        build(**options)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("init", 0.0, r"init must be a number from 2\*\*-16 to 2\*\*64; received 0.0"),
        ("growth", 0.5, "growth must be a number of at least 1; received 0.5"),
        ("backoff", 2, "backoff must be a number of at most 1, above 0; received 2"),
        ("interval", 2.5, "interval must be an integer of at least 1; received 2.5"),
    ],
)
def test_bad_scales_are_refused(field: str, value: float, text: str):
    with pytest.raises(OptionError, match=text):
        ws.LossScale(**{field: value})


@pytest.mark.parametrize(("nonfinite", "skipped"), [("ignore", 0), ("skip", 1)])
def test_a_batch_that_counts_nothing_is_nan_and_leaves_weights_and_scale_alone(nonfinite: str, skipped: int) -> None:
    """As in torch: the mean of no rows is NaN, its gradients are 0, and `GradScaler` looks at gradients alone."""
    twin = torch.nn.Linear(6, 3)
    labels = np.full(ROWS, -100, np.int32)
    outputs = twin(torch.tensor(X))
    loss = torch.nn.functional.cross_entropy(outputs, torch.tensor(labels).long(), ignore_index=-100)
    loss.backward()
    assert torch.isnan(loss)
    assert not twin.weight.grad.any()
    for precision, scale in (("float16", ws.LossScale(init=INIT)), ("bfloat16", None)):
        model = ws.nn.Linear(6, 3)
        session = ws.build_session(
            model, inputs=ws.Spec(("batch", 6)), targets=ws.Spec(("batch",), "int32"), batch_size=ROWS,
            loss=ws.losses.Loss("cross_entropy", ignore_index=-100), optimizer=ws.SGD(lr=0.1, momentum=0.9),
            precision=precision, loss_scale=scale, nonfinite=nonfinite, device="reference",
        )  # fmt: skip
        before = {name: array.copy() for name, array in model.state_dict().items()}
        assert np.isnan(float(session.step(x=X, labels=labels)))
        assert session.skipped_steps == skipped
        assert scale is None or session.loss_scale == INIT
        for name, array in model.state_dict().items():
            np.testing.assert_array_equal(array, before[name])
