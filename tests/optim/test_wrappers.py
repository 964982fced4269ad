"""EMA, Lookahead and SAM against their definitions, and through a session as a user builds it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.sessions import assert_same_bits
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.errors import GraphError, OptionError, UnknownNameError, UsageError
from wholestep.optim import (
    EMA,
    SAM,
    CautiousWeightDecay,
    GradientCentralization,
    Lookahead,
    Optimizer,
    averaged,
)

Array = np.ndarray[Any, Any]


def slope(step: int) -> Array:
    return np.random.default_rng(step).normal(size=(2, 3)) + 0.5


def regression() -> ws.Graph:
    """Two layers and a bias, in float64."""
    g = ws.Graph()
    x, y = g.input("x", ("batch", 3), "float64"), g.input("y", ("batch", 2), "float64")
    rng = np.random.default_rng(0)
    w = g.parameter("w", (3, 4), init=rng.normal(size=(3, 4)), dtype="float64")
    b = g.parameter("b", (4,), init=rng.normal(size=4), dtype="float64")
    v = g.parameter("v", (4, 2), init=rng.normal(size=(4, 2)), dtype="float64")
    g.set_outputs([ws.losses.mse_loss(ws.tanh(x @ w + b) @ v, y)])
    return g


def batch(step: int) -> dict[str, Array]:
    rng = np.random.default_rng(100 + step)
    return {"x": rng.normal(size=(5, 3)), "y": rng.normal(size=(5, 2))}


def torch_loss(p: dict[str, torch.Tensor], step: int) -> torch.Tensor:
    data = {n: torch.tensor(a) for n, a in batch(step).items()}
    prediction = torch.tanh(data["x"] @ p["w"] + p["b"]) @ p["v"]
    return ((prediction - data["y"]) ** 2).mean()


def first_weights() -> dict[str, torch.nn.Parameter]:
    session = ws.build_session(regression(), batch_size=5)
    return {n: torch.nn.Parameter(torch.tensor(session.get(n))) for n in ("w", "b", "v")}


def test_ema_equals_torchs_averaged_model() -> None:
    optimizer = EMA(ws.Adam(lr=0.05), decay=0.9)
    w, start = np.ones((2, 3)), torch.nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
    module = torch.nn.ParameterList([start])
    mean = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    adam = torch.optim.Adam([start], lr=0.05)
    for step in range(20):
        optimizer.step({"w": w}, {"w": slope(step)})
        start.grad = torch.tensor(slope(step))
        adam.step()
        mean.update_parameters(module)
        found = averaged(optimizer.state_dict())
        np.testing.assert_allclose(found["w"], mean.module[0].detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(w, start.detach().numpy(), rtol=1e-12)


def test_ema_leaves_the_training_alone() -> None:
    plain = ws.build_session(regression(), optimizer=ws.AdamW(), batch_size=5)
    session = ws.build_session(regression(), optimizer=EMA(ws.AdamW()), batch_size=5)
    for step in range(3):
        plain.step(**batch(step))
        session.step(**batch(step))
    ours, theirs = session.state_dict(), plain.state_dict()
    weights = {"w": "w.raw", "b": "b.raw", "v": "v.raw"}
    assert_same_bits({n: ours[weights.get(n, n)] for n in theirs}, theirs)
    assert averaged(session).keys() == {"w", "b", "v"}
    with pytest.raises(UnknownNameError, match=r"no averaged weights; train with optimizer=ws\.optim\.EMA"):
        averaged(plain)


def test_lookahead() -> None:
    optimizer = Lookahead(ws.SGD(lr=0.1, momentum=0.9), k=3, alpha=0.4)
    w = np.ones((2, 3))
    fast, slow, velocity = w.copy(), w.copy(), 0.0
    for step in range(10):
        optimizer.step([w], [slope(step)])
        velocity = 0.9 * velocity + slope(step)
        fast = fast - 0.1 * velocity
        if (step + 1) % 3 == 0:
            slow = slow + 0.4 * (fast - slow)
            fast = slow
        np.testing.assert_allclose(w, fast, rtol=1e-12)
        np.testing.assert_allclose(optimizer.state_dict()["param0.lookahead.slow"], slow, rtol=1e-12)


@pytest.mark.parametrize("adaptive", [False, True])
def test_sam_follows_the_gradient_at_the_perturbed_weights(adaptive: bool) -> None:
    optimizer = SAM(ws.SGD(lr=0.1, momentum=0.9), rho=0.3, adaptive=adaptive)
    session = ws.build_session(regression(), optimizer=optimizer, batch_size=5)
    twins = first_weights()
    sgd = torch.optim.SGD(twins.values(), lr=0.1, momentum=0.9)
    for step in range(6):
        loss = torch_loss(dict(twins), step)
        grads = torch.autograd.grad(loss, list(twins.values()))
        scales = [w.detach().abs() if adaptive else torch.ones_like(w) for w in twins.values()]
        norm = torch.sqrt(sum(((s * g) ** 2).sum() for s, g in zip(scales, grads, strict=True)))
        there = {
            n: (w + 0.3 * s * s * g / norm).detach().requires_grad_()
            for (n, w), s, g in zip(twins.items(), scales, grads, strict=True)
        }
        for w, g in zip(
            twins.values(), torch.autograd.grad(torch_loss(there, step), list(there.values())), strict=True
        ):
            w.grad = g
        sgd.step()
        np.testing.assert_allclose(float(session.step(**batch(step))), loss.item(), rtol=1e-11)
    for name, w in twins.items():
        np.testing.assert_allclose(session.get(name), w.detach().numpy(), rtol=1e-10, err_msg=name)


def test_sam_in_a_step_of_ones_own() -> None:
    sam = SAM(ws.SGD(lr=0.1), rho=0.5)

    @ws.step
    def train(g: ws.Graph) -> ws.Tensor:
        w = g.parameter("w", (2,), init=np.array([3.0, 4.0]), dtype="float64")
        loss = (w * w).sum()
        sam.update(g, {"w": w}, sam.gradients(loss, {"w": w}))
        return loss

    session = ws.build_session(train)
    assert float(session.step()) == 25.0
    np.testing.assert_allclose(session.get("w"), np.array([3.0, 4.0]) - 0.2 * np.array([3.3, 4.4]), rtol=1e-12)


@pytest.mark.parametrize("wrap", [EMA, Lookahead, SAM, lambda o: EMA(SAM(Lookahead(o, k=2)))])
def test_wrappers_restore_change_and_survive_json(wrap: Any) -> None:
    optimizer = wrap(ws.AdamW(lr=0.05, groups=[ws.Group("b", lr=0.01)]))
    assert Optimizer.from_config(json.loads(json.dumps(optimizer.to_config()))) == optimizer
    whole, half, other = (ws.build_session(regression(), optimizer=optimizer, batch_size=5) for _ in range(3))
    compiles = compile_counter.value
    assert dict(whole.scalars.items()) == optimizer.runtime_values()
    for session in (whole, half):
        for step in range(3):
            session.step(**batch(step))
        for name, value in optimizer.runtime_values().items():
            session.scalars[name] = value if name == "lookahead.k" else 0.9 * value
    other.load_state_dict(half.state_dict())
    for step in range(3, 7):
        whole.step(**batch(step))
        other.step(**batch(step))
    assert_same_bits(whole.state_dict(), other.state_dict())
    assert compile_counter.value == compiles


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: EMA(0.999), UsageError, r"EMA wraps an optimizer, e\.g\. ws\.optim\.EMA\(ws\.SGD\(lr=0\.1\)\)"),
        (lambda: EMA(ws.SGD(), decay=1.5), OptionError, "EMA: decay must be at least 0 and at most 1; received 1.5"),
        (lambda: Lookahead(ws.SGD(), k=0), OptionError, "Lookahead: k must be at least 1 and finite; received 0"),
        (lambda: SAM(ws.SGD(), rho=-1.0), OptionError, "SAM: rho must be at least 0 and finite; received -1.0"),
        (lambda: EMA(EMA(ws.SGD())), UsageError, "an optimizer inside is called 'ema', too"),
        (lambda: SAM(ws.SGD()).step([np.ones(2)], [np.ones(2)]), GraphError, "grads = sam.gradients"),
    ],
)
def test_wrappers_that_are_refused(make: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        make()


@pytest.mark.parametrize("kind", [EMA, Lookahead, SAM])
def test_examples_run(kind: Any) -> None:
    example = kind.__doc__.split("Example: `")[1].split("`")[0]
    assert isinstance(eval(example, {"ws": ws}), kind)  # noqa: S307


def test_a_session_changes_between_wrappers() -> None:
    session = ws.build_session(regression(), optimizer=EMA(ws.AdamW(lr=0.05)), batch_size=5)
    session.step(**batch(0))
    compiles = compile_counter.value
    session.set_optimizer(EMA(ws.AdamW(lr=0.02), decay=0.5))
    assert (session.optimizer.lr, session.scalars["ema.decay"]) == (0.02, 0.5)
    assert compile_counter.value == compiles
    session.set_optimizer(ws.SGD(lr=0.3))
    assert dict(session.scalars.items()) == {"optimizer.lr": 0.3}
    session.step(**batch(1))


def test_decay_that_acts_on_no_parameter_is_no_obstacle() -> None:
    def vector() -> ws.Graph:
        g = ws.Graph()
        w = g.parameter("w", (3,), init=1.0)
        g.set_outputs([(w * w).sum()])
        return g

    session = ws.build_session(vector(), optimizer=ws.AdamW(lr=0.1))
    session.set_optimizer(ws.AdamW(lr=0.2))
    assert session.optimizer.lr == 0.2


def test_cautious_weight_decay_acts_where_the_step_shrinks_the_weight() -> None:
    """With groups of their own rates, frozen parameters, and momentum below."""
    groups = [ws.Group("slow", lr=0.02), ws.Group("half", lr_scale=0.5), ws.Group("fixed", frozen=True)]
    inner = ws.SGD(lr=0.1, momentum=0.9, groups=groups, decay_on=("plain", "slow", "half", "fixed"))
    optimizer = CautiousWeightDecay(inner, weight_decay=0.3)
    rates = {"plain": 0.1, "slow": 0.02, "half": 0.05, "fixed": 0.0, "bias": 0.1}
    arrays = {n: np.random.default_rng(i).normal(size=(2, 3)) for i, n in enumerate(rates)}
    wanted, velocity = {n: a.copy() for n, a in arrays.items()}, dict.fromkeys(rates, 0.0)
    acted = 0
    for step in range(8):
        slopes = {n: np.random.default_rng([step, i]).normal(size=(2, 3)) for i, n in enumerate(rates)}
        optimizer.step(arrays, slopes)
        for n, rate in rates.items():
            velocity[n] = 0.9 * velocity[n] + slopes[n]
            agrees = (velocity[n] * wanted[n] > 0) & (n != "bias")
            acted += agrees.sum()
            wanted[n] = wanted[n] - rate * velocity[n] - rate * 0.3 * np.where(agrees, wanted[n], 0.0)
    assert 40 < acted < 160  # of 8·24 elements
    for n, a in wanted.items():
        np.testing.assert_allclose(arrays[n], a, rtol=1e-11, err_msg=n)
    assert Optimizer.from_config(json.loads(json.dumps(optimizer.to_config()))) == optimizer
    with pytest.raises(OptionError, match=r"received AdamW with weight_decay=0.01. Write ws.AdamW\("):
        CautiousWeightDecay(ws.AdamW())


def test_gradient_centralization_removes_the_mean_of_every_unit() -> None:
    optimizer = GradientCentralization(ws.Adam(lr=0.1))
    shapes = {"kernel": (4, 2, 3, 3), "matrix": (3, 5), "bias": (5,)}
    arrays = {n: np.ones(shape) for n, shape in shapes.items()}
    twins = {n: torch.nn.Parameter(torch.tensor(a)) for n, a in arrays.items()}
    adam = torch.optim.Adam(twins.values(), lr=0.1)
    for step in range(6):
        slopes = {n: np.random.default_rng(step).normal(size=shape) + 1.0 for n, shape in shapes.items()}
        optimizer.step(arrays, slopes)
        for n, w in twins.items():
            g = torch.tensor(slopes[n])
            w.grad = g - g.mean(dim=tuple(range(1, g.ndim)), keepdim=True) if g.ndim > 1 else g
        adam.step()
    for n, w in twins.items():
        np.testing.assert_allclose(arrays[n], w.detach().numpy(), rtol=1e-11, err_msg=n)
    assert Optimizer.from_config(json.loads(json.dumps(optimizer.to_config()))) == optimizer


@pytest.mark.parametrize("kind", [CautiousWeightDecay, GradientCentralization])
def test_a_wrapper_runs_in_a_session_and_its_numbers_change_without_a_recompile(kind: Any) -> None:
    plain = ws.build_session(regression(), optimizer=kind(ws.Adam(lr=0.05)), batch_size=5)
    other = ws.build_session(regression(), optimizer=kind(ws.Adam(lr=0.05)), batch_size=5)
    count = compile_counter.value
    losses = [float(plain.step(**batch(0))) for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]
    for name in other.scalars:
        if name == "cautious.weight_decay":
            other.scalars[name] = 4.0
    for _ in range(12):
        other.step(**batch(0))
    assert compile_counter.value == count
    shrinks = np.abs(other.get("w")).sum() < np.abs(plain.get("w")).sum()
    assert shrinks == (kind is CautiousWeightDecay)


def test_layerwise_lr_decay_is_torchs_with_a_rate_for_each_layer() -> None:
    groups = ws.optim.layerwise_lr_decay(["embed.*", ("first.*", "norm"), "second.*"], 0.5)
    optimizer = ws.AdamW(lr=0.1, groups=groups, decay_on=("*",))
    scales = {"embed.w": 0.25, "first.w": 0.5, "norm": 0.5, "second.w": 1.0, "head": 1.0}
    arrays = {n: np.ones((2, 3)) for n in scales}
    twins = {n: torch.nn.Parameter(torch.tensor(a)) for n, a in arrays.items()}
    adam = torch.optim.AdamW([{"params": [w], "lr": 0.1 * scales[n]} for n, w in twins.items()])
    for step in range(6):
        optimizer.step(arrays, {n: slope(step) for n in scales})
        for w in twins.values():
            w.grad = torch.tensor(slope(step))
        adam.step()
    for n, w in twins.items():
        np.testing.assert_allclose(arrays[n], w.detach().numpy(), rtol=1e-12, err_msg=n)
    for decay in (0.0, 1.5):
        with pytest.raises(OptionError, match=r"layerwise_lr_decay: decay must be above 0 and at most 1"):
            ws.optim.layerwise_lr_decay(["*"], decay)
    with pytest.raises(UsageError, match=r"layers must be a list of name patterns; received 'a\.\*'"):
        ws.optim.layerwise_lr_decay("a.*", 0.5)
