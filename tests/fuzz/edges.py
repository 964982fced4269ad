"""The operations of random expressions at the edges: extreme magnitudes in float32, corners of whole numbers."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

import wholestep as ws
from tests.fuzz.programs import OpRow, Pool

Drawn = tuple[tuple[int, ...], dict[str, Any]] | None

# -- extreme magnitudes: positive numbers, so that nothing cancels -------------------------------------------------


def two(rng: Random, p: Pool) -> Drawn:
    i = p.a_float(rng)
    return None if i is None else ((i, p.same_or_new(rng, i)), {})


def three(rng: Random, p: Pool) -> Drawn:
    drawn = two(rng, p)
    return None if drawn is None else ((*drawn[0], p.same_or_new(rng, drawn[0][0])), {})


def by_number(rng: Random, p: Pool) -> Drawn:
    i = p.a_float(rng)
    return None if i is None else ((i,), {"c": float(f"{rng.uniform(1, 9):.2f}e{rng.randint(-32, 32)}")})


def last_axis(rng: Random, p: Pool) -> Drawn:
    i = p.a_float(rng, 1)
    return None if i is None else ((i,), {})


EXTREME: dict[str, OpRow] = {
    "times": OpRow(lambda x, c: x * c, lambda x, c: x * c, by_number, 6),
    "over": OpRow(lambda x, c: x / c, lambda x, c: x / c, by_number, 4),
    "under": OpRow(lambda x, c: c / x, lambda x, c: c / x, by_number, 2),
    "mul": OpRow(lambda x, y: x * y, lambda x, y: x * y, two, 6),
    "div": OpRow(lambda x, y: x / y, lambda x, y: x / y, two, 3),
    "add": OpRow(lambda x, y: x + y, lambda x, y: x + y, two, 3),
    "both": OpRow(lambda x, y, z: x * y + x * z, lambda x, y, z: x * y + x * z, three, 2),
    "square": OpRow(lambda x: x * x, lambda x: x * x, last_axis, 1),
    "root": OpRow(ws.sqrt, lambda x: x.sqrt(), last_axis, 1),
    "recip": OpRow(ws.recip, lambda x: 1 / x, last_axis, 1),
    "sum": OpRow(lambda x: x.sum(-1, keepdims=True), lambda x: x.sum(-1, keepdim=True), last_axis, 2),
    "mean": OpRow(lambda x: x.mean(-1), lambda x: x.mean(-1), last_axis, 1),
    "max": OpRow(lambda x: x.max(-1), lambda x: x.amax(-1), last_axis, 1),
}  # fmt: skip

# -- whole numbers: they wrap around, as NumPy's do ----------------------------------------------------------------


def whole(p: Pool) -> list[int]:
    return [i for i, t in enumerate(p.tensors) if t.dtype.is_integer]


def one_whole(rng: Random, p: Pool) -> Drawn:
    return (rng.choice(whole(p)),), {}


def two_whole(rng: Random, p: Pool) -> Drawn:
    i = rng.choice(whole(p))
    others = p.alike(i)
    return (i, rng.choice(others)), {}


def signed(rng: Random, p: Pool) -> Drawn:
    found = [i for i in whole(p) if p.tensors[i].dtype.name != "uint8"]
    return ((rng.choice(found),), {}) if found else None


def by_mod(rng: Random, p: Pool) -> Drawn:
    """The divisor is never 0."""
    i = rng.choice(whole(p))
    corners = [1, 2, 7, 255] if p.tensors[i].dtype.name == "uint8" else [1, -1, 2, -3, 7, -(2**31), 2**31 - 1]
    return (i,), {"c": rng.choice(corners)}


def whole_axis(rng: Random, p: Pool) -> Drawn:
    found = [i for i in whole(p) if p.tensors[i].ndim]
    i = rng.choice(found) if found else None
    return None if i is None else ((i,), {"axis": rng.randrange(p.tensors[i].ndim)})


def to_dtype(rng: Random, p: Pool) -> Drawn:
    """Of bools, and of whole numbers to wider ones or back."""
    found = [i for i, t in enumerate(p.tensors) if not t.dtype.is_float]
    return (rng.choice(found),), {"dtype": rng.choice(["int32", "int64", "int64"])}


def chosen(rng: Random, p: Pool) -> Drawn:
    bools = p.of("bool")
    if not bools:
        return None
    c = rng.choice(bools)
    fitting = [i for i in whole(p) if p.shape(i) == p.shape(c)]
    if not fitting:
        return None
    i = rng.choice(fitting)
    return (c, i, rng.choice(p.alike(i))), {}


def _mod(x: Any, c: int) -> Any:
    return ws.mod(x, np.asarray(c).astype(x.dtype.name))


def _remainder(x: Any, y: Any) -> Any:
    """By values of any sign, 1 where they are 0."""
    return ws.mod(x, ws.where(y == 0, np.ones((), x.dtype.name), y))


INTEGERS: dict[str, OpRow] = {
    "add": OpRow(lambda x, y: x + y, lambda x, y: x + y, two_whole),
    "sub": OpRow(lambda x, y: x - y, lambda x, y: x - y, two_whole),
    "mul": OpRow(lambda x, y: x * y, lambda x, y: x * y, two_whole),
    "maximum": OpRow(ws.maximum, np.maximum, two_whole),
    "minimum": OpRow(ws.minimum, np.minimum, two_whole),
    "less": OpRow(lambda x, y: x < y, np.less, two_whole),
    "equal": OpRow(lambda x, y: x == y, np.equal, two_whole),
    "neg": OpRow(lambda x: -x, np.negative, signed),
    "abs": OpRow(ws.abs, np.abs, signed),
    "sign": OpRow(ws.sign, np.sign, signed),
    "mod": OpRow(_mod, lambda x, c: np.mod(x, np.asarray(c).astype(x.dtype)), by_mod, 4),
    "remainder": OpRow(_remainder, lambda x, y: np.mod(x, np.where(y == 0, np.ones((), y.dtype), y)), two_whole, 3),
    "sum": OpRow(lambda x, axis: x.sum(axis), lambda x, axis: x.sum(axis, dtype=x.dtype), whole_axis),
    "max": OpRow(lambda x, axis: x.max(axis), lambda x, axis: x.max(axis), whole_axis),
    "min": OpRow(lambda x, axis: x.min(axis), lambda x, axis: x.min(axis), whole_axis, 4),
    "argmax": OpRow(lambda x, axis: x.argmax(axis), lambda x, axis: x.argmax(axis), whole_axis, 1),
    "cast": OpRow(lambda x, dtype: x.astype(dtype), lambda x, dtype: x.astype(dtype), to_dtype),
    "where": OpRow(ws.where, np.where, chosen),
    "square": OpRow(lambda x: x * x, lambda x: x * x, one_whole, 1),
}
