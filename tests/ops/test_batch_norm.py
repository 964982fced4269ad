"""Batch norm in sessions: running statistics, partial batches, one value per channel, few kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wholestep as ws
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.model.kernel import Kind
from wholestep.errors import GraphError, InputError, OptionError, ShapeError, UsageError

RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(23, 6)).astype(np.float32), RNG.integers(0, 3, 23)
SPECS: dict[str, Any] = {"inputs": ws.Spec(("batch", 6)), "targets": ws.Spec(("batch",), "int32")}


def rows_model() -> ws.nn.Sequential:
    return ws.nn.Sequential(ws.nn.Linear(6, 5), ws.nn.BatchNorm1d(5), ws.nn.ReLU(), ws.nn.Linear(5, 3))


def session_of(model: ws.nn.Module, **options: Any) -> Any:
    options = {"optimizer": ws.SGD(lr=0.1), "batch_size": 8, **options}
    return ws.build_session(model, **SPECS, loss="cross_entropy", **options)


def test_running_statistics_follow_partial_batches_and_serve_evaluation() -> None:
    twin = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    model = rows_model()
    report = model.load_state_dict(twin.state_dict())  # has num_batches_tracked, which is accepted
    assert not report.unexpected
    session, optimizer = session_of(model), torch.optim.SGD(twin.parameters(), lr=0.1)
    for rows in (slice(0, 8), slice(8, 11), slice(11, 13)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(twin(torch.tensor(X[rows])), torch.tensor(LABELS[rows]))
        loss.backward()
        optimizer.step()
        assert float(session.step(x=X[rows], labels=LABELS[rows])) == pytest.approx(float(loss.detach()), rel=1e-5)
    twin.eval()
    theirs, ours = twin.state_dict(), model.state_dict()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name].numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
    expected = twin(torch.tensor(X)).detach()
    np.testing.assert_allclose(model(X), expected.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(session.predict(x=X[:1]), expected[:1].numpy(), rtol=1e-4, atol=1e-5)
    loss = nn.functional.cross_entropy(expected[:7], torch.tensor(LABELS[:7]))
    assert float(session.evaluate(x=X[:7], labels=LABELS[:7])["loss"]) == pytest.approx(float(loss), rel=1e-5)
    assert all((model.state_dict()[name] == value).all() for name, value in ours.items())  # nothing was trained


def test_momentum_may_be_a_runtime_scalar() -> None:
    g = ws.Graph()
    x, momentum = g.input("x", ("batch", 6)), g.scalar("momentum", 0.5)
    mean, var = g.state("mean", (6,)), g.state("var", (6,), 1.0)
    out = ws.batch_norm(x * g.parameter("w", (6,), 1.0), None, None, mean, var, momentum)
    g.set_outputs([(out * out).mean()])
    session = ws.build_session(g, batch_size=8, optimizer=ws.SGD(lr=0.0))
    session.step(x=X[:8])
    np.testing.assert_allclose(session.get("mean"), 0.5 * X[:8].mean(0), rtol=1e-5, atol=1e-6)
    session.scalars["momentum"] = 0.0
    session.step(x=X[8:16])
    np.testing.assert_allclose(session.get("mean"), 0.5 * X[:8].mean(0), rtol=1e-5, atol=1e-6)


# -- one value per channel ---------------------------------------------------------------------------------------


def test_a_step_of_one_row_is_refused_before_anything_is_written() -> None:
    model = rows_model()
    session = session_of(model)
    before = model.state_dict()
    for call in (lambda: session.step(x=X[:1], labels=LABELS[:1]), lambda: session.run(x=X[:17], labels=LABELS[:17])):
        with pytest.raises(
            InputError, match="the variance of a single value per channel: batch must be 2 or more, but is 1"
        ):
            call()
    assert all((model.state_dict()[name] == value).all() for name, value in before.items())
    session.run(x=X[:18], labels=LABELS[:18])
    session.evaluate(x=X[:1], labels=LABELS[:1])


def test_a_window_whose_last_part_has_one_row_is_refused() -> None:
    session = session_of(rows_model(), batch_size=4, accumulate=2, per_micro_batch=True)
    with pytest.raises(InputError, match="batch must be 2 or more, but is 1"):
        session.step(x=X[:5], labels=LABELS[:5])
    session.step(x=X[:6], labels=LABELS[:6])


def test_images_of_one_row_have_many_values() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 3, 2, 2))
    g.set_outputs([(ws.batch_norm(x * g.parameter("w", (3, 1, 1), 1.0)) ** 2).mean()])
    session = ws.build_session(g, batch_size=4)
    assert session.plan.least == ()
    assert float(session.step(x=RNG.normal(size=(1, 3, 2, 2)).astype(np.float32))) == pytest.approx(1.0, rel=1e-3)


def test_the_least_size_is_part_of_a_saved_plan() -> None:
    plan = session_of(rows_model()).plan
    (least,) = plan.least
    assert (str(least.extent), least.size) == ("batch", 2)
    assert load(dump(plan)).least == plan.least


def test_a_batch_norm_cannot_be_cut_into_parts() -> None:
    with pytest.raises(ws.errors.WholestepError, match="batch_norm"):
        session_of(rows_model(), accumulate=2)


STATE = ws.Graph().state("s", (6,))
BAD = {
    "a batch of one": (lambda x: ws.batch_norm(x[:1]), ShapeError, "has one value per channel, which has no variance"),
    "no channels": (lambda x: ws.batch_norm(x[0], np.ones(6, "f")), ShapeError, r"\(N, C, ...\); received \(6,\)"),
    "weight": (lambda x: ws.batch_norm(x, np.ones(5, "f")), ShapeError, r"weight needs one value for each of the 6"),
    "bias": (lambda x: ws.batch_norm(x, None, np.ones(5, "f")), ShapeError, r"bias needs one value for each .*\(5,\)"),
    "one statistic": (lambda x: ws.batch_norm(x, None, None, STATE), UsageError, "both .* running_var is missing"),
    "momentum": (
        lambda x: ws.batch_norm(x, None, None, x.graph.state("a", (6,)), x.graph.state("b", (6,)), 2.0),
        OptionError, "momentum must be between 0 .* and 1; received 2.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_errors_teach(what: str) -> None:
    function, error, text = BAD[what]
    with pytest.raises(error, match=text):
        function(ws.Graph().input("x", (4, 6)))


def test_a_capacity_of_one_row_is_refused_at_build() -> None:
    with pytest.raises(GraphError, match=r"batch is 1 at most; .* Build with a larger batch_size"):
        session_of(rows_model(), batch_size=1)


# -- kernels -----------------------------------------------------------------------------------------------------


def images_session(**options: Any) -> Any:
    """conv -> norm -> relu -> conv -> norm, added to the first relu -> relu"""
    g = ws.Graph()
    x, y = g.input("x", ("batch", 3, 8, 8)), g.input("y", ("batch", 16))
    h = ws.relu(normed(g, ws.conv2d(x, g.parameter("w1", (16, 3, 3, 3)), padding=1), "a"))
    h = ws.relu(h + normed(g, ws.conv2d(h, g.parameter("w2", (16, 16, 3, 3)), padding=1), "b"))
    g.set_outputs({"loss": ws.losses.mse_loss(ws.global_avg_pool2d(h), y)})
    return ws.build_session(g, batch_size=8, **options)


def normed(g: ws.Graph, h: ws.Tensor, name: str) -> ws.Tensor:
    states = g.state(f"{name}.mean", (16,)), g.state(f"{name}.var", (16,), 1.0)
    return ws.batch_norm(h, g.parameter(f"{name}.gain", (16,), 1.0), g.parameter(f"{name}.shift", (16,), 0.0), *states)


def test_conv_norm_relu_and_back_pass_over_the_images_as_often_as_they_must() -> None:
    plan = images_session().plan
    image = (8 * 16 * 8 * 8) * 4
    stored = [
        k.id for k in plan.kernels for level in k.levels for store in level.stores
        if k.kind is Kind.NEST and plan.buffers[store.load.buffer].bytes == image
    ]  # fmt: skip
    assert len(stored) <= 5  # two normalised images, what arrives from the pool, and what leaves each norm
    origins = [" ".join(k.origin) for k in plan.kernels]
    assert not any("cast" in o for o in origins), "an image is copied"
    assert sum("batch_norm" in o and "relu" in o and "gradient" not in o for o in origins) == 2


def test_the_same_bits_on_one_and_two_threads_and_with_more_room() -> None:
    batch = {"x": RNG.normal(size=(7, 3, 8, 8)).astype(np.float32), "y": RNG.normal(size=(7, 16)).astype(np.float32)}
    found = []
    for threads in (1, 2):
        session = images_session(threads=threads, optimizer=ws.SGD(lr=0.1), seed=1)
        session.step(batch)
        found.append({name: session.get(name) for name in ("w1", "w2", "a.gain", "b.shift", "a.mean", "b.var")})
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], found[1][name], err_msg=name)


@pytest.mark.parametrize("momentum", [0.1, 0.0])
def test_frozen_norms_still_move_their_running_statistics_as_torchs(momentum: float) -> None:
    """Of a frozen body, in `fit`: torch's of a network in `train` mode with `requires_grad` off."""
    model = ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.BatchNorm1d(4, momentum=momentum), ws.nn.Linear(4, 2))
    theirs = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4, momentum=momentum), torch.nn.Linear(4, 2)
    )
    theirs.load_state_dict({n: torch.tensor(a) for n, a in model.state_dict().items()}, strict=False)
    rng = np.random.default_rng(0)
    x, y = rng.normal(2.0, 3.0, size=(12, 3)).astype("f"), rng.normal(size=(12, 2)).astype("f")
    before = model.state_dict()
    model.freeze("0.*", "1.*")
    ws.fit(model, (x, y), loss="mse", optimizer=ws.SGD(lr=0.1), batch_size=4, shuffle=False, progress=False)
    theirs[:2].requires_grad_(False)
    sgd = torch.optim.SGD(theirs[2].parameters(), lr=0.1)
    for start in range(0, 12, 4):
        sgd.zero_grad()
        torch.nn.functional.mse_loss(
            theirs(torch.tensor(x[start : start + 4])), torch.tensor(y[start : start + 4])
        ).backward()
        sgd.step()
    after = model.state_dict()
    for name, value in theirs.state_dict().items():
        if "tracked" not in name:
            np.testing.assert_allclose(after[name], value.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    assert all((after[n] == before[n]).all() for n in after if n.startswith("0.") or n in ("1.weight", "1.bias"))
    assert (after["1.running_mean"] != before["1.running_mean"]).all() == (momentum > 0)
