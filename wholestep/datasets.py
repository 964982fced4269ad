"""Small data sets that ship with the package, and the split that examples and tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wholestep.errors import InputError, OptionError, ShapeError
from wholestep.lazy import missing_names

_LARGEST_PIXEL = 16


def digits() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """The UCI handwritten digits: images (1797, 64) scaled to 0..1, and labels (1797,) from 0 to 9.

    Example:
        >>> x, y = digits()
        >>> x.shape, x.dtype.name, y.dtype.name
        ((1797, 64), 'float32', 'int32')

    Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (CC BY 4.0).
    """
    with (Path(__file__).parent / "data_files" / "digits.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        pixels, labels = stored["pixels"], stored["labels"]
    return pixels.astype(np.float32) / np.float32(_LARGEST_PIXEL), labels.astype(np.int32)


def stratified_split(y: ArrayLike, test_fraction: float, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Random row numbers `(train, test)` in which every class keeps its share; equal seeds give equal splits.

    Each class sends round(test_fraction · its rows) rows to the test part, at least one, and keeps at least one.
    Both parts come back in random order.

    Example:
        >>> train, test = stratified_split([0, 0, 0, 0, 1, 1, 1, 1], test_fraction=0.25, seed=0)
        >>> len(train), len(test)
        (6, 2)
    """
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise ShapeError(f"y has shape {labels.shape}, expected one label per row; pass a one-dimensional array")
    if labels.size == 0:
        raise InputError("y is empty, expected at least two rows of each class; pass the labels of the data to split")
    if not 0.0 < test_fraction < 1.0:
        raise OptionError(f"test_fraction is {test_fraction}, expected a value between 0 and 1 such as 0.2")
    rng = np.random.default_rng(seed)
    train: list[NDArray[np.intp]] = []
    test: list[NDArray[np.intp]] = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if len(rows) < 2:
            raise InputError(f"class {label} has 1 row, expected at least 2 (one per part); add rows or drop the class")
        cut = min(max(round(test_fraction * len(rows)), 1), len(rows) - 1)
        test.append(rows[:cut])
        train.append(rows[cut:])
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))


__getattr__ = missing_names(__name__)
