"""Every optimizer once: ours, who it must agree with, and how it is driven down a valley."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import wholestep as ws
from tests.optim.transcripts import SOAP_MAX, adabelief, adam8bit, adan, novograd, soap, yogi
from wholestep.optim import Optimizer
from wholestep.optim.algorithms.muon import POLAR_EXPRESS

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
        if "eta_plus" in rest:
            group["etas"] = (rest.pop("eta_minus"), rest.pop("eta_plus"))
            group["step_sizes"] = (rest.pop("smallest"), rest.pop("largest"))
        assert rest.keys() <= group.keys()
        group.update(rest)
        for kept in self.optimizer.state.values():
            if "eta" in kept:  # of ASGD, which works the rate of an update out one update before
                kept["eta"].fill_(group["lr"] / (1 + group["lambd"] * group["lr"] * kept["step"]) ** group["alpha"])

    def get(self, name: str) -> Array:
        return self.weights[name].detach().numpy()

    trained = get


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

    def trained(self, name: str) -> Array:
        """Where gradients are taken, which is elsewhere where an average is shown."""
        return self.memory[name].get("y", self.weights[name])


class Together(Transcript):
    """A rule of all weights at once: `rule(weights, gradients, t, memory, options)`, which changes the weights."""

    def step(self, slopes: dict[str, Array]) -> None:
        self.t += 1
        self.rule(self.weights, {n: d.astype(np.float64) for n, d in slopes.items()}, self.t, self.memory, self.options)


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


def polar_express(w: Array, g: Array, t: int, memory: dict[str, Any], o: dict[str, float]) -> Array:
    """The authors' code, on the momentum of Muon."""
    b = memory["b"] = o["momentum"] * memory.get("b", np.zeros_like(w)) + (1 - o["momentum"]) * g
    u = o["momentum"] * b + (1 - o["momentum"]) * g
    x = u if w.shape[0] <= w.shape[1] else u.T
    x = x / (np.linalg.norm(x) * 1.01)
    for i in range(9):
        a1, a3, a5 = POLAR_EXPRESS[min(i, 7)]
        gram = x @ x.T
        x = a1 * x + (a3 * gram + a5 * gram @ gram) @ x
    assert t < 10 or np.abs(np.linalg.svd(x, compute_uv=False) - 1).max() < 1e-3
    x = x if w.shape[0] <= w.shape[1] else x.T
    return (1 - o["lr"] * o["weight_decay"]) * w - o["lr"] * max(1.0, w.shape[0] / w.shape[1]) ** 0.5 * x


def normuon(w: Array, g: Array, t: int, memory: dict[str, Any], o: dict[str, float]) -> Array:
    """The authors' code after Muon's direction."""
    x = (muon(0 * w, g, t, memory, {**o, "lr": 1.0})) * -1
    v = memory["v"] = o["beta2"] * memory.get("v", 0.0) + (1 - o["beta2"]) * (
        (x / max(1.0, w.shape[0] / w.shape[1]) ** 0.5) ** 2
    ).mean(1, keepdims=True)
    y = x / (np.sqrt(v) + 1e-10)
    return (1 - o["lr"] * o["weight_decay"]) * w - o["lr"] * y * np.linalg.norm(x) / np.linalg.norm(y)


def schedule_free_sgd(w: Array, g: Array, t: int, memory: dict[str, Any], o: dict[str, float]) -> Array:
    """The authors' SGDScheduleFree."""
    y, z = memory.get("y", w), memory.get("z", w)
    lr = o["lr"] * min(t / o["warmup"], 1.0)
    memory["lr_max"] = max(lr, memory.get("lr_max", -1.0))
    memory["weights"] = memory.get("weights", 0.0) + memory["lr_max"] ** 2
    c = memory["lr_max"] ** 2 / memory["weights"]
    z = memory["z"] = z - lr * (g + o["weight_decay"] * y)
    x = memory["x"] = (1 - c) * memory.get("x", w) + c * z
    memory["y"] = o["momentum"] * x + (1 - o["momentum"]) * z
    return x


def lars(w: Array, g: Array, t: int, memory: dict[str, Any], o: dict[str, float]) -> Array:
    size, slope = np.linalg.norm(w), np.linalg.norm(g)
    local = o["trust_coefficient"] * size / (slope + o["weight_decay"] * size + o["eps"])
    memory["v"] = o["momentum"] * memory.get("v", 0.0) + o["lr"] * local * (g + o["weight_decay"] * w)
    return w - memory["v"]


