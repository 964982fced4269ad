"""L-BFGS against torch's, one iteration a step, and its line search against one written out in NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.sessions import assert_same_bits
from wholestep.errors import OptionError, UsageError
from wholestep.optim import EMA, Optimizer

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(4)
X, Y = RNG.normal(size=(20, 3)), RNG.normal(size=(20, 2))
OPTIONS: dict[str, Any] = {"batch_size": 20, "shuffle": False, "progress": False, "device": "reference"}


class Net(ws.nn.Module):
    def __init__(self) -> None:
        self.body = ws.nn.Linear(3, 4, dtype="float64")
        self.head = ws.nn.Linear(4, 2, dtype="float64")

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.head(ws.tanh(self.body(x)))


def torchs(start: dict[str, Array], steps: int, **options: Any) -> dict[str, Array]:
    """The weights after one call of torch's closure for each step; with `max_iter=steps` after one call in all."""
    p = {n: torch.tensor(a).requires_grad_() for n, a in start.items()}
    optimizer = torch.optim.LBFGS(p.values(), **options)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        hidden = torch.tanh(torch.tensor(X) @ p["body.weight"].T + p["body.bias"])
        loss = ((hidden @ p["head.weight"].T + p["head.bias"] - torch.tensor(Y)) ** 2).mean()
        loss.backward()
        return loss

    for _ in range(1 if options["max_iter"] > 1 else steps):
        optimizer.step(closure)
    return {n: w.detach().numpy() for n, w in p.items()}


def fitted(optimizer: Optimizer, epochs: int, **options: Any) -> tuple[dict[str, Array], ws.nn.Module]:
    model = options.pop("model", None) or Net()
    start = {n: np.array(a) for n, a in model.state_dict().items()}
    ws.fit(model, (X, Y), loss="mse", optimizer=optimizer, epochs=epochs, **{**OPTIONS, **options})
    return start, model


def assert_torchs(model: ws.nn.Module, wanted: dict[str, Array]) -> None:
    for name, w in wanted.items():
        np.testing.assert_allclose(model.state_dict()[name], w, rtol=1e-7, atol=1e-9)


def test_an_epoch_of_the_whole_data_is_an_iteration_of_torchs() -> None:
    start, model = fitted(ws.LBFGS(), 15)
    assert_torchs(model, torchs(start, 15, lr=1.0, history_size=10, max_iter=15))


def test_a_step_of_micro_batches_is_a_step_of_torchs() -> None:
    start, model = fitted(ws.LBFGS(0.5, history_size=3), 12, batch_size=10, accumulate=2)
    assert_torchs(model, torchs(start, 12, lr=0.5, history_size=3, max_iter=1))


def test_compiled_it_is_torchs() -> None:
    start, model = fitted(ws.LBFGS(history_size=2), 8, device="cpu")
    assert_torchs(model, torchs(start, 8, lr=1.0, history_size=2, max_iter=1))


def test_resumed_it_has_the_same_bits_and_its_weights_can_be_averaged(tmp_path: Path) -> None:
    optimizer = EMA(ws.LBFGS(history_size=1, line_search=2), decay=0.8)
    _, straight = fitted(optimizer, 4)
    ws.manual_seed(0)  # the same first weights
    fitted(optimizer, 2, checkpoint=tmp_path)
    _, resumed = fitted(optimizer, 4, resume=tmp_path)
    assert_same_bits(straight.state_dict(), resumed.state_dict())
    again = Optimizer.from_config(json.loads(json.dumps(optimizer.to_config())))
    assert again == optimizer


# -- the line search -------------------------------------------------------------------------------------------------


def rosenbrock(w: Array) -> float:
    return float((1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2)


def slope_of(w: Array) -> Array:
    return np.array([-2 * (1 - w[0]) - 400 * w[0] * (w[1] - w[0] ** 2), 200 * (w[1] - w[0] ** 2)])


def searched(w: Array, steps: int, lengths: int) -> list[Array]:
    """The two-loop recursion, and halving until Armijo's condition holds."""
    pairs: list[tuple[Array, Array]] = []
    path, last, h = [], None, 1.0
    for step in range(steps):
        g = slope_of(w)
        if last is not None and (g - last[1]) @ last[0] > 1e-10:
            s, y = last[0], g - last[1]
            pairs, h = [*pairs, (s, y)][-10:], s @ y / (y @ y)
        q, alphas = -g, []
        for s, y in reversed(pairs):
            alphas.append(s @ q / (y @ s))
            q = q - alphas[-1] * y
        d = h * q
        for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
            d = d + s * (alpha - y @ d / (y @ s))
        length = min(1.0, 1 / np.abs(g).sum()) if step == 0 else 1.0
        tries = [length * 0.5**k for k in range(lengths)]
        enough = [t for t in tries if rosenbrock(w + t * d) <= rosenbrock(w) + 1e-4 * t * (g @ d)]
        t = enough[0] if enough and g @ d <= -1e-9 and np.abs(g).max() > 1e-7 else 0.0
        last, w = (t * d, g), w + t * d
        path.append(w)
    return path


def test_the_line_search_is_the_one_written_out_and_finds_the_bottom() -> None:
    g = ws.Graph()
    w = g.parameter("w", (2,), init=np.array([-1.2, 1.0]), dtype="float64")
    x, y = w[0], w[1]
    g.set_outputs([(1.0 - x) * (1.0 - x) + 100.0 * (y - x * x) * (y - x * x)])
    session = ws.build_session(g, optimizer=ws.LBFGS(line_search=6), device="reference")
    path = searched(np.array([-1.2, 1.0]), 45, 6)
    for step, wanted in enumerate(path):
        session.step()
        if step < 25:  # later ones show how rounding grows
            np.testing.assert_allclose(session.get("w"), wanted, rtol=1e-6, atol=1e-8)
    assert rosenbrock(session.get("w")) < 1e-8  # where a step promises less than tolerance_change
    assert rosenbrock(path[-1]) < 1e-8


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "iterations": (
        lambda: ws.LBFGS(max_iter=20),
        UsageError,
        r"LBFGS has no max_iter=: a step is one iteration, .* epochs=20, batch_size=len\(x\)",
    ),
    "strong Wolfe": (
        lambda: ws.LBFGS(line_search_fn="strong_wolfe"),
        UsageError,
        "LBFGS has no line_search_fn=: lengths are tried by line_search=10",
    ),
    "groups": (
        lambda: ws.LBFGS(groups=[ws.Group("*.bias", lr=0.1)]),
        OptionError,
        r"one history over all parameters, so a group may be frozen and nothing else; received \[\"Group\('bias'\)\"\]",
    ),
    "a search uphill": (
        lambda: ws.LBFGS(line_search=3, maximize=True),
        OptionError,
        "a line search looks for a smaller loss; with maximize=True leave line_search out",
    ),
    "a search in parts": (
        lambda: fitted(ws.LBFGS(line_search=3), 1, batch_size=10, accumulate=2),
        UsageError,
        "was given gradients only.* with accumulate= and on arrays leave line_search out",
    ),
    "a search on arrays": (
        lambda: ws.LBFGS(line_search=3).step([np.ones(2)], [np.ones(2)]),
        UsageError,
        r"In a step of your own compute them by it, grads = optimizer\.gradients\(loss, params\)",
    ),
    "no history": (lambda: ws.LBFGS(history_size=0), OptionError, "history_size must be at least 1"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    call, kind, text = REFUSED[what]
    with pytest.raises(kind, match=text):
        call()
