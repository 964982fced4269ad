"""The shuffled order of an epoch: a keyed permutation of [0, n), computed per position without storing it.

A Feistel network is a bijection on the next power of two; cycle walking restricts it to [0, n).  Invariant: the same
bits as `ws_order` in native/order.h.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROUNDS = 6  # rounds of the Feistel network
_WORD = (1 << 64) - 1


def _mix(x: int) -> int:
    """The finaliser of splitmix64."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)


def _round_keys(seed: int, epoch: int) -> list[int]:
    start = _mix((seed + 0x9E3779B97F4A7C15) & _WORD) + epoch * 0xD1342543DE82EF95
    return [_mix((start + (r + 1) * 0x9E3779B97F4A7C15) & _WORD) for r in range(ROUNDS)]


def _network(i: NDArray[np.uint64], keys: list[int], left: int, right: int) -> NDArray[np.uint64]:
    low, high = right, left
    x, y = i & np.uint64((1 << low) - 1), i >> np.uint64(low)
    for key in keys:  # a Feistel round (y, x) -> (x, y ^ F(x)); the halves swap their widths
        f = (x ^ np.uint64(key)) * np.uint64(0xFF51AFD7ED558CCD)
        f = (f ^ (f >> np.uint64(32))) * np.uint64(0xC4CEB9FE1A85EC53)
        x, y = y ^ (f >> np.uint64(64 - high)), x
        low, high = high, low
    return (y << np.uint64(low)) | x


def epoch_order(seed: int, epoch: int, n: int, positions: ArrayLike | None = None) -> NDArray[np.int64]:
    """The rows at `positions` (by default all) in the order of epoch `epoch` over `n` rows.

    >>> sorted(epoch_order(seed=0, epoch=1, n=5).tolist())
    [0, 1, 2, 3, 4]
    """
    bits = max(2, (n - 1).bit_length())
    left, right = bits // 2, bits - bits // 2
    keys = _round_keys(seed, epoch)
    rows = (np.arange(n) if positions is None else np.asarray(positions)).astype(np.uint64)
    if rows.size and int(rows.max()) >= n:
        raise IndexError(f"position {int(rows.max())} is not in an epoch of {n} rows")
    rows = _network(rows, keys, left, right)
    while (outside := rows >= n).any():  # cycle walking: apply the permutation until the row is in [0, n)
        rows[outside] = _network(rows[outside], keys, left, right)
    return rows.astype(np.int64)
