"""Functions along one axis: split, flip, cumulative sums, and rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from wholestep.compiler.frontend.control.scan import scan
from wholestep.compiler.frontend.functions.primitives import arange, concat, cos, gather, sin
from wholestep.compiler.frontend.functions.reductions import axis_and_size, normalize_axis
from wholestep.compiler.frontend.layers.segments import PackedSegments, current_segments
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import Dim, boolean, shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

__all__ = ["cumsum", "flip", "rotary", "split"]


def split(x: Tensor, sizes: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """x in consecutive pieces along an axis, as views of it.

    Args:
        sizes: the size of every piece (the last may be smaller), or a list of sizes.

    Example: `q, k, v = ws.split(together, width, axis=-1)`.
    """
    position, length = axis_and_size("split", x, axis)
    ends = _ends(length, sizes)
    before = (slice(None),) * position
    return tuple(x[(*before, slice(a, b))] for a, b in pairwise(ends))


def _ends(length: int, sizes: int | Sequence[int]) -> list[int]:
    """The boundaries of the pieces: 0, ..., length."""
    if isinstance(sizes, int):
        if sizes < 1:
            fail(OptionError, f"split: the size of a piece must be at least 1; received {sizes}.")
        return [*range(0, length, sizes), length]
    if min(sizes, default=0) < 0 or sum(sizes) != length:
        fail(ShapeError, f"split: sizes must add up to {length}, the length of the axis; received {list(sizes)}.")
    return [0, *accumulate(sizes)]


def flip(x: Tensor, axis: int | Sequence[int] = -1) -> Tensor:
    """x with its elements in reverse order along one or more axes.  Example: `ws.flip(images, -1)` mirrors images."""
    for a in (axis,) if isinstance(axis, int) else axis:
        position = normalize_axis("flip", x, a)
        length = x.shape[position]
        last_first = arange(length) * -1 + (as_tensor(length).astype("int32") - 1)
        x = gather(x, last_first if isinstance(length, Dim) else np.arange(length)[::-1].copy(), position)
    return x


def cumsum(x: Tensor, axis: int = -1, reverse: bool = False) -> Tensor:
    """y[i] = x[0] + ... + x[i] along an axis; `reverse` sums from the last element on.

    An axis of fixed size is summed in parallel blocks, to each of which the sum of the blocks before it is added; a
    symbolic axis is summed element by element.

    Example: `ws.cumsum(ws.constant([1.0, 2.0, 3.0]))` is [1, 3, 6].
    """
    position = normalize_axis("cumsum", x, axis)
    if x.dtype == boolean:
        x = x.astype("int32")
    order = [position, *(d for d in range(x.ndim) if d != position)]
    if isinstance(x.shape[position], int):
        last = [*order[1:], position]
        return _running_sums(x.permute(*last), reverse).permute(*(last.index(d) for d in range(x.ndim)))
    steps = x.permute(*order)

    def add(total: Tensor, element: Tensor) -> tuple[Tensor, Tensor]:
        total = total + element
        return total, total

    start = as_tensor(0).astype(x.dtype).expand(*steps.shape[1:]) if x.ndim > 1 else as_tensor(0).astype(x.dtype)
    _, sums = scan(add, start, steps, reverse=reverse)
    out: Tensor = sums.permute(*(order.index(d) for d in range(x.ndim)))
    return out


# Elements per block: within it, each running sum is a masked sum over the entire block, which needs BLOCK additions
# per element but has no serial dependency.
BLOCK = 64


def _running_sums(x: Tensor, reverse: bool, skip: int = 0) -> Tensor:
    """Prefix sums along the last axis that omit the last `skip` terms of each (1: exclusive prefix sums)."""
    size = x.shape[-1]
    assert isinstance(size, int)
    if size > BLOCK:
        return _blocked_sums(x, size, reverse, skip)
    target, source = np.arange(size)[:, None], np.arange(size)[None, :]
    included = source >= target + skip if reverse else source <= target - skip
    terms = x.reshape((*x.shape[:-1], 1, size))
    return where(included, terms, as_tensor(0).astype(x.dtype)).sum(-1)


def _blocked_sums(x: Tensor, size: int, reverse: bool, skip: int) -> Tensor:
    """Hierarchical prefix sums: within blocks, plus the total of all blocks before."""
    blocks = -(-size // BLOCK)
    low, high = (blocks * BLOCK - size, 0) if reverse else (0, blocks * BLOCK - size)
    rest = [(0, 0)] * (x.ndim - 1)
    padded = x if not low + high else _zero_pad(x, [*rest, (low, high)])
    parts = padded.reshape((*x.shape[:-1], blocks, BLOCK))
    before = _running_sums(parts.sum(-1), reverse, 1)  # the exclusive prefix sums of the blocks' totals
    out = (_running_sums(parts, reverse, skip) + before.reshape((*before.shape, 1))).reshape(padded.shape)
    return out[(..., slice(low, low + size))]


def _zero_pad(x: Tensor, amounts: Sequence[tuple[int, int]]) -> Tensor:
    attrs = at.PadAttrs(tuple(a for a, _ in amounts), tuple(b for _, b in amounts), 0.0)
    return Tensor(record("pad", [x.node], attrs), x.graph)


def rotary(
    x: Tensor,
    base: float = 10000.0,
    start: int | Tensor = 0,
    interleaved: bool = False,
    frequencies: Sequence[float] | None = None,
) -> Tensor:
    """Rotary positions (arXiv:2104.09864): pairs of features, rotated by an angle that grows with the position.

    At position t, pair i is rotated by t·base^(-2i/d), so that products of queries and keys depend on distances only.

    Args:
        x: (..., time, d), d even: queries or keys.
        start: the position of the first, an integer, or an integer scalar tensor.  In packed rows (`ws.data.Ragged`)
            positions begin at `start` in every sequence.
        interleaved: pairs are neighbours (2i, 2i + 1), as in the paper; else (i, i + d/2), as most models have it.
        frequencies: the angle per position of each of the d/2 pairs; base^(-2i/d) unless given.

    Example: `ws.attention(ws.rotary(q), ws.rotary(k), v, causal=True)`.
    """
    if x.ndim < 2 or not x.dtype.is_float:
        error = ShapeError if x.dtype.is_float else DTypeError
        fail(error, f"rotary needs floats of shape (..., time, d); received {x!r}.")
    width = x.shape[-1]
    if not isinstance(width, int) or width % 2:
        fail(ShapeError, f"rotary turns pairs of features: the last axis must be even; received {shape_text(x.shape)}.")
    if frequencies is not None and len(frequencies) != width // 2:
        fail(ShapeError, f"rotary: {width // 2} pairs need as many frequencies; received {len(frequencies)}.")
    angles = rotary_frequencies(width, float(base)) if frequencies is None else np.asarray(frequencies, np.float64)
    cosine, sine = _turns(x, angles, start)
    if interleaved:
        pairs = x.reshape((*x.shape[:-1], width // 2, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        rotated = [t.reshape((*t.shape, 1)) for t in (a * cosine - b * sine, b * cosine + a * sine)]
        return concat(rotated, -1).reshape(x.shape)
    a, b = split(x, width // 2, -1)
    return concat([a * cosine - b * sine, b * cosine + a * sine], -1)


def rotary_frequencies(width: int, base: float) -> np.ndarray[Any, Any]:
    """base^(-2i/width): the angle per position of each pair of features."""
    frequencies: np.ndarray[Any, Any] = base ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    return frequencies


def _turns(x: Tensor, frequencies: np.ndarray[Any, Any], start: int | Tensor) -> tuple[Tensor, Tensor]:
    """(time, width / 2) cosines and sines; computed at trace time if the positions are known.

    In packed rows, where positions begin anew in every sequence, (batch, 1, ..., time, width / 2).
    """
    time, segments = x.shape[-2], current_segments()
    if segments is not None:
        angle = _packed_positions(x, segments, start) * as_tensor(frequencies)
        return cos(angle).astype(x.dtype), sin(angle).astype(x.dtype)
    if isinstance(time, int) and isinstance(start, int):
        angles = np.outer(np.arange(start, start + time, dtype=np.float64), frequencies)
        return as_tensor(np.cos(angles).astype(x.dtype.numpy)), as_tensor(np.sin(angles).astype(x.dtype.numpy))
    first = float(start) if isinstance(start, int) else start.astype("float64")
    positions = (arange(time, "float64") + first).reshape((time, 1))
    angle = positions * as_tensor(frequencies)
    return cos(angle).astype(x.dtype), sin(angle).astype(x.dtype)


def _packed_positions(x: Tensor, segments: PackedSegments, start: int | Tensor) -> Tensor:
    if x.ndim < 3 or x.shape[0] != segments.batch or x.shape[-2] != segments.time:
        expected = f"(batch, ..., {segments.time}, d)"
        fail(ShapeError, f"rotary: packed rows are {expected}; received {shape_text(x.shape)}.")
    inner = (1,) * (x.ndim - 3)
    return (segments.positions + start).reshape((segments.batch, *inner, segments.time, 1)).astype("float64")