def ademamix(w: Array, g: Array, t: int, memory: dict[str, Any], o: dict[str, float]) -> Array:
    """The paper's algorithm 1 with its schedulers."""
    done = min(t / o["warmup"], 1.0)
    alpha = o["alpha"] * done
    first, last = np.log(o["beta1"]), np.log(o["beta3"])
    beta3 = min(np.exp(first * last / ((1 - done) * last + done * first)), o["beta3"])
    memory["m1"] = o["beta1"] * memory.get("m1", 0.0) + (1 - o["beta1"]) * g
    memory["m2"] = beta3 * memory.get("m2", 0.0) + (1 - beta3) * g
    memory["nu"] = o["beta2"] * memory.get("nu", 0.0) + (1 - o["beta2"]) * g**2
    m1, nu = memory["m1"] / (1 - o["beta1"] ** t), memory["nu"] / (1 - o["beta2"] ** t)
    return w - o["lr"] * ((m1 + alpha * memory["m2"]) / (np.sqrt(nu) + o["eps"]) + o["weight_decay"] * w)


def schedule_free(w: Array, g: Array, t: int, memory: dict[str, Any], o: dict[str, float]) -> Array:
    """The authors' AdamWScheduleFree: y and z are kept, and x follows from them."""
    y, z = memory.get("y", w), memory.get("z", w)
    lr = o["lr"] * min(t / o["warmup"], 1.0)
    memory["lr_max"] = max(lr, memory.get("lr_max", -1.0))
    weight = memory["lr_max"] ** 2
    memory["weights"] = memory.get("weights", 0.0) + weight
    c = weight / memory["weights"]
    memory["v"] = o["beta2"] * memory.get("v", 0.0) + (1 - o["beta2"]) * g**2
    slope = g / (np.sqrt(memory["v"] / (1 - o["beta2"] ** t)) + o["eps"]) + o["weight_decay"] * y
    memory["x"] = (1 - c) * memory.get("x", w) + c * (z - lr * slope)
    memory["z"] = z - lr * slope
    memory["y"] = memory["x"] * o["beta1"] + memory["z"] * (1 - o["beta1"])
    lerped = y + c * (z - y) + lr * (o["beta1"] * (1 - c) - 1) * slope  # theirs: the same, but where β₁ has changed
    assert t > 5 or np.allclose(memory["y"], lerped)
    return memory["x"]


def prodigy(
    weights: dict[str, Array], grads: dict[str, Array], t: int, memory: dict[str, Any], o: dict[str, float]
) -> None:
    """The authors' code, decay decoupled."""
    own = memory.setdefault("all", {"d": o["d0"], "d_max": o["d0"], "numerator": 0.0})
    d, beta3 = own["d"], o["beta2"] ** 0.5
    dlr = d * o["lr"] * (1 - o["beta2"] ** t) ** 0.5 / (1 - o["beta1"] ** t)
    own["numerator"] *= beta3
    denominator = 0.0
    for name, g in grads.items():
        w, m = weights[name], memory[name]
        m.setdefault("p0", w)
        own["numerator"] += d / o["d0"] * dlr * (g * (m["p0"] - w)).sum()
        m["exp_avg"] = o["beta1"] * m.get("exp_avg", 0.0) + d * (1 - o["beta1"]) * g
        m["exp_avg_sq"] = o["beta2"] * m.get("exp_avg_sq", 0.0) + d * d * (1 - o["beta2"]) * g * g
        m["s"] = beta3 * m.get("s", 0.0) + d / o["d0"] * dlr * g
        denominator += np.abs(m["s"]).sum()
    d_hat = o["d_coef"] * own["numerator"] / denominator
    if d == o["d0"]:
        d = max(d, d_hat)
    own["d_max"] = max(own["d_max"], d_hat)
    own["d"] = d = min(own["d_max"], d * o["growth_rate"])
    for name in grads:
        w, m = weights[name], memory[name]
        w = w - o["weight_decay"] * dlr * w
        weights[name] = w - dlr * m["exp_avg"] / (np.sqrt(m["exp_avg_sq"]) + d * o["eps"])


