"""A perceptron on MNIST for the command line: `wholestep train examples/mnist.py --epochs 5 --set optimizer.lr=3e-4`.

The four files of MNIST must be in one folder, `--set data=FOLDER`; `--set hidden=256` makes the network wider,
`--device cuda` trains on an NVIDIA GPU.  `python examples/mnist.py` takes the same options.
"""

from __future__ import annotations

import sys

import wholestep as ws
from wholestep.cli import main


def build(data: str = "mnist", hidden: int = 128) -> ws.Experiment:
    """The experiment of `wholestep train`: `--set` changes every parameter here and every field below."""
    train, test = ws.data.mnist(data)
    model = ws.nn.Sequential(
        ws.nn.Flatten(),
        ws.nn.Linear(784, hidden),
        ws.nn.ReLU(),
        ws.nn.Linear(hidden, 10),
    )
    return ws.Experiment(
        model=model,
        data=train,
        validation=0.1,
        test=test,
        loss="cross_entropy",
        optimizer=ws.AdamW(lr=2e-3),
        schedule=ws.schedules.cosine(),
        metrics=["accuracy"],
        epochs=10,
        batch_size=128,
    )


if __name__ == "__main__":
    sys.argv[1:] = ["train", __file__, *sys.argv[1:]]
    main()
