"""LoRA on linear layers, attention and GPT-2: torch's numbers, a frozen base, files of adapters alone, merging."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import wholestep as ws

RNG = np.random.default_rng(8)
X = RNG.normal(size=(16, 6)).astype(np.float32)
Y = np.tanh(X[:, :3] * 2.0)


def net() -> ws.nn.Sequential:
    return ws.nn.Sequential(ws.nn.Linear(6, 8), ws.nn.Tanh(), ws.nn.Linear(8, 3))


def fit(model: ws.nn.Module, x: Any = X, y: Any = Y, epochs: int = 4, **options: Any) -> Any:
    how = {"batch_size": len(y), "device": "reference", "optimizer": ws.SGD(lr=0.5), "shuffle": False, **options}
    return ws.fit(model, (x, y), loss="mse", epochs=epochs, **how)


def by_torch(model: ws.nn.Module, start: dict[str, np.ndarray], epochs: int) -> tuple[list[float], dict[str, Any]]:
    """The same with the products written out: torch trains A and B alone."""
    w = {name: torch.tensor(a, requires_grad="lora" in name) for name, a in start.items()}
    losses = []
    for _ in range(epochs):
        h = torch.tensor(X)
        for i in ("0", "2"):
            y = h @ w[f"{i}.weight"].T + w[f"{i}.bias"]
            h = y + 2.0 * (h @ w[f"{i}.lora_A.weight"].T @ w[f"{i}.lora_B.weight"].T)
            h = torch.tanh(h) if i == "0" else h
        loss = ((h - torch.tensor(Y)) ** 2).mean()
        trained = {n: t for n, t in w.items() if t.requires_grad}
        for t, slope in zip(trained.values(), torch.autograd.grad(loss, list(trained.values())), strict=True):
            t.data -= 0.5 * slope
        losses.append(float(loss.detach()))
    return losses, {n: t.detach().numpy() for n, t in w.items()}


def test_adapters_learn_as_torchs_and_the_rest_stays() -> None:
    model = net()
    before = model.predict(X, device="reference")
    adapters = ws.nn.lora(model, rank=2, alpha=4.0)
    np.testing.assert_array_equal(model.predict(X, device="reference"), before)  # B is zeros
    start = model.state_dict()
    losses, after = by_torch(model, start, 4)
    np.testing.assert_allclose(fit(model)["loss"], losses, rtol=1e-5)
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(value, after[name], rtol=1e-4, atol=1e-6)
        assert ("lora" in name) == bool((value != start[name]).any()), name
    assert repr(adapters) == "Adapters(2 layers, rank 2: 50 of 133 parameters are trained, 38 %)"


def test_only_adapters_are_saved_and_they_fit_another_copy_of_the_base(tmp_path: Path) -> None:
    model = net()
    base = model.state_dict()
    adapters = ws.nn.lora(model, rank=3, targets="2")
    fit(model)
    adapters.save(tmp_path / "a.safetensors")
    found = load_file(tmp_path / "a.safetensors")
    assert {n: a.shape for n, a in found.items()} == {
        "base_model.model.2.lora_A.weight": (3, 8), "base_model.model.2.lora_B.weight": (3, 3),
    }  # fmt: skip
    other = net()
    other.load_state_dict(base)
    ws.nn.lora(other, rank=3, targets="2").load(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(other.predict(X, device="reference"), model.predict(X, device="reference"))
    with pytest.raises(ws.errors.UsageError, match=r"Missing: 0.lora_A.weight, 0.lora_B.weight; .* rank and targets"):
        ws.nn.lora(net(), rank=3).load(tmp_path / "a.safetensors")
    with pytest.raises(ws.errors.ShapeError, match=r"\(2, 8\) in the model; received \(3, 8\).* the rank that they"):
        ws.nn.lora(net(), rank=2, targets="2").load(tmp_path / "a.safetensors")


def test_merging_computes_the_same_under_the_old_names_and_trains_all_again() -> None:
    model = net()
    names = list(model.state_dict())
    adapters = ws.nn.lora(model, rank=2, dropout=0.1)
    fit(model)
    tuned = model.predict(X, device="reference")
    assert adapters.merge() is model
    assert list(model.state_dict()) == names
    np.testing.assert_allclose(model.predict(X, device="reference"), tuned, rtol=1e-5, atol=1e-6)
    assert not any(p.frozen for p in model.parameters().values())
    fit(model, epochs=1)
    with pytest.raises(ws.errors.UsageError, match="merged or removed already"):
        adapters.save("nowhere")


def test_removing_gives_the_model_back() -> None:
    model = net()
    before = model.predict(X, device="reference")
    adapters = ws.nn.lora(model)
    fit(model)
    adapters.remove()
    np.testing.assert_array_equal(model.predict(X, device="reference"), before)


def test_attention_and_gpt2_have_them_too() -> None:
    block = ws.nn.TransformerBlock(8, 2, hidden=16)
    x = RNG.normal(size=(8, 4, 8)).astype(np.float32)
    adapters = ws.nn.lora(block, rank=2, targets=["self_attn", "out_proj"])
    assert adapters.paths == ["self_attn", "self_attn.out_proj"]
    losses = fit(block, x, np.roll(x, 1, 1))["loss"]
    assert losses[-1] < losses[0]
    tuned = block.predict(x, device="reference")
    np.testing.assert_allclose(adapters.merge().predict(x, device="reference"), tuned, rtol=1e-4, atol=1e-5)
    gpt = ws.models.gpt2(layers=1, width=8, heads=2, vocabulary=11, context=4)
    tokens = RNG.integers(0, 11, (8, 4)).astype(np.int32)
    adapters = ws.nn.lora(gpt, rank=2, targets="c_attn")
    assert adapters.paths == ["h.0.attn.c_attn"]
    history = ws.fit(gpt, (tokens, tokens), loss="cross_entropy", epochs=4, batch_size=8, device="reference")
    assert history["loss"][-1] < history["loss"][0]
    scores = gpt.predict(tokens, device="reference")
    np.testing.assert_allclose(adapters.merge().predict(tokens, device="reference"), scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ws.nn.lora(net(), targets="q_proj"), "matches 'q_proj'; there are: 0, 2"),
        (lambda: ws.nn.lora(net(), rank=0), "lora: rank must be an integer of at least 1; received 0"),
        (lambda: ws.nn.lora(ws.nn.lora(net()).model), r"no linear layer without an adapter matches '\*'"),
    ],
)
def test_errors_teach(call: Any, text: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=text):
        call()
