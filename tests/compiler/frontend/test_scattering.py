"""Elements put at places that indices name: forms that torch has no function for, sizes that are symbols, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.recording import value
from wholestep.errors import DTypeError, OptionError, ShapeError

X = np.random.default_rng(0).normal(size=(2, 3, 4))
ROW, COLUMN = np.array([2, 0, 1]), np.array([[0], [3]])


def written(key: Any, values: Any) -> np.ndarray[Any, Any]:
    out = X.copy()
    out[key] = values
    return out


@pytest.mark.parametrize(
    ("indices", "key", "shape"),
    [
        ((None, ROW), np.s_[:, ROW], (3, 4)),
        ((None, ROW, ROW), np.s_[:, ROW, ROW], (2, 3)),
        ((None, ROW, COLUMN), np.s_[:, ROW, COLUMN], (2, 3)),
        ((ROW % 2, None, COLUMN), np.s_[ROW % 2, :, COLUMN], (2, 3, 3)),
        ((COLUMN % 2, ROW), np.s_[COLUMN % 2, ROW], (4,)),
        ((ROW - 1, ROW - 3, ROW - 4), np.s_[ROW - 1, ROW - 3, ROW - 4], ()),
    ],
)
def test_index_put_is_an_assignment_of_numpy(indices: Any, key: Any, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).normal(size=shape)
    found = value(lambda x: ws.index_put(x, indices, values), X)
    np.testing.assert_allclose(found, written(key, values))


@pytest.mark.parametrize(
    "key",
    [(slice(None), ROW, ROW), (ROW % 2, slice(None), ROW), (COLUMN % 2, ROW), (0, slice(None), ROW), (ROW % 2, ROW, 1)],
)
def test_several_indices_are_those_of_torch(key: Any) -> None:
    import torch

    theirs = torch.tensor(X)[tuple(torch.tensor(k) if isinstance(k, np.ndarray) else k for k in key)]
    np.testing.assert_array_equal(value(lambda x: x[key], X), theirs.numpy())


def test_rows_of_a_symbolic_batch() -> None:
    x, i = np.arange(12.0).reshape(3, 4), np.array([[0, 3], [1, 1], [2, 0]])
    rows = lambda x, i: ws.put_along_axis(x, i, -1.0, 1) + ws.put_along_axis(x, i, 2.0, 1, reduce="sum")  # noqa: E731
    expected = x.copy()
    np.put_along_axis(expected, i, -1.0, 1)
    added = x.copy()
    np.add.at(added, (np.arange(3)[:, None], i), 2.0)
    found = value(rows, x, i, dims=(("batch", 4), ("batch", 2)))
    np.testing.assert_allclose(found, expected + added)


@pytest.mark.parametrize(
    ("line", "error", "text"),
    [
        (lambda x: ws.put_along_axis(x, X, 1.0), DTypeError, "put_along_axis needs integer indices"),
        (
            lambda x: ws.put_along_axis(x, ROW, 1.0),
            ShapeError,
            r"index must have the same rank as x \(2, 3, 4\) and may exceed it only along axis 2",
        ),
        (
            lambda x: ws.put_along_axis(x, X.astype(int), 1.0, reduce="add"),
            OptionError,
            "reduce must be one of replace, sum",
        ),
        (
            lambda x: ws.put_along_axis(x, X.astype(int), X[:1]),
            ShapeError,
            "values must be at least as large as the index",
        ),
        (
            lambda x: ws.index_add(x, 1, ROW, X[:, :2]),
            ShapeError,
            "with 3 .one slice per index. along axis 1; received .2, 2, 4.",
        ),
        (lambda x: ws.index_put(x, (X > 0, ROW), 0.0), ShapeError, "a mask must be the only index"),
        (lambda x: ws.index_put(x, (None,), 0.0), ShapeError, "needs 1 to 3 indices"),
        (lambda x: ws.masked_scatter(x, ROW, x), DTypeError, "masked_scatter needs a bool mask"),
        (lambda x: ws.scatter_slice(x, X, 1, 0, 2), ShapeError, r"2 slices along axis 1 .* received \(2, 3, 4\)"),
        (lambda x: ws.bitwise_xor(x, x), DTypeError, "bitwise_xor needs integers; received float64"),
        (lambda x: x << 1, DTypeError, "left_shift needs integers"),
    ],
)
def test_what_does_not_fit_is_said(line: Callable[..., Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        value(line, X)
