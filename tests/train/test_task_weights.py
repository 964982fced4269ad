"""Several losses in one step: learnt weights against torch, projected gradients, constraints, resume, no recompile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.recording import value
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.errors import DTypeError, OptionError, UsageError

F = torch.nn.functional
RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4)).astype("f")
Y = {"a": 5 * RNG.normal(size=(24, 2)).astype("f"), "b": RNG.integers(0, 3, 24).astype("int32")}


class Heads(ws.nn.Module):
    def __init__(self) -> None:
        self.trunk, self.a, self.b = ws.nn.Linear(4, 6), ws.nn.Linear(6, 2), ws.nn.Linear(6, 3)

    def forward(self, x: ws.Tensor) -> dict[str, ws.Tensor]:
        h = ws.tanh(self.trunk(x))
        return {"a": self.a(h), "b": self.b(h)}


def parts(out: Any, target: Any) -> dict[str, ws.Tensor]:
    return {"a": ws.losses.mse(out["a"], target["a"]), "b": ws.losses.cross_entropy(out["b"], target["b"])}


MADE: dict[str, Callable[[Heads], ws.nn.Module]] = {
    "uncertainty": lambda model: ws.nn.UncertaintyWeights(["a", "b"]),
    "gradnorm": lambda model: ws.nn.GradNorm(["a", "b"], model.trunk, alpha=0.5, lr=0.1),
}


def train(kind: str, epochs: int, model: Heads, weigh: ws.nn.Module, **options: Any) -> ws.TrainHistory:
    return ws.fit(
        model, (X, Y), loss=lambda out, target: weigh(parts(out, target)), optimizer=ws.SGD(lr=0.1), epochs=epochs,
        batch_size=12, shuffle=False, progress=False, **{"device": "reference", **options},
    )  # fmt: skip


def by_torch(kind: str, epochs: int, model: Heads) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Both papers' equations; the weights, and the parameters of the model."""
    params = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in model.state_dict().items()}
    s = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    weight, first = torch.ones(2, dtype=torch.float64), None
    for _ in range(epochs):
        for rows in (slice(0, 12), slice(12, 24)):
            x, a, b = torch.tensor(X[rows]).double(), torch.tensor(Y["a"][rows]).double(), torch.tensor(Y["b"][rows])
            h = torch.tanh(x @ params["trunk.weight"].T + params["trunk.bias"])
            out = {k: h @ params[f"{k}.weight"].T + params[f"{k}.bias"] for k in "ab"}
            losses = torch.stack([F.mse_loss(out["a"], a), F.cross_entropy(out["b"], b.long())])
            trunk = [params["trunk.weight"], params["trunk.bias"]]
            if kind == "uncertainty":
                total = (0.5 * torch.exp(-s) * losses + 0.5 * s).sum()
            else:
                norms = torch.stack([
                    torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, trunk, retain_graph=True)]).norm()
                    for loss in losses
                ])  # fmt: skip
                first = losses.detach() if first is None else first
                rate = losses.detach() / first
                w = weight.clone().requires_grad_()
                aim = (w * norms).mean().detach() * (rate / rate.mean()) ** 0.5
                (slope,) = torch.autograd.grad((w * norms - aim).abs().sum(), w)
                total = (weight * losses).sum()
                moved = (weight - 0.1 * slope).clamp(min=1e-4)
                weight = moved * 2 / moved.sum()
            trained = [*params.values(), *([s] if kind == "uncertainty" else [])]
            for p, g in zip(trained, torch.autograd.grad(total, trained), strict=True):
                p.data -= 0.1 * g
    return (s.detach() if kind == "uncertainty" else weight), {k: p.detach() for k, p in params.items()}


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("kind", MADE)
def test_learnt_weights_are_the_papers(kind: str, device: str) -> None:
    model = Heads()
    weigh = MADE[kind](model)
    wanted, params = by_torch(kind, 3, model)
    train(kind, 3, model, weigh, device=device)
    found = weigh.state_dict()["log_variance" if kind == "uncertainty" else "weight"]
    assert abs(found - (0 if kind == "uncertainty" else 1)).min() > 0.01
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)
    for name, array in model.state_dict().items():
        np.testing.assert_allclose(array, params[name], rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MADE)
def test_a_resumed_run_has_the_bits_of_a_straight_one(kind: str, tmp_path: Path) -> None:
    straight, model = Heads(), Heads()
    model.load_state_dict(straight.state_dict())
    weigh, other = MADE[kind](straight), MADE[kind](model)
    train(kind, 4, straight, weigh)
    train(kind, 2, model, other, checkpoint=tmp_path / "c")
    again = Heads()
    resumed = MADE[kind](again)
    train(kind, 4, again, resumed, checkpoint=tmp_path / "c", resume=True)
    for name, array in {**weigh.state_dict(), **straight.state_dict()}.items():
        assert array.tobytes() == {**resumed.state_dict(), **again.state_dict()}[name].tobytes(), name


