"""SophiaG against the authors' update in torch, with the same labels drawn; the draw; `fit`, resume and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wholestep as ws
from tests.support.sessions import assert_same_bits
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.errors import GraphError, UsageError
from wholestep.optim import SophiaG
from wholestep.optim.algorithms import sophia

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
W, B = RNG.normal(size=(4, 3)), RNG.normal(size=3)
OPTIONS = {"betas": (0.9, 0.8), "rho": 0.03, "weight_decay": 0.1}


def graph() -> ws.Graph:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 4), "float64"), g.input("labels", ("batch",), "int32")
    scores = x @ g.parameter("w", W.shape, init=W, dtype="float64") + g.parameter("b", B.shape, init=B, dtype="float64")
    g.set_outputs({"loss": ws.losses.cross_entropy(scores, labels), "scores": scores})
    return g


def batch(step: int, rows: int = 6) -> dict[str, Array]:
    rng = np.random.default_rng(step)
    return {"x": rng.normal(size=(rows, 4)), "labels": rng.integers(0, 3, rows).astype(np.int32)}


def second_best(g: ws.Graph, scores: ws.Tensor) -> ws.Tensor:
    """The loss at labels that torch can choose, too: of the class with the second score."""
    rest = scores - 1e9 * (scores == scores.max(-1, keepdims=True)).astype(scores.dtype)
    chosen = ws.stop_gradient((rest == rest.max(-1, keepdims=True)).astype(scores.dtype))
    return -(chosen * ws.log_softmax(scores)).sum(-1).mean()


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_sixty_steps_are_the_authors(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sophia, "_loss_at_sampled_labels", second_best)
    rule = SophiaG(0.02, every=4, **OPTIONS)
    session = ws.build_session(graph(), optimizer=rule, batch_size=8, device=device)
    p = {"w": torch.tensor(W, requires_grad=True), "b": torch.tensor(B, requires_grad=True)}
    m, h = ({n: torch.zeros_like(t) for n, t in p.items()} for _ in range(2))
    clipped = total = 0
    for step in range(60):
        rows = 6 if step % 2 else 8
        data = batch(step, rows)
        session.step(data)
        scores = torch.tensor(data["x"]) @ p["w"] + p["b"]
        labels = torch.tensor(data["labels"]).long()
        slopes = torch.autograd.grad(F.cross_entropy(scores, labels), list(p.values()), retain_graph=True)
        drawn = scores.topk(2).indices[:, 1]
        sampled = torch.autograd.grad(F.cross_entropy(scores, drawn), list(p.values()))
        for (n, t), g, s in zip(p.items(), slopes, sampled, strict=True):
            if step % 4 == 0:
                h[n] = 0.8 * h[n] + 0.2 * rows * s * s
            m[n] = 0.9 * m[n] + 0.1 * g
            ratio = (m[n].abs() / (0.03 * h[n] + 1e-15)).clamp(None, 1)
            clipped, total = clipped + int((ratio == 1).sum()), total + ratio.numel()
            with torch.no_grad():
                t *= 1 - 0.02 * 0.1 * (n == "w")
                t -= 0.02 * m[n].sign() * ratio
        for n, t in p.items():
            np.testing.assert_allclose(session.get(n), t.detach().numpy(), rtol=1e-9, atol=1e-11, err_msg=n)
    assert 0.1 < clipped / total < 0.99


def test_labels_are_drawn_from_the_models_probabilities() -> None:
    """The mean of ĝ² over many draws, for one row and weights that are the scores: Σₖ pₖ·(p - eₖ)²."""
    scores = np.array([0.3, -0.4, 1.1, 0.0])
    g = ws.Graph()
    b = g.parameter("b", (4,), init=scores, dtype="float64")
    rows = g.input("x", ("batch", 1), "float64") @ b.reshape((1, 4))
    g.set_outputs({"loss": ws.losses.cross_entropy(rows, g.input("labels", ("batch",), "int32"))})
    session = ws.build_session(g, optimizer=SophiaG(0.0, betas=(0.9, 0.0), every=1), batch_size=1, device="reference")
    seen = []
    for _ in range(2000):
        session.step(x=np.ones((1, 1)), labels=np.array([0], np.int32))
        seen.append(session.get("b.sophia.h"))
    p = np.exp(scores) / np.exp(scores).sum()
    expected = (p[:, None] * (p - np.eye(4)) ** 2).sum(0)
    np.testing.assert_allclose(np.mean(seen, 0), expected, rtol=0.1)


def test_fit_trains_resumes_and_changes_numbers_without_a_recompile(tmp_path: Path) -> None:
    x, y = ws.datasets.digits()

    def fit(folder: str, epochs: int, lr: float = 5e-3, **options: Any) -> ws.TrainHistory:
        ws.manual_seed(0)
        model = ws.nn.Sequential(ws.nn.Linear(64, 16), ws.nn.Tanh(), ws.nn.Linear(16, 10))
        return ws.fit(
            model, (x, y), loss="cross_entropy", optimizer=SophiaG(lr), epochs=epochs, progress=False,
            checkpoint=tmp_path / folder, seed=1, **options,
        )  # fmt: skip

    history = fit("whole", 4)
    assert history["loss"][-1] < 0.3 * history["loss"][0]
    count = compile_counter.value
    fit("parts", 2)
    fit("parts", 4, resume=True, exact=True)
    whole, parts = (ws.load_checkpoint(tmp_path / n).arrays for n in ("whole", "parts"))
    assert_same_bits(whole, parts)
    fit("other", 1, lr=2e-3)
    assert compile_counter.value == count


def test_what_it_cannot_estimate_is_refused() -> None:
    x, y = ws.datasets.digits()
    model = ws.nn.Linear(64, 10)
    with pytest.raises(UsageError, match="estimates the Hessian of a cross entropy with class indices"):
        ws.fit(model, (x, np.zeros((len(x), 10), "f")), loss="mse", optimizer=SophiaG(), progress=False)
    with pytest.raises(GraphError, match="no accumulate="):
        ws.fit(model, (x, y), loss="cross_entropy", optimizer=SophiaG(), accumulate=2, progress=False)
