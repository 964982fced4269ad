"""Philox4x32-10: random numbers as a function of (seed, key, step, element), the same here and in the native runtime.

The word of one element, which `backends/cpu/native/philox.h` computes in C:

    hash    = first 8 bytes, little-endian, of sha256(key as UTF-8)
    mixed   = hash ^ splitmix64(seed)         (so that seeds 0, 1, 2, ... differ in all bits)
    key     = (low 32 bits of mixed, high 32 bits of mixed)
    counter = (low and high 32 bits of element // 4, low and high 32 bits of step)
    word    = philox4x32_10(counter, key)[element % 4]
    uniform = (word >> 8) * 2^-24

`element` is the row-major linear index at the run-time shape.

Reference: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from wholestep.records import dataclass

Words = np.ndarray[Any, np.dtype[np.uint64]]  # 32-bit words, held in 64 bits so that products do not overflow
Floats = np.ndarray[Any, np.dtype[np.float64]]
Singles = np.ndarray[Any, np.dtype[np.float32]]
Places = np.ndarray[Any, np.dtype[np.int64]]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_MASK64 = 2**64 - 1
_ROUNDS = 10


def key_hash(key: str) -> int:
    """The 64 bits that stand for a key string."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8")).digest()[:8], "little")


def splitmix64(seed: int) -> int:
    """Sixty-four well mixed bits of a seed (Steele, Lea, Flood, "Fast splittable pseudorandom number generators")."""
    x = (seed + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10: four words for each counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        a, b = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (b >> _HALF) ^ c1 ^ np.uint64(k0), b & _LOW, (a >> _HALF) ^ c3 ^ np.uint64(k1), a & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & 0xFFFFFFFF, (k1 + _KEY_STEPS[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def words(seed: int, key: str, step: int, elements: Words) -> Words:
    """The 32-bit word of each element."""
    return words_of_hash(seed, key_hash(key), step, elements)


def words_of_hash(seed: int, hash: int, step: int, elements: Words) -> Words:
    """The same, of a key that is given by its hash, as plans have it."""
    mixed = hash ^ splitmix64(seed)
    block, lane = elements >> np.uint64(2), elements & np.uint64(3)
    step_low, step_high = np.uint64(step & 0xFFFFFFFF), np.uint64(step >> 32 & 0xFFFFFFFF)
    counter = (block & _LOW, block >> _HALF, np.full_like(block, step_low), np.full_like(block, step_high))
    return np.choose(lane.astype(np.intp), philox(counter, (mixed & 0xFFFFFFFF, mixed >> 32)))


def consecutive_words(seed: int, key: str, step: int, count: int, first: int = 0) -> Words:
    """The words of elements first, ..., first + count - 1: one block of Philox for four of them."""
    mixed = key_hash(key) ^ splitmix64(seed)
    start = first // 4
    block = np.arange(start, -(-(first + count) // 4), dtype=np.uint64)
    low, high = (np.full_like(block, np.uint64(step >> shift & 0xFFFFFFFF)) for shift in (0, 32))
    made = philox((block & _LOW, block >> _HALF, low, high), (mixed & 0xFFFFFFFF, mixed >> 32))
    return np.stack(made, axis=1).reshape(-1)[first - 4 * start :][:count]


def _unit(word: Words) -> Floats:
    return (word >> np.uint64(8)).astype(np.float64) * 2.0**-24


Draw = Callable[[int, int, int, int], Floats]  # (key, mixed with the seed; step; block, count) -> four for each block
# (key, mixed with the seed; first element, even; formula; where to) -> where numbers have to be drawn here; None: all
DrawNormals = Callable[[int, int, "Formula", Singles], Places | None]
_native: Draw | None = None
_native_normals: DrawNormals | None = None
MANY = 1 << 12  # numbers from which on a native call is worth its arguments


def draw_by(native: Draw, normals: DrawNormals | None = None) -> None:
    """From now on many numbers are drawn by native code, which gives the same bits, ten times as fast."""
    global _native, _native_normals
    _native, _native_normals = native, normals


def uniform(seed: int, key: str, step: int, shape: tuple[int, ...], first: int = 0) -> Floats:
    """Numbers in [0, 1), multiples of 2^-24, which float32 and float64 both hold exactly; from element `first` on."""
    count, block = prod(shape), first // 4
    if _native is None or count < MANY:
        return _unit(consecutive_words(seed, key, step, count, first)).reshape(shape)
    drawn = _native(key_hash(key) ^ splitmix64(seed), step, block, -(-(first + count) // 4) - block)
    return drawn[first - 4 * block :][:count].reshape(shape)


def uniform_of_hash(seed: int, hash: int, step: int, elements: Words) -> Floats:
    """The numbers of these elements, under a key that is given by its hash."""
    return _unit(words_of_hash(seed, hash, step, elements))


def normal(seed: int, key: str, step: int, shape: tuple[int, ...], first: int = 0) -> Floats:
    """Standard normal numbers by Box and Muller: element e takes the uniforms u of 2e and v of 2e + 1 and is
    sqrt(-2 ln(1 - u)) cos(2πv).  1 - u is never 0, so every number is finite.  From element `first` on."""
    u, v = uniform(seed, key, step, (prod(shape), 2), 2 * first).T
    radius, turn = -u, 2.0 * np.pi * v
    np.log1p(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    radius *= np.cos(turn, out=turn)
    normal: Floats = radius.reshape(shape)
    return normal


@dataclass(frozen=True)
class Formula:
    """What becomes of a random number x, a standard normal one or one in [0, 1): shift + scale * (lift + x).

    In float64, each operation rounded by itself.  -0.0 is what adds nothing, whatever the sign of a zero.
    """

    normal: bool
    scale: float
    shift: float = -0.0
    lift: float = -0.0

    def of(self, x: Floats) -> Floats:
        return self.shift + self.scale * (self.lift + x)


def write_normals(out: Singles, seed: int, key: str, first: int, formula: Formula) -> None:
    """What becomes of the normal numbers of elements `first`, ... of step 0, rounded to float32."""
    some: Places | None = None
    if _native_normals is not None and first % 2 == 0 and len(out) >= MANY:
        some = _native_normals(key_hash(key) ^ splitmix64(seed), first, formula, out)
    if some is None:
        out[:] = formula.of(normal(seed, key, 0, out.shape, first))
        return
    for place in some.tolist():
        out[place] = formula.of(normal(seed, key, 0, (1,), first + place))[0]
