from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.targets import load_library
from wholestep.compiler.runtime.epoch_permutation import epoch_order


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 17, 31, 1000, 4096, 4097])
def test_an_epoch_visits_every_row_once(n: int) -> None:
    for epoch in range(3):
        assert np.array_equal(np.sort(epoch_order(9, epoch, n)), np.arange(n))


@pytest.mark.parametrize("n", [1, 2, 7, 100, 1437, 2**40 + 3])
def test_c_and_numpy_agree(n: int) -> None:
    order = load_library().order
    positions = np.unique(np.linspace(0, n - 1, 50).astype(np.int64))
    for seed, epoch in [(0, 0), (1, 0), (0, 1), (2**64 - 1, 2**63), (12345, 7)]:
        expected = [order(seed, epoch, n, int(i)) for i in positions]
        assert epoch_order(seed, epoch, n, positions).tolist() == expected


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = {tuple(epoch_order(seed, epoch, 50)) for seed in range(4) for epoch in range(10)}
    assert len(orders) == 40


def test_every_row_is_about_equally_often_first() -> None:
    first = np.array([epoch_order(0, epoch, 10, [0])[0] for epoch in range(5000)])
    counts = np.bincount(first, minlength=10)
    assert ((counts - 500.0) ** 2 / 500).sum() < 28  # chi-squared, 9 degrees of freedom: once in a thousand


def test_neighbours_are_scattered() -> None:
    order = epoch_order(3, 0, 10_000)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.04
    assert np.count_nonzero(order == np.arange(10_000)) < 10


def test_a_position_outside_the_epoch_is_refused() -> None:
    with pytest.raises(IndexError, match="position 5 is not in an epoch of 5 rows"):
        epoch_order(0, 0, 5, [5])