def test_conflicting_gradients_are_projected() -> None:
    rng = np.random.default_rng(1)
    tasks = [[rng.normal(size=(2, 3)), rng.normal(size=4)] for _ in range(3)]
    flat = [np.concatenate([g.ravel() for g in task]) for task in tasks]
    total = np.zeros(10)
    for i, own in enumerate(flat):
        g = own.copy()
        for j, other in enumerate(flat):
            if i != j and g @ other < 0:
                g -= (g @ other) / (other @ other) * other
        total += g

    def ours(*arrays: ws.Tensor) -> ws.Tensor:
        grads = ws.optim.project_conflicts([arrays[0:2], arrays[2:4], arrays[4:6]])
        return ws.concat([g.reshape(-1) for g in grads])

    assert any(a @ b < 0 for a in flat for b in flat)
    np.testing.assert_allclose(value(ours, *(a for task in tasks for a in task)), total, rtol=1e-12)


def test_projected_gradients_train_in_a_step() -> None:
    model = Heads()
    about = {"x": ws.Spec(("batch", 4)), "a": ws.Spec(("batch", 2)), "b": ws.Spec(("batch",), "int32")}

    @ws.step(inputs=about)
    def step(g: ws.Graph, x: ws.Tensor, a: ws.Tensor, b: ws.Tensor) -> dict[str, ws.Tensor]:
        losses = parts(model(x), {"a": a, "b": b})
        params, trunk = model.traced(g), model.trunk.traced(g)
        shared = ws.optim.project_conflicts([ws.gradients(loss, trunk) for loss in losses.values()])
        heads = [n for n in params if not n.startswith("trunk.")]
        total = losses["a"] + losses["b"]
        own = dict(zip(heads, ws.gradients(total, [params[n] for n in heads]), strict=True))
        ws.Adam(lr=0.05).update(g, params, {**{f"trunk.{n}": s for n, s in shared.items()}, **own})
        return {"loss": total, **losses}

    history = ws.fit(step, {"x": X, **Y}, epochs=15, batch_size=12, progress=False, device="reference")
    assert all(history[k][-1] < history[k][0] for k in "ab")


# -- constraints -------------------------------------------------------------------------------------------------


def test_truth_values_are_those_of_logic_and_of_independent_events() -> None:
    L = ws.losses
    corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float64)
    a, b = corners.T
    given = {
        "and": (L.soft_and, a * b), "or": (L.soft_or, np.maximum(a, b)), "implies": (L.soft_implies, (a <= b) * 1.0)
    }  # fmt: skip
    for function, wanted in given.values():
        np.testing.assert_array_equal(value(function, a, b), wanted)
    p, q, r = np.random.default_rng(0).uniform(size=(3, 5))
    np.testing.assert_allclose(value(L.soft_or, p, q, r), 1 - (1 - p) * (1 - q) * (1 - r))
    np.testing.assert_allclose(value(L.soft_implies, p, q), 1 - p + p * q)
    np.testing.assert_allclose(value(L.constraint_loss, p), -np.log(p).mean())


def test_the_weight_of_a_constraint_changes_without_a_compilation() -> None:
    """A classifier whose second output is to imply its first one; scheduled from no weight to a large one."""

    def loss(out: ws.Tensor, target: ws.Tensor) -> dict[str, ws.Tensor]:
        p = ws.sigmoid(out)
        rule = ws.losses.soft_implies(p[:, 1], p[:, 0])
        return {"data": ws.losses.bce(out, target), "rule": ws.losses.constraint_loss(rule)}

    y = np.stack([X[:, 0] > 0, X[:, 0] < 0], 1).astype("f")  # contradicts the rule
    broken = []
    for weight in (0.0, 30.0):
        model = ws.nn.Linear(4, 2)
        model.load_state_dict({"weight": np.zeros((2, 4), "f"), "bias": np.zeros(2, "f")})
        count = compile_counter.value
        ws.fit(
            model, (X, y), loss=loss, loss_weights={"rule": weight}, optimizer=ws.Adam(lr=0.1), epochs=20,
            batch_size=12, progress=False, device="cpu",
        )  # fmt: skip
        p = 1 / (1 + np.exp(-model.predict(X, device="cpu")))
        broken.append(float((p[:, 1] * (1 - p[:, 0])).mean()))
    assert compile_counter.value == count
    assert broken[0] > 0.3 > 0.1 > broken[1]


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "one part": (
        lambda: ws.nn.UncertaintyWeights(["a"]),
        OptionError,
        r"names of two or more parts .*received \['a'\]",
    ),
    "other parts": (
        lambda: train("", 1, Heads(), ws.nn.UncertaintyWeights(["a", "c"])),
        UsageError,
        r"UncertaintyWeights weighs the parts a, c; received a, b\.",
    ),
    "no layer": (
        lambda: ws.nn.GradNorm(["a", "b"], 3),
        OptionError,
        "shared is a layer that all parts dep.* received 3",
    ),
    "a rate": (
        lambda: ws.nn.GradNorm(["a", "b"], ws.nn.Linear(2, 2), lr=0.0),
        OptionError,
        "alpha is at least 0 and lr above 0; received 1.5 and 0.0",
    ),
    "other parameters": (
        lambda: ws.optim.project_conflicts([[ws.constant(1.0)], [ws.constant(1.0)] * 2]),
        UsageError,
        "gradients of the same parameters; received 1, 2",
    ),
    "truth": (lambda: ws.losses.soft_not(ws.constant([1])), DTypeError, "floats between 0 and 1 such as ws.sigmoid"),
    "no truth": (lambda: ws.losses.soft_and(), UsageError, "soft_and was given no truth values; give at least one"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    call, kind, text = REFUSED[what]
    with pytest.raises(kind, match=text):
        call()
