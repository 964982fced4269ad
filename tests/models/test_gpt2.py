"""GPT-2 named and from primitives: the same numbers as torch, interpreted and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wholestep as ws
from tests.models.gpt2 import EPS, NAMED, PRIMITIVE, Config, Words, gpt2
from tests.support.recording import initial_state
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.distribute.separability import separate_loss
from wholestep.steps.train import train_graph

Array = np.ndarray[Any, Any]
LR = 1e-3
# Above rounding errors: the keys' bias has no effect and no gradient, and Adam would make steps of the noise in it.
ADAM_EPS = 1e-5
TINY = Config(layers=2, width=8, heads=2, vocabulary=11, context=5)
WORDS = pytest.mark.parametrize("words", [NAMED, PRIMITIVE], ids=["named", "primitive"])


def loss_by_torch(
    config: Config, p: dict[str, torch.Tensor], tokens: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    batch, time = tokens.shape

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (config.width,), p[f"{name}.weight"], p[f"{name}.bias"], EPS)

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    x = F.embedding(tokens, p["wte.weight"]) + p["wpe.weight"][:time]
    for i in range(config.layers):
        parts = linear(f"h.{i}.attn.c_attn", norm(f"h.{i}.ln_1", x)).split(config.width, -1)
        q, k, v = (t.reshape(batch, time, config.heads, -1).transpose(1, 2) for t in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + linear(f"h.{i}.attn.c_proj", mixed)
        hidden = F.gelu(linear(f"h.{i}.mlp.c_fc", norm(f"h.{i}.ln_2", x)), approximate="tanh")
        x = x + linear(f"h.{i}.mlp.c_proj", hidden)
    logits = norm("ln_f", x) @ p["wte.weight"].T
    return F.cross_entropy(logits.reshape(-1, config.vocabulary), labels.reshape(-1).long())


def batch_of(config: Config, batch: int, time: int, seed: int = 0) -> dict[str, Array]:
    text = np.random.default_rng(seed).integers(0, config.vocabulary, (batch, time + 1)).astype(np.int32)
    return {"tokens": text[:, :-1].copy(), "labels": text[:, 1:].copy()}


def lively(state: dict[str, Array], seed: int = 1) -> dict[str, Array]:
    """Weights far from their start, so that every term of every gradient counts."""
    rng = np.random.default_rng(seed)
    return {name: value + 0.3 * rng.normal(size=value.shape) for name, value in state.items()}


def leaves(state: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value, requires_grad=True) for name, value in state.items()}


@WORDS
@pytest.mark.parametrize("time", [None, "time"])
def test_loss_and_gradients_equal_torch(words: Words, time: str | None) -> None:
    g = gpt2(TINY, words, "float64", time)
    for p in g.parameters.values():
        p.keep()
    graph = expand_gradients(train_graph(g, ws.SGD(lr=0.0)))
    state, batch = lively(initial_state(graph)), batch_of(TINY, 3, 5 if time is None else 4)
    got = interpret(graph, inputs=batch, state=state).outputs

    params = leaves(state)
    loss = loss_by_torch(TINY, params, *map(torch.tensor, batch.values()))
    loss.backward()
    assert got["loss"] == pytest.approx(loss.item(), rel=1e-10)
    assert len(params) == 2 + 12 * TINY.layers + 2
    for name, p in params.items():
        scale = float(p.grad.abs().max())
        np.testing.assert_allclose(got[f"{name}.grad"], p.grad, rtol=0, atol=1e-10 * scale, err_msg=name)


@WORDS
def test_a_batch_may_be_cut_into_parts(words: Words) -> None:
    graph = gpt2(TINY, words).to_ir()
    found = separate_loss(graph, graph.outputs[0].node)
    assert found.separable, found.reason
    assert len(found.terms) == 1


@WORDS
def test_training_equals_torch(words: Words) -> None:
    g = gpt2(TINY, words)
    session = ws.build_session(g, optimizer=ws.AdamW(LR, eps=ADAM_EPS), batch_size=4)
    params = leaves({name: session.get(name) for name in g.parameters})
    decayed = [p for p in params.values() if p.ndim > 1]
    plain = [p for p in params.values() if p.ndim == 1]
    theirs = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], LR, eps=ADAM_EPS)
    for step in range(20):
        batch = batch_of(TINY, 4 if step % 3 == 0 else 3, 5, seed=step)
        ours = float(session.step(**batch))
        theirs.zero_grad()
        loss = loss_by_torch(TINY, params, *map(torch.tensor, batch.values()))
        loss.backward()
        theirs.step()
        assert ours == pytest.approx(loss.item(), rel=1e-4)
    for name, p in params.items():
        expected = p.detach().numpy()
        scale = max(float(np.abs(expected).max()), 1e-2)
        np.testing.assert_allclose(session.get(name), expected, rtol=0, atol=1e-4 * scale, err_msg=name)
