"""A run that checkpoints after every step, to be killed.  Prints a digest at its end."""

from __future__ import annotations

import hashlib
import sys

import numpy as np

import wholestep as ws

EPOCHS = 4


def main(folder: str, device: str, *held: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 12)).astype(np.float32)
    y = rng.integers(0, 4, 200).astype(np.int32)
    model = ws.nn.Sequential(ws.nn.Linear(12, 16), ws.nn.ReLU(), ws.nn.Dropout(0.2), ws.nn.Linear(16, 4))
    history = ws.fit(
        model,
        (x, y),
        validation=0.2,
        loss="cross_entropy",
        optimizer=ws.AdamW(lr=1e-2),
        schedule=ws.schedules.cosine(warmup=5),
        metrics=["accuracy"],
        epochs=EPOCHS,
        batch_size=8,
        threads=1,
        device=device,
        callbacks=[Ready(bool(held)), ws.ModelCheckpoint(folder, "loss", last=2, every=1)],
        checkpoint=None,
        resume=folder if list_of(folder) else None,
        exact=True,
        progress=False,
    )
    digest = hashlib.sha256(history.to_json().encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.tobytes())
    print(digest.hexdigest(), flush=True)


def list_of(folder: str) -> list[object]:
    from wholestep.train.checkpoint.folder import checkpoints_in

    return list(checkpoints_in(folder))


class Ready(ws.Callback):
    """Says when training begins, so that a kill hits it; may wait before its last epoch, so that a signal does."""

    def __init__(self, held: bool) -> None:
        self.held = held

    def on_epoch_begin(self, epoch: int) -> None:
        if self.held and epoch == EPOCHS - 1:
            sys.stdin.read()

    def on_train_begin(self) -> None:
        print("ready", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
