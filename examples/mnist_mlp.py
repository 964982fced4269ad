"""A perceptron on MNIST with `ws.fit`: validation, a schedule, early stopping, weights in a file.

The four files of MNIST (train-images-idx3-ubyte.gz, ...) must be in one folder:
`python examples/mnist_mlp.py --data FOLDER`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import wholestep as ws


def network(hidden: int) -> ws.nn.Module:
    """784 pixels, one hidden layer, ten scores."""
    return ws.nn.Sequential(
        ws.nn.Flatten(),
        ws.nn.Linear(784, hidden),
        ws.nn.ReLU(),
        ws.nn.Linear(hidden, 10),
    )


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder with the four files of MNIST")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--device", default="cpu", help="cuda: on an NVIDIA GPU")
    parser.add_argument("--save", type=Path, help="where to write the weights (safetensors)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> float:
    """Trains on nine tenths of the training images; returns the accuracy on the test images."""
    given = options(arguments)
    train, (x_test, y_test) = ws.data.mnist(given.data)
    model = network(given.hidden)
    history = ws.fit(
        model,
        train,
        validation=0.1,
        loss="cross_entropy",
        optimizer=ws.AdamW(lr=given.lr, weight_decay=0.01),
        schedule=ws.schedules.cosine(),
        metrics=["accuracy"],
        epochs=given.epochs,
        batch_size=given.batch,
        callbacks=[ws.EarlyStopping("val_loss", patience=3)],
        device=given.device,
    )
    print(history)
    accuracy = float((model.predict(x_test, device=given.device).argmax(axis=1) == y_test).mean())
    print(f"test accuracy: {accuracy:.2%} on {len(y_test)} images not seen in training")
    if given.save:
        model.save(given.save)
    return accuracy


if __name__ == "__main__":
    main()
