"""Ranks of one process that make steps together: what they divide of a network, at random."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import wholestep as ws
from wholestep.compiler.passes.distribute import shard_optimizer
from wholestep.errors import WholestepError
from wholestep.nn.wrappers.tensor_parallel import mark_split

RANKS: dict[str, dict[str, Any]] = {
    "two ranks": {"shards": 2},
    "three ranks": {"shards": 3},
    "parts": {"shards": 3, "shard": "optimizer"},
    "layers": {"shards": (1, 2)},
    "grid": {"shards": (2, 2)},
    "grid of parts": {"shards": (2, 2), "shard": "optimizer"},
}
SMALL = 4  # elements of a state that is worth dividing; the states of these networks are small
# What is refused, and says what to do instead.
REFUSED = ("cannot be divided among workers", "has a row for each of the batch", "shard='optimizer' divides")


def ranks_of(changes: tuple[str, ...]) -> dict[str, Any]:
    """How many ranks make a step, and what they divide; the last of several."""
    return next((RANKS[name] for name in reversed(changes) if name in RANKS), {})


def mark(model: ws.nn.Module, changes: tuple[str, ...], seed: int) -> None:
    """Say of some parameters along which axis ranks divide them: any marking is right."""
    shards, rng = ranks_of(changes).get("shards"), Random(seed)
    if not isinstance(shards, tuple):
        return
    for owned in model.named_arrays().values():
        axes = [axis for axis, extent in enumerate(owned.shape) if extent % shards[1] == 0]
        if owned.trained and axes and rng.random() < 0.8:
            mark_split(owned, rng.choice(axes), "a layer", "elements")


@contextmanager
def dividing_small_states() -> Iterator[None]:
    """Let ranks divide states that are not worth it."""
    least, shard_optimizer.MIN_SHARDED_ELEMENTS = shard_optimizer.MIN_SHARDED_ELEMENTS, SMALL
    try:
        yield
    finally:
        shard_optimizer.MIN_SHARDED_ELEMENTS = least


def is_refused(error: WholestepError) -> bool:
    """Is it something that ranks do not divide?"""
    return any(said in str(error) for said in REFUSED)
