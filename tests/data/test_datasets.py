from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from wholestep import datasets


def test_digits_are_the_ones_scikit_learn_distributes() -> None:
    x, y = datasets.digits()
    reference = load_digits()
    assert (x.dtype, y.dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(x, (reference.data / 16).astype(np.float32))
    np.testing.assert_array_equal(y, reference.target)


def test_split_is_a_partition_in_which_every_class_keeps_its_share() -> None:
    _, y = datasets.digits()
    train, test = datasets.stratified_split(y, test_fraction=0.2, seed=0)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(len(y)))
    np.testing.assert_array_equal(np.bincount(y[test]), np.round(0.2 * np.bincount(y)))


def test_split_depends_on_the_seed_alone() -> None:
    y = np.arange(100) % 4
    first, again, other = (datasets.stratified_split(y, 0.25, seed)[1] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_split_leaves_a_row_of_each_class_on_both_sides() -> None:
    y = np.array([0, 0, 1, 1])
    for fraction in (0.01, 0.99):
        train, test = datasets.stratified_split(y, fraction, seed=0)
        assert set(y[train]) == set(y[test]) == {0, 1}


@pytest.mark.parametrize(
    ("y", "fraction", "message"),
    [
        (np.zeros((2, 2)), 0.5, r"shape \(2, 2\), expected one label per row"),
        (np.zeros(4), 1.0, "test_fraction is 1.0, expected a value between 0 and 1"),
        (np.array([0, 0, 1]), 0.5, "class 1 has 1 row, expected at least 2"),
        (np.array([]), 0.5, "y is empty"),
    ],
)
def test_split_refuses_what_it_cannot_split(y: np.ndarray, fraction: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        datasets.stratified_split(y, fraction, seed=0)
