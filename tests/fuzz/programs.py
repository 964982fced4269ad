"""Random expressions as plain data: a list of operations over the values before them, once in our words, once in
torch's (NumPy's for whole numbers).

Leaves are operations too, so that a number names a value whatever is added or left out behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import torch

import wholestep as ws

Array = np.ndarray[Any, Any]
Extent = int | str
SIZES = {"batch": 5, "time": 3}
CORNERS = {
    "int32": (0, 1, -1, 2, -7, 2**31 - 1, -(2**31), 3, 65537),
    "int64": (0, 1, -1, 2, -7, 2**63 - 1, -(2**63), 3, 2**33 + 1),
    "uint8": (0, 1, 2, 7, 127, 128, 254, 255),
}


@dataclass(frozen=True)
class Op:
    """A name of the tables, the values it reads, and its options."""

    name: str
    args: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OpRow:
    """`draw` gives the values to read and the options, or None where nothing fits."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    draw: Callable[[Random, Pool], tuple[tuple[int, ...], dict[str, Any]] | None]
    share: int = 2


@dataclass
class Pool:
    """A program in the making: what was drawn so far, recorded and computed."""

    graph: ws.Graph
    dtype: str
    sizes: Mapping[str, int]
    keys: Random  # a leaf's numbers follow from its key
    magnitude: float = 1.0
    ops: list[Op] = field(default_factory=list)
    tensors: list[ws.Tensor] = field(default_factory=list)
    found: list[Any] = field(default_factory=list)
    prefix: str = ""  # of names, where several programs share a graph

    def leaf(self, shape: tuple[Extent, ...], kind: str = "input", dtype: str | None = None, below: int = 0) -> int:
        """A new leaf; `below`: whole numbers from 0 to it."""
        dtype = dtype or self.dtype
        if dtype in CORNERS or not all(isinstance(e, int) for e in shape):
            kind = "input"  # what is trained is of floats and has a fixed size
        options = {
            "shape": list(shape),
            "kind": kind,
            "dtype": dtype,
            "below": below,
            "key": self.keys.randrange(10**6),
        }
        self.run(Op("leaf", (), options), None)
        return len(self.ops) - 1

    def run(self, op: Op, row: OpRow | None) -> None:
        """Record and compute one operation."""
        if row is None:
            tensor, value = self._leaf(**op.options)
        else:
            tensor = row.ours(*(self.tensors[i] for i in op.args), **op.options)
            value = row.theirs(*(self.found[i] for i in op.args), **op.options)
        self.ops.append(op)
        self.tensors.append(tensor)
        self.found.append(value)

    def drop_last(self) -> None:
        for kept in (self.ops, self.tensors, self.found):
            kept.pop()

    def _leaf(self, shape: list[Extent], kind: str, dtype: str, below: int, key: int) -> tuple[ws.Tensor, Any]:
        array = self.numbers(tuple(e if isinstance(e, int) else self.sizes[e] for e in shape), dtype, below, key)
        name = f"{self.prefix}v{len(self.ops)} of {key}"  # different from the names of leaves that were removed again
        if kind == "parameter":
            tensor = self.graph.parameter(name, tuple(shape), init=array, dtype=dtype)
        else:
            tensor = self.graph.input(name, tuple(shape), dtype)
        if not np.issubdtype(array.dtype, np.floating):
            return tensor, array
        return tensor, torch.tensor(array.astype(np.float64), requires_grad=True)

    def numbers(self, shape: tuple[int, ...], dtype: str, below: int, key: int) -> Array:
        """Of a leaf: normal; of any magnitude and positive for "extreme" programs; corners for whole numbers."""
        rng = np.random.default_rng(key)
        if below:
            return rng.integers(0, below, shape).astype(dtype)
        if dtype in CORNERS:
            return rng.choice(np.array(CORNERS[dtype], dtype), shape)
        if self.magnitude > 1:
            exponent = rng.uniform(-math.log10(self.magnitude), math.log10(self.magnitude))
            return (10.0**exponent * rng.uniform(0.5, 2.0, shape)).astype(dtype)
        return rng.normal(size=shape).astype(dtype)

    # -- choosing ----------------------------------------------------------------------------------------------------

    def floats(self, rank: int = 0, most: int = 9) -> list[int]:
        return [i for i, t in enumerate(self.tensors) if t.dtype.is_float and rank <= t.ndim <= most]

    def of(self, dtype: str) -> list[int]:
        return [i for i, t in enumerate(self.tensors) if t.dtype.name == dtype]

    def a_float(self, rng: Random, rank: int = 0, most: int = 9) -> int | None:
        found = self.floats(rank, most)
        return rng.choice(found[-6:] if rng.random() < 0.7 else found) if found else None

    def shape(self, i: int) -> tuple[Any, ...]:
        return tuple(self.tensors[i].shape)

    def alike(self, i: int) -> list[int]:
        """Values of the same shape and dtype."""
        t = self.tensors[i]
        return [j for j, o in enumerate(self.tensors) if o.shape == t.shape and o.dtype == t.dtype]

    def same_or_new(self, rng: Random, i: int) -> int:
        """Another value of this shape; a new leaf where its shape has plain extents."""
        others = [j for j in self.alike(i) if j != i]
        if others and rng.random() < 0.7:
            return rng.choice(others)
        plain = as_extents(self.shape(i))
        return i if plain is None else self.leaf(plain, rng.choice(["input", "parameter"]))


def as_extents(shape: tuple[Any, ...]) -> tuple[Extent, ...] | None:
    """Numbers and names of symbols; None where an extent is a product or a sum of them."""
    plain: list[Extent] = []
    for e in shape:
        if isinstance(e, int):
            plain.append(e)
        elif str(e) in SIZES:
            plain.append(str(e))
        else:
            return None
    return tuple(plain)
