"""The linter on networks from torch modules and from papers, and on every example with an experiment: no findings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import wholestep as ws
from tests.end_to_end.test_examples import digits_as_mnist
from wholestep.cli import app

RNG = np.random.default_rng(0)
ROWS = 24
CLASS = RNG.integers(0, 4, ROWS)
IMAGES = RNG.standard_normal((ROWS, 3, 16, 16)).astype("f4")
TOKENS = RNG.integers(0, 20, (ROWS, 9))
NUMBERS = RNG.standard_normal((ROWS, 12)).astype("f4")


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6())
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        return self.head((h + self.block(h)).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.words(tokens))[0][:, -1])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Embedding(9, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.layer(h).mean(1))


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 4))


IMPORTED: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "dense": (dense, NUMBERS),
    "convolutions": (Convolutions, IMAGES),
    "recurrent": (Recurrent, TOKENS),
    "encoder": (Encoder, TOKENS),
}


@pytest.mark.parametrize("name", IMPORTED)
def test_an_imported_network_has_no_findings(name: str) -> None:
    build, x = IMPORTED[name]
    torch.manual_seed(0)
    network = ws.from_torch(build(), x[:2])
    report = ws.lint(
        network, (x, CLASS), loss="cross_entropy", metrics=["accuracy"], validation=0.2, schedule=ws.schedules.cosine(),
        optimizer=ws.AdamW(lr=1e-3), epochs=3, batch_size=8,
    )  # fmt: skip
    assert str(report) == "no findings"


PAPERS: dict[str, tuple[Callable[[], ws.nn.Module], Any, Any]] = {
    "lenet5": (ws.models.lenet5, RNG.standard_normal((8, 1, 28, 28)).astype("f4"), CLASS[:8]),
    "resnet20": (ws.models.resnet20, RNG.standard_normal((4, 3, 32, 32)).astype("f4"), CLASS[:4]),
    "gpt": (
        lambda: ws.models.gpt2(layers=1, width=16, heads=2, vocabulary=20, context=9),
        TOKENS,
        TOKENS,
    ),
}


@pytest.mark.parametrize("name", PAPERS)
def test_a_network_from_a_paper_has_no_findings(name: str) -> None:
    build, x, y = PAPERS[name]
    report = ws.lint(build(), (x, y), loss="cross_entropy", optimizer=ws.AdamW(), batch_size=4)
    assert str(report) == "no findings"


@pytest.mark.parametrize("example", ["digits", "mnist"])
def test_the_examples_of_the_command_line_have_no_findings(example: str, tmp_path: Path) -> None:
    digits_as_mnist(tmp_path)
    script = Path(__file__).parents[3] / "examples" / f"{example}.py"
    options = ["--set", f"data={tmp_path}"] if example == "mnist" else []
    assert CliRunner().invoke(app, ["lint", str(script), *options]).stdout == "no findings\n"
