"""Trains small networks on one CPU target and stores losses, weights and predictions: a child process of a test.

A process loads the native library of a target once, so every C compiler needs a process of its own, with $CC:
`python -m tests.compiler.backends.cpu.compiler_suite OUT.npz DEVICE NAME ...`
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import wholestep as ws
from wholestep import nn

Array = np.ndarray[Any, Any]
ROWS, STEPS = 9, 3
# The compiler's bits are compared: the check against the interpreter at build time is repeated on device="reference".
OPTIONS = ws.CompileOptions(verify=False, egraph=False)


class Recurrent(nn.Module):
    """An LSTM and its last output."""

    def __init__(self) -> None:
        self.lstm, self.head = nn.LSTM(10, 24), nn.Linear(24, 5)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        out, _ = self.lstm(x)
        return self.head(out[:, -1])


class ResidualBlock(nn.Module):
    """3x3 convolutions (Winograd), a strided, a grouped and a 1x1 one, batch norms, and pooling."""

    def __init__(self, last: Callable[[ws.Tensor], ws.Tensor] = ws.gelu) -> None:
        self.last = last
        self.stem, self.norm = nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.conv1, self.conv2 = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.mix, self.pool, self.head = nn.Conv2d(16, 32, 1), nn.AvgPool2d(2), nn.Linear(32, 5)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        h = ws.relu(self.norm(self.stem(x)))
        h = self.pool(ws.relu(h + self.conv2(ws.relu(self.conv1(h)))))
        return self.head(self.last(self.mix(h)).mean((2, 3)))


def mlp(dtype: str = "float32") -> nn.Module:
    return nn.Sequential(
        nn.Linear(50, 70, dtype=dtype), nn.Tanh(), nn.Dropout(0.2), nn.LayerNorm(70, dtype=dtype),
        nn.Linear(70, 33, dtype=dtype), nn.SiLU(), nn.Linear(33, 5, dtype=dtype),
    )  # fmt: skip


def gpt() -> nn.Module:
    return ws.models.gpt2(layers=2, width=32, heads=2, vocabulary=40, context=20)


def _spec(rows: Array) -> ws.Spec:
    return ws.Spec(("batch", *rows.shape[1:]), rows.dtype.name)


@dataclass(frozen=True)
class Example:
    """A network, the shape of one row of its input, and how it is trained; "float64" is the dtype of all."""

    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    optimizer: ws.Optimizer
    precision: str = "float32"
    options: ws.CompileOptions = OPTIONS

    def rows(self) -> tuple[Array, Array]:
        rng = np.random.default_rng(7)
        if self.network is gpt:
            tokens = rng.integers(0, 40, (ROWS, *self.shape)).astype(np.int32)
            return tokens, tokens
        x = rng.normal(size=(ROWS, *self.shape))
        dtype = "float64" if self.precision == "float64" else "float32"
        return x.astype(dtype), rng.integers(0, 5, ROWS).astype(np.int32)

    def results(self, device: str, threads: int = 2) -> dict[str, Array]:
        """Losses of all rows and of a smaller batch, the trained state, and predictions."""
        x, y = self.rows()
        half = {"precision": self.precision} if "16" in self.precision else {}
        session = ws.build_session(
            self.network(), inputs=_spec(x), targets=_spec(y), loss="cross_entropy", optimizer=self.optimizer,
            batch_size=ROWS, clip_norm=1.0, seed=3, device=device, threads=threads, options=self.options, **half,
        )  # fmt: skip
        losses = [session.step(x=x[:n], labels=y[:n]).loss for n in (ROWS, 5) for _ in range(STEPS)]
        state = {name: np.asarray(value) for name, value in session.state_dict().items()}
        return {"losses": np.array(losses), **state}


EXAMPLES = {
    "mlp": Example(mlp, (50,), ws.AdamW(1e-2)),
    "mlp-float64": Example(lambda: mlp("float64"), (50,), ws.SGD(1e-2, momentum=0.9), "float64"),
    "mlp-bfloat16": Example(mlp, (50,), ws.Adam(1e-2), "bfloat16"),
    "mlp-float16": Example(mlp, (50,), ws.RMSprop(1e-3), "float16"),
    "lenet": Example(ws.models.lenet5, (1, 28, 28), ws.Adam(1e-3)),
    "residual": Example(ResidualBlock, (3, 16, 16), ws.SGD(1e-2, momentum=0.9)),
    "residual-float64": Example(  # erf of doubles, in gelu, is the C library's
        lambda: ResidualBlock(ws.tanh).astype("float64"), (3, 16, 16), ws.SGD(1e-2, momentum=0.9), "float64"
    ),
    "gpt": Example(gpt, (20,), ws.AdamW(1e-3)),
    "gpt-bfloat16": Example(gpt, (20,), ws.AdamW(1e-3), "bfloat16"),
    "lstm": Example(Recurrent, (6, 10), ws.Adam(1e-2)),
}


def main(out: str, device: str, *names: str) -> None:
    """Write `name/array` of every example to `out`."""
    results = {f"{name}/{key}": value for name in names for key, value in EXAMPLES[name].results(device).items()}
    np.savez(out, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
