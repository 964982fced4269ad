"""The optimizers of the catalogue as people use them: `ws.fit` with groups, micro-batches, clipping, resuming, halves.

Gradients of the oracle are torch's; what is done with them is torch's optimizer or a rule written out in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.optim.table import ROWS, Together, Torch, Transcript, prodigy, schedule_free, schedule_free_sgd
from tests.optim.transcripts import adan, novograd
from tests.support.sessions import assert_same_bits
from wholestep.errors import OptionError
from wholestep.optim import AGC, SWA, Optimizer, averaged

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(22, 3)), RNG.normal(size=(22, 2))
EPOCHS, BATCH = 4, 8  # updates of 8, 8, 6 rows
CLIP = 0.8


class Net(ws.nn.Module):
    def __init__(self, dtype: str = "float64") -> None:
        self.body = ws.nn.Linear(3, 5, dtype=dtype)
        self.head = ws.nn.Linear(5, 2, dtype=dtype)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.head(ws.tanh(self.body(x)))


Twin = Callable[[dict[str, Array], float], Any]


def torchs(kind: Any, **options: Any) -> Twin:
    return lambda weights, factor: Torch(kind, {**options, "lr": factor * options["lr"]}, weights)


def written(ours: Optimizer, rule: Callable[..., Any], kind: type[Transcript] = Transcript) -> Twin:
    known = {name.removeprefix("optimizer."): value for name, value in ours.runtime_values().items()}
    return lambda weights, factor: kind(rule, {**known, "lr": factor * known["lr"]}, weights)


ALL = {"decay_on": ("*",)}
T = torch.optim
FOUND: dict[str, Optimizer] = {
    "schedule-free": ws.ScheduleFreeAdamW(0.02, weight_decay=0.05, warmup=3, **ALL),
    "schedule-free sgd": ws.ScheduleFreeSGD(0.2, weight_decay=0.05, warmup=3, **ALL),
    "prodigy": ws.Prodigy(weight_decay=0.05, d0=1e-3, bias_correction=True, **ALL),
    "adan": ws.Adan(0.02, weight_decay=0.05, **ALL),
    "novograd": ws.NovoGrad(0.02, weight_decay=0.05, **ALL),
}
CASES: dict[str, tuple[Optimizer, Twin]] = {
    "rprop": (ws.Rprop(0.02), torchs(T.Rprop, lr=0.02)),
    "asgd": (
        ws.ASGD(0.1, 0.01, t0=3, weight_decay=0.05, **ALL),
        torchs(T.ASGD, lr=0.1, lambd=0.01, t0=3, weight_decay=0.05),
    ),
    "schedule-free": (FOUND["schedule-free"], written(FOUND["schedule-free"], schedule_free)),
    "schedule-free sgd": (FOUND["schedule-free sgd"], written(FOUND["schedule-free sgd"], schedule_free_sgd)),
    "prodigy": (FOUND["prodigy"], written(FOUND["prodigy"], prodigy, Together)),
    "adan": (FOUND["adan"], written(FOUND["adan"], adan)),
    "novograd": (FOUND["novograd"], written(FOUND["novograd"], novograd)),
}


def grouped(optimizer: Optimizer) -> Optimizer:
    """The head at half the rate, as a group of its own."""
    config = optimizer.to_config()
    return type(optimizer).from_config({**config, "groups": [ws.Group("head.*", lr=0.5 * config["lr"]).to_config()]})


def by_torch(twin: Twin, start: dict[str, Array]) -> dict[str, Array]:
    """The same run: gradients of whole batches by torch, clipped by torch, each group moved by its own rule."""
    groups = [{n: a for n, a in start.items() if n.startswith(part)} for part in ("body", "head")]
    rules = [twin(weights, factor) for weights, factor in zip(groups, (1.0, 0.5), strict=True)]
    for _ in range(EPOCHS):
        for first in range(0, len(X), BATCH):
            x, y = torch.tensor(X[first : first + BATCH]), torch.tensor(Y[first : first + BATCH])
            p = {n: torch.tensor(r.trained(n)).requires_grad_() for r in rules for n in r.weights}
            hidden = torch.tanh(x @ p["body.weight"].T + p["body.bias"])
            loss = ((hidden @ p["head.weight"].T + p["head.bias"] - y) ** 2).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(p.values(), CLIP)
            for rule in rules:
                rule.step({n: p[n].grad.numpy() for n in rule.weights})  # type: ignore[union-attr]
    return {n: r.get(n) for r in rules for n in r.weights}


def fitted(optimizer: Optimizer, epochs: int = EPOCHS, **options: Any) -> ws.nn.Module:
    given = {"batch_size": BATCH, "shuffle": False, "seed": 0, "progress": False, "device": "reference", **options}
    model = given.pop("model", None) or Net()
    ws.fit(model, (X, Y), loss="mse", optimizer=optimizer, epochs=epochs, **given)
    return model


@pytest.mark.parametrize("name", CASES)
def test_through_fit_with_groups_micro_batches_and_clipping(name: str) -> None:
    optimizer, twin = CASES[name]
    model = Net()
    start = {n: np.array(a) for n, a in model.state_dict().items()}
    fitted(grouped(optimizer), model=model, batch_size=BATCH // 2, accumulate=2, clip_norm=CLIP)
    for n, expected in by_torch(twin, start).items():
        np.testing.assert_allclose(model.state_dict()[n], expected, rtol=1e-6, atol=1e-7, err_msg=n)


@pytest.mark.parametrize("name", ["rprop", "schedule-free", "schedule-free sgd", "adan"])
def test_resumed_the_bits_are_the_same_and_ema_averages_it(name: str, tmp_path: Path) -> None:
    own = CASES[name][0]
    optimizer = own if isinstance(own, ws.ScheduleFreeAdamW | ws.ScheduleFreeSGD) else ws.optim.EMA(own, decay=0.8)
    straight = fitted(optimizer, 3)
    fitted(optimizer, 2, checkpoint=tmp_path)
    assert_same_bits(straight.state_dict(), fitted(optimizer, 3, resume=tmp_path).state_dict())
    assert averaged(straight).keys() == straight.state_dict().keys()


def test_in_half_precision_it_learns_the_same() -> None:
    """float32 weights and states beside bfloat16 products: near the run in float32, and no NaN."""
    x, y = X.astype("f"), Y.astype("f")
    found = {}
    for precision in ("float32", "bfloat16"):
        model, options = Net("float32"), {"batch_size": 22, "seed": 0, "progress": False, "device": "reference"}
        history = ws.fit(
            model, (x, y), loss="mse", optimizer=FOUND["prodigy"], epochs=5, precision=precision, **options
        )
        found[precision] = history["loss"]
    np.testing.assert_allclose(found["bfloat16"], found["float32"], rtol=0.05)


def test_the_average_of_asgd_is_torchs() -> None:
    ours, w = ws.ASGD(0.1, 0.01, t0=3), np.ones((2, 3))
    theirs = Torch(T.ASGD, {"lr": 0.1, "lambd": 0.01, "t0": 3}, {"w": w})
    for step in range(9):
        slope = np.random.default_rng(step).normal(size=(2, 3))
        ours.step({"w": w}, {"w": slope})
        theirs.step({"w": slope})
        known = theirs.optimizer.state[theirs.weights["w"]]["ax"].numpy()
        np.testing.assert_allclose(ours.state_dict()["w.asgd.average"], known, rtol=1e-12)


@pytest.mark.parametrize(("start", "every"), [(0, 1), (3, 5)])
def test_swa_is_torchs_averaged_model(start: int, every: int) -> None:
    ours, w = SWA(ws.Adam(lr=0.05), start=start, every=every), np.ones((2, 3))
    own = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
    module, adam = torch.nn.ParameterList([own]), T.Adam([own], lr=0.05)
    mean = T.swa_utils.AveragedModel(module)
    for step in range(14):
        slope = np.random.default_rng(step).normal(size=(2, 3)) + 0.5
        ours.step({"w": w}, {"w": slope})
        own.grad = torch.tensor(slope)
        adam.step()
        if step >= start and (step - start) % every == 0:
            mean.update_parameters(module)
        known = mean.module[0] if step >= start else own  # until then the model shows what is trained
        np.testing.assert_allclose(averaged(ours.state_dict())["w"], known.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(w, own.detach().numpy(), rtol=1e-12)


def test_the_model_shows_what_swa_found() -> None:
    model = fitted(SWA(ws.SGD(lr=0.1), start=6, every=3))
    shown = model.evaluate((X, Y), loss="mse", device="reference")["loss"]
    with ws.optim.raw_weights(model):
        trained = model.evaluate((X, Y), loss="mse", device="reference")["loss"]
    assert shown != trained
    assert shown == pytest.approx(((model.predict(X, device="reference") - Y) ** 2).mean())


def agc(w: Array, g: Array, clipping: float, eps: float) -> Array:
    rows = (lambda a: a.reshape(len(a), -1)) if w.ndim > 1 else (lambda a: a.reshape(1, -1))
    size, slope = (np.linalg.norm(rows(a), axis=1, keepdims=True) for a in (w, g))
    most = clipping * np.maximum(size, eps)
    return (rows(g) * np.where(slope > most, most / slope, 1.0)).reshape(g.shape)


def test_adaptive_clipping() -> None:
    shapes = {"kernel": (4, 2, 3, 3), "matrix": (3, 5), "bias": (5,), "head.weight": (2, 3)}
    arrays = {n: RNG.normal(size=s) for n, s in shapes.items()}
    arrays["matrix"][1] = 0.0  # weights of 0 move all the same
    wanted = {n: a.copy() for n, a in arrays.items()}
    optimizer = AGC(ws.SGD(lr=0.1), clipping=0.3, eps=0.01, exclude="head.*")
    for step in range(4):
        slopes = {n: np.random.default_rng(step).normal(size=s) for n, s in shapes.items()}
        optimizer.step(arrays, slopes)
        for n, g in slopes.items():
            wanted[n] -= 0.1 * (g if n == "head.weight" else agc(wanted[n], g, 0.3, 0.01))
    for n, a in wanted.items():
        np.testing.assert_allclose(arrays[n], a, rtol=1e-12)
    assert Optimizer.from_config(optimizer.to_config()) == optimizer
    with pytest.raises(OptionError, match=r"AGC: exclude='tail' matches none of the parameters \['param0'\]"):
        AGC(ws.SGD(), exclude="tail").step([np.ones(2)], [np.ones(2)])


def test_every_optimizer_of_the_catalogue_has_a_row() -> None:
    assert CASES.keys() <= ROWS.keys()
