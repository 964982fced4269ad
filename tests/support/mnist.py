"""MNIST for tests: the real files if they exist, else a small substitute from the digits that ship with the package."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest

import wholestep as ws

FILE = "train-images-idx3-ubyte.gz"
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"  # a folder next to the repository


def real_mnist() -> Path:
    """The folder with the four files of MNIST; skips the test where there is none."""
    folder = Path(os.environ.get("WHOLESTEP_DATA", BESIDE)) / "mnist"
    if not (folder / FILE).exists():
        pytest.skip(f"the files of MNIST are not in {folder}; WHOLESTEP_DATA names the folder that has mnist/")
    return folder


def write_idx(path: Path, array: np.ndarray) -> None:
    """An array of bytes as MNIST stores it."""
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


def digits_as_mnist(folder: Path, train: int = 1500) -> None:
    """The digits that ship with the package, enlarged to 28 x 28, in the four files of MNIST."""
    x, y = ws.datasets.digits()
    images = np.pad(x.reshape(-1, 8, 8).repeat(3, axis=1).repeat(3, axis=2) * 255, ((0, 0), (2, 2), (2, 2)))
    for part, rows in (("train", slice(train)), ("t10k", slice(train, None))):
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images[rows])
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", y[rows])
