"""Elementary functions: error in units of the last place, the ends of their domains, vector bits equal scalar bits."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from wholestep.compiler.backends.cpu.runtime.compiler import compile_c
from wholestep.compiler.backends.cpu.target import AVX2, AVX512, available_targets
from wholestep.compiler.target import Target

Array = np.ndarray[Any, Any]
INF, NAN = math.inf, math.nan

DRIVER = """
#include "ws.h"
#include "math.h"
#define EXPORT __attribute__((visibility("default")))
#define UNARY(name, t, real) \\
  EXPORT void name##_##t(const real *x, real *y, long n) { \\
    _Pragma("omp simd") for (long i = 0; i < n; i++) y[i] = ws_##name##_##t(x[i]); } \\
  EXPORT void scalar_##name##_##t(const real *x, real *y, long n) { \\
    for (long i = 0; i < n; i++) { y[i] = ws_##name##_##t(x[i]); __asm__ volatile("" ::: "memory"); } }
#define BINARY(name, t, real) \\
  EXPORT void name##_##t(const real *x, const real *z, real *y, long n) { \\
    _Pragma("omp simd") for (long i = 0; i < n; i++) y[i] = ws_##name##_##t(x[i], z[i]); } \\
  EXPORT void scalar_##name##_##t(const real *x, const real *z, real *y, long n) { \\
    for (long i = 0; i < n; i++) { y[i] = ws_##name##_##t(x[i], z[i]); __asm__ volatile("" ::: "memory"); } }
#define BOTH(kind, name) kind(name, f32, float) kind(name, f64, double)
BOTH(UNARY, abs) BOTH(UNARY, sign) BOTH(UNARY, floor)
BOTH(BINARY, pow) BOTH(BINARY, max) BOTH(BINARY, min) BOTH(BINARY, mod)
EXPORT float tree_f32(const float *x) { return ws_tree16_f32(x); }
EXPORT double tree_f64(const double *x) { return ws_tree16_f64(x); }
EXPORT int64_t tree_i64(const int64_t *x) { return ws_tree16_i64(x); }
EXPORT void philox(const uint32_t *counter, const uint32_t *key, uint32_t *out) {
  ws_words c = {{counter[0], counter[1], counter[2], counter[3]}};
  c = ws_philox4x32(c, key[0], key[1]);
  for (int i = 0; i < 4; i++) out[i] = c.x[i];
}
EXPORT uint64_t node_key(uint64_t seed, uint64_t key) { return ws_philox_key(seed, key); }
EXPORT void words(uint64_t seed, uint64_t step, uint64_t key, uint64_t first, long n, uint32_t *out) {
  _Pragma("omp simd") for (long i = 0; i < n; i++) out[i] = ws_philox_u32(seed, step, key, first + (uint64_t)i);
}
EXPORT float uniform_f32(uint64_t s, uint64_t t, uint64_t k, uint64_t e) { return ws_uniform_f32(s, t, k, e); }
EXPORT double uniform_f64(uint64_t s, uint64_t t, uint64_t k, uint64_t e) { return ws_uniform_f64(s, t, k, e); }
"""


def driver() -> str:
    return DRIVER + "\n".join(f"BOTH(UNARY, {name})" for name in FUNCTIONS)


@pytest.fixture(scope="module", params=available_targets(), ids=lambda target: target.name)
def native(request: pytest.FixtureRequest) -> ctypes.CDLL:
    target: Target = request.param
    return ctypes.CDLL(str(compile_c(driver(), target=target.name)))


def pointer(x: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def apply(native: ctypes.CDLL, name: str, *arguments: Array) -> Array:
    """The function on arrays; the vectorised loop and the scalar one must agree in every bit."""
    suffix = "f32" if arguments[0].dtype == np.float32 else "f64"
    contiguous = [np.ascontiguousarray(x) for x in arguments]
    results = []
    for prefix in ("", "scalar_"):
        y = np.empty_like(contiguous[0])
        inputs = [pointer(x) for x in contiguous]
        getattr(native, f"{prefix}{name}_{suffix}")(*inputs, pointer(y), ctypes.c_long(y.size))
        results.append(y)
    vector, scalar = results
    bits = np.uint32 if suffix == "f32" else np.uint64
    assert ((vector.view(bits) == scalar.view(bits)) | (np.isnan(vector) & np.isnan(scalar))).all()
    return vector


def samples(dtype: Any) -> Array:
    """All magnitudes (random bits), and the range where training lives."""
    rng = np.random.default_rng(0)
    bits = np.uint32 if dtype == np.float32 else np.uint64
    patterns = rng.integers(0, np.iinfo(bits).max, 100_000, dtype=bits).view(dtype)
    edges = [
        0.0,
        -0.0,
        INF,
        -INF,
        NAN,
        1,
        -1,
        88.72,
        88.73,
        -87.3,
        -87.4,
        709.78,
        709.79,
        -708.3,
        -708.4,
        128,
        -126,
        1024,
    ]
    with np.errstate(over="ignore"):
        ranges = [np.linspace(-100, 100, 50_001), np.linspace(-2, 2, 50_001), np.linspace(-750, 750, 20_001), edges]
        return np.concatenate([patterns, *[np.asarray(r, dtype) for r in ranges]])


def ulps(got: Array, exact: Array) -> Array:
    """|got - exact| in units of got's last place; results below the smallest normal number may be flushed."""
    dtype = got.dtype.type
    tiny = np.finfo(dtype).tiny
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(dtype)
        unit = np.maximum(np.spacing(np.abs(rounded)), np.spacing(tiny)).astype(exact.dtype)
        error = np.abs(got.astype(exact.dtype) - exact) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    flushed = (np.abs(exact) < tiny) & (got == 0)
    return np.where(same | flushed, 0.0, error)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def erf(x: Array) -> Array:
    return np.array([math.erf(v) for v in x.astype(np.float64)], x.dtype)


# name -> (reference, allowed ulps in float32, in float64); None: the C library's, or exact elsewhere
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float, float | None]] = {
    "exp": (np.exp, 1.2, 1.2),
    "exp2": (np.exp2, 1.2, 1.2),
    "log": (np.log, 1.0, 1.0),
    "log2": (np.log2, 1.0, 1.0),
    "log1p": (np.log1p, 1.0, 1.0),
    "expm1": (np.expm1, 2.0, 2.0),
    "tanh": (np.tanh, 2.6, 2.6),
    "sigmoid": (sigmoid, 2.4, 2.4),
    "sin": (np.sin, 0.6, None),
    "cos": (np.cos, 0.6, None),
    "erf": (erf, 2.6, None),
    "atan": (np.arctan, 2.1, 2.0),
    "sqrt": (np.sqrt, 0.501, 0.501),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_error_in_ulps(native: ctypes.CDLL, name: str, dtype: Any) -> None:
    reference, *limits = FUNCTIONS[name]
    limit = limits[dtype == np.float64]
    x = samples(dtype)
    if name in ("sin", "cos"):
        x = x[~(np.abs(x) > 1e6) | np.isinf(x)]
    if limit is None:
        x, limit = x[::50], 1.0
        exact = np.array(reference(x), dtype)
    else:
        exact = reference(x.astype(np.float64 if dtype == np.float32 else np.longdouble))
    got = apply(native, name, x)
    error = ulps(got, exact)
    worst = error.argmax()
    assert error[worst] <= limit, f"{name}({x[worst]!r}) = {got[worst]!r}, expected {exact[worst]!r}"
    zeros = (got == 0) & (exact == 0)
    assert np.array_equal(np.signbit(got[zeros]), np.signbit(exact[zeros]))


@pytest.mark.skipif(AVX512 not in available_targets(), reason="needs a processor with AVX-512")
@pytest.mark.parametrize("lanes", ["", " simdlen(16)"], ids=["default", "16 lanes"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_avx2_and_avx512_give_the_same_bits(lanes: str) -> None:
    source = driver().replace("omp simd", "omp simd" + lanes)
    narrow, wide = (ctypes.CDLL(str(compile_c(source, target=target.name))) for target in (AVX2, AVX512))
    for dtype, name in itertools.product((np.float32, np.float64), FUNCTIONS):
        x = samples(dtype)
        expected, got = apply(narrow, name, x), apply(wide, name, x)
        assert np.array_equal(got, expected, equal_nan=True), name
        assert np.array_equal(np.signbit(got[got == 0]), np.signbit(expected[expected == 0])), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_exact_functions_equal_numpy(native: ctypes.CDLL, dtype: Any) -> None:
    x = samples(dtype)
    for name, reference in {"abs": np.abs, "floor": np.floor, "sign": np.sign}.items():
        assert np.array_equal(apply(native, name, x), reference(x), equal_nan=True), name


def pairs(dtype: Any) -> tuple[Array, Array]:
    values = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 5.5, 1e30, -1e30, INF, -INF, NAN], dtype)
    x, y = np.meshgrid(values, values)
    return x.ravel(), y.ravel()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["max", "min", "mod", "pow"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pairs_of_special_values_equal_numpy(native: ctypes.CDLL, name: str, dtype: Any) -> None:
    x, y = pairs(dtype)
    reference = {"max": np.maximum, "min": np.minimum, "mod": np.mod, "pow": np.power}[name]
    got, expected = apply(native, name, x, y), reference(x, y)
    assert ulps(got, expected.astype(np.float64)).max() <= (1 if name == "pow" else 0)
    number = ~np.isnan(got) & (name not in ("max", "min"))  # the sign of max(0, -0) is anyone's
    assert np.array_equal(np.signbit(got[number]), np.signbit(expected[number]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pow_and_mod_on_ordinary_numbers(native: ctypes.CDLL) -> None:
    rng = np.random.default_rng(1)
    x = np.exp(3 * rng.standard_normal(100_000)).astype(np.float32)
    y = (4 * rng.standard_normal(100_000)).astype(np.float32)
    assert ulps(apply(native, "pow", x, y), np.power(x.astype(np.float64), y.astype(np.float64))).max() <= 0.6
    assert np.array_equal(apply(native, "mod", y, x), np.mod(y, x))


def test_lanes_are_combined_in_the_fixed_order(native: ctypes.CDLL) -> None:
    rng = np.random.default_rng(2)
    for name, dtype, result in (("f32", np.float32, ctypes.c_float), ("f64", np.float64, ctypes.c_double)):
        function = native[f"tree_{name}"]
        function.restype = result
        lanes = rng.standard_normal(16).astype(dtype)
        s = lanes
        while s.size > 1:
            s = s[: s.size // 2] + s[s.size // 2 :]
        assert dtype(function(pointer(lanes))) == s[0]
    integers = rng.integers(-(2**60), 2**60, 16)
    native.tree_i64.restype = ctypes.c_int64
    assert native.tree_i64(pointer(integers)) == int(integers.astype(object).sum() + 2**63) % 2**64 - 2**63


# Known answers of Philox4x32-10, published with Random123.
ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def hexadecimal(text: str) -> Array:
    return np.array([int(word, 16) for word in text.split()], np.uint32)


@pytest.mark.parametrize(("counter", "key", "expected"), ANSWERS)
def test_philox_known_answers(native: ctypes.CDLL, counter: str, key: str, expected: str) -> None:
    out = np.empty(4, np.uint32)
    native.philox(pointer(hexadecimal(counter)), pointer(hexadecimal(key)), pointer(out))
    assert np.array_equal(out, hexadecimal(expected))


def words(native: ctypes.CDLL, seed: int, step: int, key: int, first: int, count: int) -> Array:
    out = np.empty(count, np.uint32)
    native.words(*[ctypes.c_uint64(v) for v in (seed, step, key, first)], ctypes.c_long(count), pointer(out))
    return out


def test_a_random_word_belongs_to_its_element(native: ctypes.CDLL) -> None:
    native.node_key.restype = ctypes.c_uint64
    seed, step, key = 7, 2**33 + 5, 0x123456789ABCDEF0
    mixed = native.node_key(ctypes.c_uint64(seed), ctypes.c_uint64(key))
    got = words(native, seed, step, key, 0, 40)
    for element in range(40):
        counter = np.array([element // 4, 0, step & 0xFFFFFFFF, step >> 32], np.uint32)
        out = np.empty(4, np.uint32)
        native.philox(pointer(counter), pointer(np.array([mixed & 0xFFFFFFFF, mixed >> 32], np.uint32)), pointer(out))
        assert got[element] == out[element % 4]
    assert np.array_equal(words(native, seed, step, key, 3, 30), got[3:33])


def test_seed_step_and_key_all_matter(native: ctypes.CDLL) -> None:
    streams = [
        words(native, *state, 0, 64).tobytes() for state in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 2**32, 0)]
    ]
    assert len(set(streams)) == 5


def test_uniform_numbers_are_24_bits_of_the_word(native: ctypes.CDLL) -> None:
    word = words(native, 1, 2, 3, 0, 100)
    native.uniform_f32.restype, native.uniform_f64.restype = ctypes.c_float, ctypes.c_double
    for element in range(100):
        state = [ctypes.c_uint64(v) for v in (1, 2, 3, element)]
        assert native.uniform_f32(*state) == native.uniform_f64(*state) == (int(word[element]) >> 8) * 2.0**-24
