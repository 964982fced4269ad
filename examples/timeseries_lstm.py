"""An LSTM forecasts a series: two oscillations with slowly varying amplitudes, and noise.

Every window of the past is one example; its target is the next value.  The baseline is the forecast "no change"; the
lower bound is the noise, which is unpredictable.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import wholestep as ws

NOISE = 0.05


class Forecaster(ws.nn.Module):
    """An LSTM, and a linear layer from its last output to the next value."""

    def __init__(self, hidden: int) -> None:
        self.lstm = ws.nn.LSTM(1, hidden, batch_first=True)
        self.head = ws.nn.Linear(hidden, 1)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        outputs, _ = self.lstm(x)  # (batch, window, hidden)
        return self.head(outputs[:, -1])  # (batch, 1)


def series(length: int, seed: int = 0) -> np.ndarray:
    """Two sines whose amplitudes follow a third one, and noise."""
    t = np.arange(length)
    slow = 1.0 + 0.5 * np.sin(2 * np.pi * t / 331)
    clean = slow * np.sin(2 * np.pi * t / 24) + 0.5 * np.sin(2 * np.pi * t / 9)
    return (clean + NOISE * np.random.default_rng(seed).normal(size=length)).astype(np.float32)


def windows(values: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """(examples, window, 1) of past values and (examples, 1) of next values."""
    past = np.lib.stride_tricks.sliding_window_view(values[:-1], window)
    return np.ascontiguousarray(past)[..., None], values[window:, None]


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=4000, help="of the series; the last fifth is for the test")
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-2)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> float:
    """Trains on the first four fifths of the series; returns the root mean square error on the last fifth."""
    given = options(arguments)
    values = series(given.length)
    cut = len(values) * 4 // 5
    x_test, y_test = windows(values[cut:], given.window)

    model = Forecaster(given.hidden)
    ws.fit(
        model,
        windows(values[:cut], given.window),
        loss="mse",
        optimizer=ws.Adam(lr=given.lr),
        schedule=ws.schedules.cosine(),
        clip_norm=1.0,  # recurrent gradients can explode
        epochs=given.epochs,
        batch_size=given.batch,
    )
    error = float(np.sqrt(np.mean((model.predict(x_test) - y_test) ** 2)))
    naive = float(np.sqrt(np.mean((x_test[:, -1] - y_test) ** 2)))
    print(f"error {error:.3f}; of the forecast 'as it is now' {naive:.3f}; of the noise {NOISE:.3f}")
    return error


if __name__ == "__main__":
    main()
