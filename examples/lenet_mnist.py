"""LeNet-5 on MNIST: convolutions, a schedule over the run, accuracy on the test images.

The four files of MNIST (train-images-idx3-ubyte.gz, ...) must be in one folder:
`python examples/lenet_mnist.py --data FOLDER`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import wholestep as ws


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder with the four files of MNIST")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--save", type=Path, help="where to write the weights (safetensors)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> float:
    """Trains on all training images; returns the accuracy on the test images."""
    given = options(arguments)
    train, test = ws.data.mnist(given.data)
    model = ws.models.lenet5()
    print(model.summary(ws.Spec(("batch", 1, 28, 28))))
    began = time.perf_counter()
    history = ws.fit(
        model,
        train,
        validation=test,  # only reported: never used for a choice
        loss="cross_entropy",
        optimizer=ws.Adam(lr=given.lr),
        schedule=ws.schedules.cosine(),
        metrics=["accuracy"],
        epochs=given.epochs,
        batch_size=given.batch,
    )
    accuracy = history.last["val_accuracy"]
    seconds = time.perf_counter() - began
    print(f"test accuracy: {accuracy:.2%} on {len(test[1])} images not seen in training, after {seconds:.0f} s")
    if given.save:
        model.save(given.save)
    return accuracy


if __name__ == "__main__":
    main()