@dataclass(frozen=True)
class Row:
    """`valley` is the lr that leads down a parabola and Rosenbrock's valley (None: covered by another row)."""

    ours: Optimizer
    theirs: Callable[[dict[str, Array]], Torch | Transcript]
    valley: float | None = None
    matrices_only: bool = False
    # A factor of the tolerance: a float64 oracle shows rounding that repeats in every step, as of 1 - lr·weight_decay.
    factor: float = 1.0
    float32: float | None = None  # a separate tolerance, if a rounding error may change a complete step
    shared: bool = False  # a number of all weights together, which brings the rounding of float32 to float64


def torch_row(ours: Optimizer, kind: Any, valley: float | None = None, factor: float = 1.0, **options: Any) -> Row:
    return Row(ours, lambda weights: Torch(kind, options, weights), valley, factor=factor)


def written_row(
    ours: Optimizer,
    rule: Callable[..., Any],
    valley: float | None = None,
    *,
    matrices_only: bool = False,
    kind: type[Transcript] = Transcript,
) -> Row:
    options = {name.removeprefix("optimizer."): value for name, value in ours.runtime_values().items()}
    shared = kind is Together
    return Row(ours, lambda weights: kind(rule, options, weights), valley, matrices_only, factor=5.0, shared=shared)


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
    "polar express": written_row(
        ws.Muon(0.02, ns_steps=9, polar_express=True), polar_express, 0.02, matrices_only=True
    ),
    "normuon": written_row(ws.NorMuon(0.02), normuon, 0.02, matrices_only=True),
    "adadelta": torch_row(ws.Adadelta(weight_decay=0.02, **EVERYWHERE), T.Adadelta, weight_decay=0.02),
    "adamax": torch_row(ws.Adamax(weight_decay=0.02, **EVERYWHERE), T.Adamax, weight_decay=0.02),
    "rprop": torch_row(ws.Rprop(), T.Rprop),
    "asgd": torch_row(
        ws.ASGD(0.05, 0.01, t0=20, weight_decay=0.02, **EVERYWHERE),
        T.ASGD, lr=0.05, lambd=0.01, t0=20, weight_decay=0.02,
    ),
    "lars": written_row(ws.LARS(1.0, weight_decay=0.1, trust_coefficient=0.02, **EVERYWHERE), lars),
    "ademamix": written_row(ws.AdEMAMix(1e-3, weight_decay=0.1, warmup=40, **EVERYWHERE), ademamix),
    "schedule-free": written_row(
        ws.ScheduleFreeAdamW(1e-2, weight_decay=0.1, warmup=10, **EVERYWHERE), schedule_free
    ),
    "schedule-free sgd": written_row(
        ws.ScheduleFreeSGD(0.02, weight_decay=0.1, warmup=10, **EVERYWHERE), schedule_free_sgd
    ),
    "prodigy": written_row(
        ws.Prodigy(weight_decay=0.1, d0=1e-3, growth_rate=1.5, bias_correction=True, **EVERYWHERE), prodigy,
        kind=Together,
    ),
    "soap": replace(
        written_row(ws.SOAP(3e-3, weight_decay=0.1, max_size=SOAP_MAX, **EVERYWHERE), soap, 0.1), float32=5e-3
    ),
    "adam8bit": replace(
        written_row(ws.Adam8bit(1e-2), adam8bit, 0.1), float32=1e-2
    ),
    "adamw8bit": replace(
        written_row(ws.AdamW8bit(1e-2, weight_decay=0.1, **EVERYWHERE), adam8bit), float32=1e-2
    ),
    "adabelief": written_row(ws.AdaBelief(1e-2, weight_decay=0.1, **EVERYWHERE), adabelief),
    "yogi": written_row(ws.Yogi(weight_decay=0.02, initial_accumulator_value=0.1, **EVERYWHERE), yogi),
    "adan": written_row(ws.Adan(5e-3, weight_decay=0.1, **EVERYWHERE), adan),
    "novograd": written_row(ws.NovoGrad(weight_decay=0.02, **EVERYWHERE), novograd),
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
        dtype = "float32" if row.shared else name.split()[1]
        own = row.float32 if dtype == "float32" else None
        assert worst <= (row.factor * TOLERANCE[dtype] if own is None else own), f"{name}: {worst:.1e}"
