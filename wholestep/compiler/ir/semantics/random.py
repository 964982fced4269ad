"""Philox4x32-10, a counter-based random number generator: each number is a function of (seed, key, step, element).

Because no state is carried from one number to the next, any thread, rank or device computes the same bits.
The 32-bit word of one element, as `backends/cpu/native/philox.h` computes it in C:

    hash    = first 8 bytes, little-endian, of sha256(key as UTF-8)
    mixed   = hash ^ splitmix64(seed)         (so that seeds 0, 1, 2, ... differ in all bits)
    key     = (low 32 bits of mixed, high 32 bits of mixed)
    counter = (low and high 32 bits of element // 4, low and high 32 bits of step)
    word    = philox4x32_10(counter, key)[element % 4]
    uniform = (word >> 8) * 2^-24

`element` is the row-major linear index into the run-time shape.

Reference: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from wholestep.records import dataclass

Words = np.ndarray[Any, np.dtype[np.uint64]]  # 32-bit words, stored in 64 bits so that their products do not overflow
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
    """The 64-bit hash of a key string."""
    return int.from_bytes(hashlib.sha256(key.encode("utf-8")).digest()[:8], "little")


def splitmix64(seed: int) -> int:
    """64 well-mixed bits from a seed (Steele, Lea, Flood, "Fast splittable pseudorandom number generators")."""
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
    """The word of each element for a key given by its hash, as plans store it."""
    mixed = hash ^ splitmix64(seed)
    block, lane = elements >> np.uint64(2), elements & np.uint64(3)
    step_low, step_high = np.uint64(step & 0xFFFFFFFF), np.uint64(step >> 32 & 0xFFFFFFFF)
    counter = (block & _LOW, block >> _HALF, np.full_like(block, step_low), np.full_like(block, step_high))
    return np.choose(lane.astype(np.intp), philox(counter, (mixed & 0xFFFFFFFF, mixed >> 32)))


def consecutive_words(seed: int, key: str, step: int, count: int, first: int = 0) -> Words:
    """The words of elements first, ..., first + count - 1: each Philox block yields four consecutive words."""
    mixed = key_hash(key) ^ splitmix64(seed)
    start = first // 4
    block = np.arange(start, -(-(first + count) // 4), dtype=np.uint64)
    low, high = (np.full_like(block, np.uint64(step >> shift & 0xFFFFFFFF)) for shift in (0, 32))
    blocks = philox((block & _LOW, block >> _HALF, low, high), (mixed & 0xFFFFFFFF, mixed >> 32))
    return np.stack(blocks, axis=1).reshape(-1)[first - 4 * start :][:count]


def _unit(word: Words) -> Floats:
    return (word >> np.uint64(8)).astype(np.float64) * 2.0**-24


Draw = Callable[[int, int, int, int], Floats]  # (mixed key, step, first block, blocks) -> four uniforms per block
# (mixed key, first element (even), formula, out) -> the indices whose rounding NumPy must decide; None: too many
DrawNormals = Callable[[int, int, "Formula", Singles], Places | None]
_native: Draw | None = None
_native_normals: DrawNormals | None = None
MANY = 1 << 12  # elements; from this count on, a native call is faster despite its overhead


def register_native_generators(native: Draw, normals: DrawNormals | None = None) -> None:
    """Register native generators for large arrays: the same bits, ten times as fast."""
    global _native, _native_normals
    _native, _native_normals = native, normals


def uniform(seed: int, key: str, step: int, shape: tuple[int, ...], first: int = 0) -> Floats:
    """Uniform numbers in [0, 1) from element `first` on: multiples of 2^-24, exact in both float32 and float64."""
    count, block = prod(shape), first // 4
    if _native is None or count < MANY:
        return _unit(consecutive_words(seed, key, step, count, first)).reshape(shape)
    drawn = _native(key_hash(key) ^ splitmix64(seed), step, block, -(-(first + count) // 4) - block)
    return drawn[first - 4 * block :][:count].reshape(shape)


def uniform_of_hash(seed: int, hash: int, step: int, elements: Words) -> Floats:
    """The uniform numbers of these elements for a key given by its hash."""
    return _unit(words_of_hash(seed, hash, step, elements))


def normal(seed: int, key: str, step: int, shape: tuple[int, ...], first: int = 0) -> Floats:
    """Standard normal numbers from element `first` on, by the Box-Muller transform.

    Element e is sqrt(-2 ln(1 - u)) cos(2πv) of the uniforms u of element 2e and v of element 2e + 1.  1 - u is never 0,
    so every number is finite.
    """
    u, v = uniform(seed, key, step, (prod(shape), 2), 2 * first).T
    radius, angle = -u, 2.0 * np.pi * v
    np.log1p(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    radius *= np.cos(angle, out=angle)
    result: Floats = radius.reshape(shape)
    return result


@dataclass(frozen=True)
class Formula:
    """The affine map shift + scale * (lift + x) of a random number x: standard normal, or uniform in [0, 1).

    Computed in float64 without fused multiply-add.  The default is -0.0 because adding it preserves the sign of a zero.
    """

    normal: bool
    scale: float
    shift: float = -0.0
    lift: float = -0.0

    def of(self, x: Floats) -> Floats:
        return self.shift + self.scale * (self.lift + x)


def write_normals(out: Singles, seed: int, key: str, first: int, formula: Formula) -> None:
    """Fill `out` with the formula's values of the normal numbers from element `first` on, at step 0, in float32."""
    doubtful: Places | None = None
    if _native_normals is not None and first % 2 == 0 and len(out) >= MANY:
        doubtful = _native_normals(key_hash(key) ^ splitmix64(seed), first, formula, out)
    if doubtful is None:
        out[:] = formula.of(normal(seed, key, 0, out.shape, first))
        return
    for i in doubtful.tolist():
        out[i] = formula.of(normal(seed, key, 0, (1,), first + i))[0]
