"""The states of a trial: large ones are read some rows at a time, or on a grid of positions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from wholestep.compiler.ir.semantics.values import interpreter_dtype
from wholestep.compiler.ir.types import float32, float64
from wholestep.compiler.runtime.state.slot import Slot
from wholestep.compiler.runtime.state.state import State
from wholestep.compiler.runtime.state.storage import HostArray

Array = np.ndarray[Any, Any]

LARGE = 1 << 15  # states with more elements are compared on a grid
EDGE, AXIS = 17, 64  # grid positions along an axis: a vector register and one more at either end, and some between
ROWS = 1 << 20  # bytes that are read at a time


def is_large(shape: tuple[int, ...]) -> bool:
    return math.prod(shape) >= LARGE


def grid(shape: tuple[int, ...]) -> tuple[Array, ...]:
    """The compared positions of an array: the index of `array[grid(array.shape)]`."""
    return np.ix_(*map(positions, shape))


@lru_cache(maxsize=1024)
def positions(length: int) -> Array:
    """The grid positions along an axis."""
    if length <= AXIS:
        return np.arange(length)
    between = np.random.default_rng(length).choice(length - 2 * EDGE, AXIS - 2 * EDGE, replace=False) + EDGE
    return np.sort(np.concatenate([np.arange(EDGE), between, np.arange(length - EDGE, length)]))


class Large:
    """A large state in its stored dtype.  Reading makes a copy, which is not stored."""

    def __init__(self, slot: Slot) -> None:
        self._slot, self.shape, self.dtype = slot, shape_of(slot), slot.type.dtype.numpy

    def read(self) -> Array:
        return self._slot.read()

    def rows(self) -> Iterator[tuple[slice, Array]]:
        """All rows of a matrix, in chunks."""
        stored, (count, columns) = self._slot.newest, self.shape
        if not isinstance(stored, HostArray):
            yield slice(count), self.read()
            return
        several = max(1, ROWS // (columns * self.dtype.itemsize * stored.rows_at_once)) * stored.rows_at_once
        for at in range(0, count, several):
            some = slice(at, min(at + several, count))
            yield some, stored.read_rows(some.start, some.stop)

    def take(self, index: Array) -> Array:
        """The rows at the given indices."""
        rows = self._slot.newest.take(np.ix_(index.reshape(-1), *map(np.arange, self.shape[1:])))
        return rows.reshape(*index.shape, *self.shape[1:])


class InterpretedStates(Mapping[str, Array]):
    """The states of a trial for the interpreter, converted when they are read, except large ones."""

    def __init__(self, state: State) -> None:
        self._state = state

    def large(self, name: str) -> Large | None:
        """A large state, which is used in its stored dtype."""
        slot = self._state.slot(name)
        return Large(slot) if is_large(shape_of(slot)) and slot.type.dtype in (float32, float64) else None

    def __getitem__(self, name: str) -> Array:
        slot = self._state.slot(name)
        if is_large(shape_of(slot)):
            return slot.read()
        return slot.read().astype(interpreter_dtype(slot.type.dtype), copy=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.names)

    def __len__(self) -> int:
        return len(self._state.names)


def sample_state(slot: Slot) -> Array:
    """Read a state, or the grid of a large one."""
    shape = shape_of(slot)
    return slot.newest.take(grid(shape)) if is_large(shape) else slot.read()


def shape_of(slot: Slot) -> tuple[int, ...]:
    return tuple(int(e) for e in slot.type.shape)
