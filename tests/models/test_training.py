"""Every model trained, and compared with its torch twin: partial batches, several capacities, one thread and two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wholestep as ws
from tests.models.test_images import CifarTwin, LeNet, resnet8
from tests.models.test_lstm import TIME, VOCABULARY, WIDTH
from tests.models.test_lstm import Twin as RecurrentTwin
from tests.nn.twins import TOLERANCE, assert_close, assert_twins

RNG = np.random.default_rng(0)
ROWS, LR = (4, 3), 0.05
LAYERS, HEADS, CONTEXT = 2, 4, 7


class Projection(nn.Module):
    """As in the published checkpoints: (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(0.2 * torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = Projection(WIDTH, 3 * WIDTH), Projection(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (t.reshape(batch, time, HEADS, -1).transpose(1, 2) for t in self.c_attn(x).split(width, -1))
        scores = q @ k.transpose(2, 3) / (width // HEADS) ** 0.5
        hidden = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        out: torch.Tensor = self.c_proj(mixed.transpose(1, 2).reshape(x.shape))
        return out


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Projection(WIDTH, 4 * WIDTH), Projection(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.attn, self.mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention(), MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        out: torch.Tensor = x + self.mlp(self.ln_2(x))
        return out


class TransformerTwin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h, self.ln_f = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        out: torch.Tensor = self.ln_f(x) @ self.wte.weight.T
        return out


def transformer() -> ws.nn.Module:
    return ws.models.gpt2(layers=LAYERS, width=WIDTH, heads=HEADS, vocabulary=VOCABULARY, context=CONTEXT)


def tokens(time: int) -> np.ndarray:
    return RNG.integers(0, VOCABULARY, (ROWS[0], time)).astype(np.int32)


def images(*shape: int) -> np.ndarray:
    return RNG.normal(size=(ROWS[0], *shape)).astype(np.float32)


@dataclass(frozen=True)
class Pair:
    ours: Callable[[], ws.nn.Module]
    theirs: Callable[[], nn.Module]
    x: np.ndarray
    labels: np.ndarray

    def session(self, start: dict[str, torch.Tensor], capacity: int, threads: int) -> tuple[ws.nn.Module, ws.Session]:
        model = self.ours()
        model.load_state_dict(start)
        inputs, targets = (ws.Spec(("batch", *a.shape[1:]), a.dtype.name) for a in (self.x, self.labels))
        return model, ws.build_session(
            model,
            inputs=inputs,
            targets=targets,
            loss="cross_entropy",
            optimizer=ws.SGD(lr=LR),
            batch_size=capacity,
            threads=threads,
        )


CLASSES = np.arange(ROWS[0], dtype=np.int32)
MODELS = {
    "lenet5": Pair(ws.models.lenet5, LeNet, images(1, 28, 28), CLASSES),
    "resnet8": Pair(lambda: resnet8("A"), lambda: CifarTwin(1, "A"), images(3, 8, 8), CLASSES),
    "gpt2": Pair(transformer, TransformerTwin, tokens(CONTEXT), tokens(CONTEXT)),
    "lstm_lm": Pair(
        lambda: ws.models.lstm_lm(VOCABULARY, width=WIDTH, layers=2), RecurrentTwin, tokens(TIME), tokens(TIME)
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("time", [CONTEXT, CONTEXT - 2])
def test_gpt2_equals_its_twin(time: int, dtype: str) -> None:
    torch.manual_seed(0)
    assert_twins(transformer(), TransformerTwin(), [tokens(time)], dtype, threads=2)


def trained(pair: Pair, start: dict[str, torch.Tensor], capacity: int, threads: int) -> dict[str, np.ndarray]:
    """Losses and numbers after two steps, the second of a partial batch."""
    model, session = pair.session(start, capacity, threads)
    losses = [float(session.step(x=pair.x[:n], labels=pair.labels[:n])) for n in ROWS]
    return {"losses": np.array(losses), **model.state_dict()}


def trained_by_torch(pair: Pair, twin: nn.Module) -> dict[str, np.ndarray]:
    optimizer, losses = torch.optim.SGD(twin.parameters(), lr=LR), []
    for n in ROWS:
        optimizer.zero_grad()
        scores, labels = twin(torch.tensor(pair.x[:n])), torch.tensor(pair.labels[:n]).long()
        loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": np.array(losses), **{name: t.numpy() for name, t in twin.state_dict().items()}}


@pytest.mark.parametrize("name", MODELS)
def test_partial_batches_capacities_and_threads(name: str) -> None:
    torch.manual_seed(0)
    pair, twin = MODELS[name], MODELS[name].theirs()
    start = {name: t.clone() for name, t in twin.state_dict().items()}
    first = trained(pair, start, ROWS[0], threads=1)
    for capacity, threads in ((4, 2), (7, 2)):
        again = trained(pair, start, capacity, threads)
        for part, value in first.items():
            np.testing.assert_array_equal(again[part], value, err_msg=part)
    expected = trained_by_torch(pair, twin)
    scale = max(float(np.abs(v).max()) for v in expected.values())
    for part, value in first.items():
        assert_close(value, expected[part], "float32", TOLERANCE["float32"] * scale, part)
