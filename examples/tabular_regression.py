"""Regression on a table: a CSV file, standardised columns, errors in the units of the target.

`python examples/tabular_regression.py --csv houses.csv --target price` reads your own table.  Without one it writes
and reads a table after Friedman (1991): y = 10 sin(π a b) + 20 (c - 0.5)² + 10 d + 5 e + noise, and five
irrelevant columns.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import wholestep as ws

NOISE = 1.0  # standard deviation of the noise: no model has a smaller error


def write_friedman(path: Path, rows: int, seed: int = 0) -> None:
    """A table with a known best possible error."""
    rng = np.random.default_rng(seed)
    x = rng.random((rows, 10))
    a, b, c, d, e = x.T[:5]
    y = 10 * np.sin(np.pi * a * b) + 20 * (c - 0.5) ** 2 + 10 * d + 5 * e + NOISE * rng.normal(size=rows)
    table = np.column_stack([x, y])
    np.savetxt(path, table, fmt="%.6f", delimiter=",", header="a,b,c,d,e,f,g,h,i,j,y", comments="")


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, help="a file of numbers with a line of names")
    parser.add_argument("--target", default="y", help="the column to predict")
    parser.add_argument("--rows", type=int, default=4000, help="of the table that is made where none is given")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-3)
    return parser.parse_args(arguments)


def read(given: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Features (rows, columns) and the target as a column (rows, 1)."""
    with tempfile.TemporaryDirectory() as folder:
        path = given.csv
        if path is None:
            path = Path(folder) / "friedman.csv"
            write_friedman(path, given.rows)
        x, y = ws.data.read_csv(path, target=given.target)
    return x, np.asarray(y, np.float32)[:, None]


def main(arguments: Sequence[str] | None = None) -> float:
    """Trains on four fifths of the rows; returns the root mean square error on the others."""
    given = options(arguments)
    x, y = read(given)
    order = np.random.default_rng(0).permutation(len(x))
    test, train = order[: len(x) // 5], order[len(x) // 5 :]

    # Scales are fitted to the training rows only: the test rows are unknown at that time.
    x = (x - x[train].mean(axis=0)) / (x[train].std(axis=0) + 1e-8)
    middle, spread = y[train].mean(), y[train].std()
    scaled = (y - middle) / spread

    model = ws.nn.Sequential(
        ws.nn.Linear(x.shape[1], given.hidden),
        ws.nn.SiLU(),
        ws.nn.Linear(given.hidden, given.hidden),
        ws.nn.SiLU(),
        ws.nn.Linear(given.hidden, 1),
    )
    ws.fit(
        model,
        (x[train], scaled[train]),
        validation=(x[test], scaled[test]),
        loss="mse",
        optimizer=ws.AdamW(lr=given.lr, weight_decay=0.1),
        schedule=ws.schedules.cosine(),
        metrics=["r2"],
        epochs=given.epochs,
        batch_size=given.batch,
    )
    predicted = model.predict(x[test]) * spread + middle
    error = float(np.sqrt(np.mean((predicted - y[test]) ** 2)))
    print(f"error {error:.3f} on {len(test)} rows not seen in training; always saying the mean: {y[test].std():.3f}")
    return error


if __name__ == "__main__":
    main()
