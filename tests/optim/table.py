"""Every optimizer once: ours, who it must agree with, and how it is driven down a valley."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import wholestep as ws
from wholestep.optim import Optimizer

Array = np.ndarray[Any, Any]
EVERYWHERE = {"decay_on": ("*",)}


class Torch:
    """torch's optimizer on copies of the weights."""

    def __init__(self, kind: Any, options: dict[str, Any], weights: dict[str, Array]) -> None:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # NAdam keeps its product of momenta in the default dtype
        self.weights = {n: torch.nn.Parameter(torch.tensor(w)) for n, w in weights.items()}
        self.optimizer = kind(self.weights.values(), **options)
        for w in self.weights.values():
            w.grad = torch.zeros_like(w)
        torch.set_default_dtype(before)

    def step(self, slopes: dict[str, Array]) -> None:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        for name, d in slopes.items():
            self.weights[name].grad = torch.tensor(d)
        self.optimizer.step()
        torch.set_default_dtype(before)

    def set(self, values: dict[str, float]) -> None:
        """Hyper-parameters by our names."""
        group = self.optimizer.param_groups[0]
        rest = dict(values)
        if "beta1" in rest:
            group["betas"] = (rest.pop("beta1"), rest.pop("beta2"))
        if "eps2" in rest:
            group["eps"] = (group["eps"][0], rest.pop("eps2"))
        assert rest.keys() <= group.keys()
        group.update(rest)

    def get(self, name: str) -> Array:
        return self.weights[name].detach().numpy()


class Transcript:
    """A rule written out in float64 NumPy, where torch has none: `rule(w, g, t, memory, options) -> new w`."""

    def __init__(self, rule: Callable[..., Array], options: dict[str, float], weights: dict[str, Array]) -> None:
        self.rule, self.options, self.t = rule, dict(options), 0
        self.weights = {n: w.astype(np.float64) for n, w in weights.items()}
        self.memory: dict[str, dict[str, Any]] = {n: {} for n in weights}

    def step(self, slopes: dict[str, Array]) -> None:
        self.t += 1
        for name, d in slopes.items():
            w, g = self.weights[name], d.astype(np.float64)
            self.weights[name] = self.rule(w, g, self.t, self.memory[name], self.options)

    def set(self, values: dict[str, float]) -> None:
        assert values.keys() <= self.options.keys()
        self.options.update(values)

    def get(self, name: str) -> Array:
        return self.weights[name]


def lion(w: Array, g: Array, t: int, memory: dict[str, Any], o: dict[str, float]) -> Array:
    m = memory.get("m", np.zeros_like(w))
    direction = np.sign(o["beta1"] * m + (1 - o["beta1"]) * g)
    memory["m"] = o["beta2"] * m + (1 - o["beta2"]) * g
    return w - o["lr"] * (direction + o["weight_decay"] * w)


def lamb(w: Array, g: Array, t: int, memory: dict[str, Any], o: dict[str, float]) -> Array:
    memory["m"] = o["beta1"] * memory.get("m", 0.0) + (1 - o["beta1"]) * g
    memory["v"] = o["beta2"] * memory.get("v", 0.0) + (1 - o["beta2"]) * g**2
    m_hat, v_hat = memory["m"] / (1 - o["beta1"] ** t), memory["v"] / (1 - o["beta2"] ** t)
    r = m_hat / (np.sqrt(v_hat) + o["eps"]) + o["weight_decay"] * w
    return w - o["lr"] * np.linalg.norm(w) / np.linalg.norm(r) * r


def muon(w: Array, g: Array, t: int, memory: dict[str, Any], o: dict[str, float]) -> Array:
    b = memory["b"] = o["momentum"] * memory.get("b", np.zeros_like(w)) + (1 - o["momentum"]) * g
    x = o["momentum"] * b + (1 - o["momentum"]) * g
    x = x / max(np.linalg.norm(x), o["eps"])
    for _ in range(5):
        gram = x @ x.T
        x = o["ns_a"] * x + o["ns_b"] * gram @ x + o["ns_c"] * gram @ gram @ x
    return (1 - o["lr"] * o["weight_decay"]) * w - o["lr"] * max(1.0, w.shape[0] / w.shape[1]) ** 0.5 * x


@dataclass(frozen=True)
class Row:
    """`valley` is the lr that leads down a parabola and Rosenbrock's valley (None: covered by another row)."""

    ours: Optimizer
    theirs: Callable[[dict[str, Array]], Torch | Transcript]
    valley: float | None = None
    matrices_only: bool = False
    # Of the tolerance.  A float64 oracle shows what float32 rounds alike every step, such as 1 - lr·weight_decay.
    factor: float = 1.0


def torch_row(ours: Optimizer, kind: Any, valley: float | None = None, factor: float = 1.0, **options: Any) -> Row:
    return Row(ours, lambda weights: Torch(kind, options, weights), valley, factor=factor)


def written_row(ours: Optimizer, rule: Callable[..., Array], valley: float, *, matrices_only: bool = False) -> Row:
    options = {name.removeprefix("optimizer."): value for name, value in ours.runtime_values().items()}
    return Row(ours, lambda weights: Transcript(rule, options, weights), valley, matrices_only, factor=5.0)


