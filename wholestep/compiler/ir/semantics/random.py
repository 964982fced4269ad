"""Random numbers by Philox4x32-10, and the normal distribution.

Philox is a counter-based generator: each number is a function of (seed, key, step, element).

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
import math
from collections.abc import Callable
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
    count, block = math.prod(shape), first // 4
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
    u, v = uniform(seed, key, step, (math.prod(shape), 2), 2 * first).T
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


# -- the standard normal distribution ----------------------------------------------------------------------------


def normal_cdf(x: float) -> float:
    """The CDF: the probability that a standard normal variable is less than x."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def normal_quantile(p: Floats) -> Floats:
    """The inverse CDF at p in [0, 1], to 16 digits (Wichura, 1988)."""
    q = p - 0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = np.sqrt(-np.log(np.minimum(p, 1.0 - p)))
        middle = q * _ratio(_MIDDLE, 0.180625 - q * q)
        outer = np.where(tail <= 5.0, _ratio(_TAIL, tail - 1.6), _ratio(_FAR, tail - 5.0))
    return np.where(np.abs(q) <= 0.425, middle, np.copysign(outer, q))


def _ratio(table: tuple[tuple[float, ...], tuple[float, ...]], r: Floats) -> Floats:
    numerator, denominator = (np.polynomial.polynomial.polyval(r, row) for row in table)
    return np.asarray(numerator / denominator)


# Coefficients of numerator and denominator in ascending order of powers: algorithm AS 241, PPND16.
_MIDDLE = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)  # fmt: skip
_TAIL = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip
_FAR = (
    (6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
)  # fmt: skip
