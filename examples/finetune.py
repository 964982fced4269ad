"""Fine-tuning: a network trained on the ten digits learns to classify odd and even from 40 examples.

Its weights come from a safetensors file.  First only a new head is trained on the frozen body; then everything is
trained with a smaller learning rate.  `--weights FILE` starts from your own file with the same names.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import wholestep as ws

Data = tuple[np.ndarray, np.ndarray]


class Classifier(ws.nn.Module):
    """A feature extractor and a classifier: `body.0.weight`, ..., `head.weight`."""

    def __init__(self, classes: int) -> None:
        self.body = ws.nn.Sequential(ws.nn.Linear(64, 128), ws.nn.ReLU(), ws.nn.Linear(128, 64), ws.nn.ReLU())
        self.head = ws.nn.Linear(64, classes)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.head(self.body(x))  # (batch, classes)


def train(model: ws.nn.Module, data: Data, epochs: int, lr: float) -> None:
    ws.fit(model, data, loss="cross_entropy", optimizer=ws.AdamW(lr=lr), epochs=epochs, progress=False)


def accuracy(model: ws.nn.Module, data: Data) -> float:
    return float((model.predict(data[0]).argmax(axis=1) == data[1]).mean())


def pretrained(path: Path, data: Data, epochs: int) -> None:
    """Trains on the ten digits and writes the weights."""
    model = Classifier(classes=10)
    train(model, data, epochs, lr=1e-3)
    model.save(path)


def finetuned(path: Path, few: Data, epochs: int) -> ws.nn.Module:
    """Loads the body of a file, adds a new head, trains the head, then everything."""
    model = Classifier(classes=2)
    body = {name: array for name, array in load_file(path).items() if name.startswith("body.")}
    print(model.load_state_dict(body, strict=False))  # reports what was loaded, and that the head was not
    model.freeze("body.*")
    train(model, few, epochs, lr=1e-2)
    model.unfreeze("body.*")
    train(model, few, epochs, lr=3e-4)
    return model


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, help="a safetensors file; without it the network is trained first")
    parser.add_argument("--examples", type=int, default=40, help="of the new task")
    parser.add_argument("--epochs", type=int, default=20)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    """Returns the accuracy on the new task: fine-tuned, and from scratch with the same examples."""
    given = options(arguments)
    x, y = ws.datasets.digits()
    first, second = ws.datasets.stratified_split(y, test_fraction=0.4, seed=0)
    few, rest = second[: given.examples], second[given.examples :]
    examples, test = (x[few], y[few] % 2), (x[rest], y[rest] % 2)

    with tempfile.TemporaryDirectory() as folder:
        path = given.weights or Path(folder) / "digits.safetensors"
        if given.weights is None:
            pretrained(path, (x[first], y[first]), given.epochs)
        tuned = accuracy(finetuned(path, examples, given.epochs), test)
    scratch = Classifier(classes=2)
    train(scratch, examples, 2 * given.epochs, lr=1e-3)
    alone = accuracy(scratch, test)
    print(f"odd or even from {given.examples} examples: fine-tuned {tuned:.1%}, from scratch {alone:.1%}")
    return tuned, alone


if __name__ == "__main__":
    main()