T = torch.optim
ROWS: dict[str, Row] = {
    "sgd": torch_row(ws.SGD(0.05), T.SGD, 2e-3, lr=0.05),
    "momentum": torch_row(ws.SGD(0.05, momentum=0.9), T.SGD, 1e-3, lr=0.05, momentum=0.9),
    "nesterov": torch_row(
        ws.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.02, **EVERYWHERE),
        T.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.02,
    ),
    "dampening": torch_row(
        ws.SGD(0.05, momentum=0.9, dampening=0.3, weight_decay=0.02, **EVERYWHERE),
        T.SGD, lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.02,
    ),
    "adam": torch_row(
        ws.Adam(0.01, (0.8, 0.99), 1e-6, 0.02, **EVERYWHERE),
        T.Adam, 0.1, lr=0.01, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.02,
    ),
    "climbing": torch_row(ws.Adam(maximize=True), T.Adam, maximize=True),
    "adamw": torch_row(ws.AdamW(0.01, **EVERYWHERE), T.AdamW, 0.1, lr=0.01),
    "amsgrad": torch_row(ws.AMSGrad(), T.Adam, 0.1, amsgrad=True),
    "nadam": torch_row(ws.NAdam(weight_decay=0.02, **EVERYWHERE), T.NAdam, 0.1, 2.0, weight_decay=0.02),
    "nadam decoupled": torch_row(
        ws.NAdam(weight_decay=0.02, decoupled_weight_decay=True, **EVERYWHERE),
        T.NAdam, weight_decay=0.02, decoupled_weight_decay=True,
    ),
    "radam": torch_row(ws.RAdam(weight_decay=0.02, **EVERYWHERE), T.RAdam, 0.1, weight_decay=0.02),
    "radam decoupled": torch_row(
        ws.RAdam(betas=(0.8, 0.9), weight_decay=0.02, decoupled_weight_decay=True, **EVERYWHERE),
        T.RAdam, betas=(0.8, 0.9), weight_decay=0.02, decoupled_weight_decay=True,
    ),
    "rmsprop": torch_row(ws.RMSprop(weight_decay=0.02, **EVERYWHERE), T.RMSprop, 0.02, weight_decay=0.02),
    "rmsprop centered": torch_row(
        ws.RMSprop(1e-3, centered=True, momentum=0.9), T.RMSprop, lr=1e-3, centered=True, momentum=0.9
    ),
    "adagrad": torch_row(
        ws.Adagrad(0.05, 1e-2, 0.02, 0.1, 1e-8, **EVERYWHERE),
        T.Adagrad, 1.0, lr=0.05, lr_decay=1e-2, weight_decay=0.02, initial_accumulator_value=0.1, eps=1e-8,
    ),
    "adafactor": torch_row(ws.Adafactor(weight_decay=0.02, **EVERYWHERE), T.Adafactor, 0.05, weight_decay=0.02),
    "lion": written_row(ws.Lion(1e-3, weight_decay=0.1, **EVERYWHERE), lion, 0.02),
    "lamb": written_row(ws.LAMB(0.01, weight_decay=0.1, **EVERYWHERE), lamb, 0.03),
    "muon": written_row(ws.Muon(0.02), muon, 0.02, matrices_only=True),
}  # fmt: skip

# Largest error after a hundred steps, relative to the largest weight.
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
SHAPES = {"matrix": (3, 37), "vector": (5,), "tall": (24, 7)}


def names(row: Row) -> list[str]:
    kinds = [k for k, shape in SHAPES.items() if len(shape) == 2 or not row.matrices_only]
    return [f"{kind} {dtype}" for kind in kinds for dtype in TOLERANCE]


def start(name: str) -> Array:
    kind, dtype = name.split()
    return np.random.default_rng(1).normal(size=SHAPES[kind]).astype(dtype)


def slopes(row: Row, step: int) -> dict[str, Array]:
    """Gradients of changing direction and, now and then, of another magnitude."""
    rng, out = np.random.default_rng(100 + step), {}
    for name in names(row):
        d = (rng.normal(size=start(name).shape) + 0.3) * (10.0 if step % 7 == 0 else 1.0)
        out[name] = d.astype(name.split()[1])
    return out


def given_gradients(row: Row) -> ws.Step:
    """A step that moves the weights along gradients that are its inputs; both dtypes in one program."""

    @ws.step
    def step(g: ws.Graph) -> ws.Tensor:
        params = [g.parameter(n, start(n).shape, init=start(n), dtype=n.split()[1]) for n in names(row)]
        row.ours.update(g, params, [g.input(f"d {p.name}", p.shape, p.dtype) for p in params])
        return params[0].sum()

    return step


def run(session: ws.Session, row: Row, step: int) -> None:
    session.step({f"d {n}": d for n, d in slopes(row, step).items()})


def assert_near(session: ws.Session, row: Row, theirs: Torch | Transcript) -> None:
    for name in names(row):
        expected = theirs.get(name)
        worst = np.abs(session.get(name) - expected).max() / np.abs(expected).max()
        assert worst <= row.factor * TOLERANCE[name.split()[1]], f"{name}: {worst:.1e}"
