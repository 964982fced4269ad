"""Products of half elements against float64, the layout of their right operand, and conversions bit by bit."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.compiler.targets import own_library
from wholestep.compiler.backends.cpu.runtime.compiler import NATIVE, find_compiler
from wholestep.compiler.backends.cpu.runtime.library import Ahead, Gemm, Pairs, Part
from wholestep.compiler.backends.cpu.target import available_targets

Array = np.ndarray[Any, Any]
PANEL = 16
CANARY = -7777.0
HALVES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
ODD = [1, 2, 3, 5, 15, 16, 17, 33, 48, 49, 64, 70]
SHAPES = [
    *((m, n, k) for m in ODD[::3] for n in ODD[1::3] for k in ODD),
    (100, 33, 2050),
    (50, 70, 4099),
    (49, 20, 513),
]


BEST, *OTHERS = available_targets()


@pytest.fixture(scope="module", params=[BEST, *OTHERS[-2:]], ids=lambda target: target.name)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Part:
    return own_library(tmp_path_factory.mktemp("library"), request.param, "half").parts["half"]


def paired(library: Part, b: Array) -> Array:
    """[rows, columns] -> [columns/16][rows/2][16][2] through the library."""
    rows, columns = b.shape
    source = np.ascontiguousarray(b)
    out = np.full((-(-columns // PANEL), -(-rows // 2), PANEL, 2), 77, b.dtype)
    library.functions["pair_rows"](
        Pairs(rows, columns, source.ctypes.data, columns, PANEL, out.ctypes.data, out[0].size)
    )
    return out


def product(library: Part, a: Array, b: Array, layout: str, **more: Any) -> Array:
    (m, k), n = a.shape, b.shape[1]
    pairs = paired(library, b)
    if layout == "rows":
        stored, steps = np.ascontiguousarray(a), {"a_m": k, "a_k": 1, "a_kp": PANEL}
    elif layout == "turned panels":
        padded = np.zeros((-(-m // PANEL) * PANEL, k), a.dtype)
        padded[:m] = a
        stored = np.ascontiguousarray(padded.reshape(-1, PANEL, k).transpose(0, 2, 1))
        steps = {"a_m": 1, "a_k": PANEL, "a_kp": PANEL * PANEL, "a_mp": PANEL * k}
    elif layout == "transposed":
        stored, steps = np.ascontiguousarray(a.T), {"a_m": 1, "a_k": m, "a_kp": PANEL * m}
    else:
        padded = np.zeros((m, -(-k // PANEL) * PANEL), a.dtype)
        padded[:, :k] = a
        stored = np.ascontiguousarray(padded.reshape(m, -1, PANEL).transpose(1, 0, 2))
        steps = {"a_m": PANEL, "a_k": 1, "a_kp": PANEL * m}
    c = more.pop("c", np.full((m + 2, n + 3), CANARY, np.float32))
    fields = {
        "m": m,
        "n": n,
        "k": k,
        "b_k": 2 * PANEL,
        "b_p": pairs[0].size,
        "c_m": n + 3,
        "c_p": PANEL,
        **steps,
        **more,
    }
    gemm = library.functions["gemm_bf16" if a.dtype == HALVES["bfloat16"] else "gemm_f16"]
    gemm(Gemm(a=stored.ctypes.data, b=pairs.ctypes.data, c=c[1:, 1:].ctypes.data, **fields))
    result = c[1 : m + 1, 1 : n + 1].copy()
    c[1 : m + 1, 1 : n + 1] = CANARY
    assert (c == CANARY).all(), "something outside C was written"
    return result


def operands(shape: tuple[int, int, int], dtype: np.dtype[Any]) -> tuple[Array, Array]:
    m, n, k = shape
    rng = np.random.default_rng(m * 1000003 + n * 1009 + k)
    return rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("layout", ["rows", "transposed", "panels", "turned panels"])
def test_products_match_float64(library: Part, name: str, layout: str) -> None:
    for shape in SHAPES:
        a, b = operands(shape, HALVES[name])
        got = product(library, a, b, layout)
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        error = np.abs(got - wide_a @ wide_b) / (np.abs(wide_a) @ np.abs(wide_b))
        # Products of halves are exact in float32: what is left is one rounding for each of k sums.
        assert error.max() <= (shape[2] + 1) * np.finfo(np.float32).eps / 2, shape


@pytest.mark.parametrize("name", HALVES)
def test_bits_depend_neither_on_layouts_nor_on_how_a_product_is_cut(library: Part, name: str) -> None:
    a, b = operands((131, 77, 2100), HALVES[name])
    whole = product(library, a, b, "rows")
    for layout in ("transposed", "panels", "turned panels"):
        assert np.array_equal(product(library, a, b, layout), whole)
    for rows, columns in [(slice(3, 4), slice(16, 32)), (slice(0, 7), slice(0, 77)), (slice(5, 100), slice(64, 77))]:
        assert np.array_equal(product(library, a[rows], b[:, columns], "transposed"), whole[rows, columns])
    c = np.full((133, 80), CANARY, np.float32)
    product_of_first = product(library, a[:, :2048], b[:2048], "transposed")
    c[1:132, 1:78] = product_of_first
    assert np.array_equal(product(library, a[:, 2048:], b[2048:], "rows", c=c, add=1), whole)  # a sum goes on


@pytest.mark.parametrize("name", HALVES)
def test_special_values(library: Part, name: str) -> None:
    dtype = HALVES[name]
    tiny = ml_dtypes.finfo(dtype).smallest_subnormal
    rows = [[np.inf, 1, 2], [np.nan, 1, 1], [np.inf, -np.inf, 0], [0, 0, np.inf], [tiny, tiny, 0], [-0.0, 0, 0]]
    a = np.array(rows, dtype)
    b = np.ones((3, 17), dtype)
    got = product(library, a, b, "rows")
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    if name == "bfloat16" and not got[4].any():
        expected[4] = 0  # the instruction that multiplies pairs counts a subnormal number as zero
    assert np.array_equal(got, expected.astype(np.float32), equal_nan=True)
    # The zeros that fill an odd k and the last panel meet neither infinity nor NaN.
    assert product(library, np.array([[np.inf]], dtype), np.array([[2.0]], dtype), "rows").item() == np.inf


@pytest.mark.parametrize("name", HALVES)
def test_an_empty_sum_is_zero_and_nothing_fetched_ahead_matters(library: Part, name: str) -> None:
    a, b = operands((50, 70, 300), HALVES[name])
    memory = np.zeros(10_000, np.float32)
    ahead = (Ahead * 2)(Ahead(memory.ctypes.data, 3, 1000, 4096), Ahead(64, 5, 1, 1 << 40))
    for layout in ("rows", "transposed"):
        assert np.array_equal(product(library, a, b, layout, ahead=ahead, aheads=2), product(library, a, b, layout))
    assert (product(library, a, b, "rows", k=0) == 0).all()


def test_rows_side_by_side(library: Part) -> None:
    for rows, columns in [(1, 1), (2, 16), (5, 17), (8, 48)]:
        b = np.arange(1, rows * columns + 1, dtype=np.float32).reshape(rows, columns).astype(np.float16)
        expected = np.zeros((-(-rows // 2) * 2, -(-columns // PANEL) * PANEL), np.float16)
        expected[:rows, :columns] = b
        expected = expected.reshape(-1, 2, expected.shape[1] // PANEL, PANEL).transpose(2, 0, 3, 1)
        assert np.array_equal(paired(library, b), expected)


CONVERT = """
#include "half.h"
void to_bf16(uint16_t *y, const float *x, long n) { for (long i = 0; i < n; i++) y[i] = ws_bf16_f32(x[i]); }
void to_f16(uint16_t *y, const float *x, long n) { for (long i = 0; i < n; i++) y[i] = ws_f16_f32(x[i]); }
void from_bf16(float *y, const uint16_t *x, long n) { for (long i = 0; i < n; i++) y[i] = ws_f32_bf16(x[i]); }
void round_bf16(float *y, const float *x, long n) { for (long i = 0; i < n; i++) y[i] = ws_rounded_bf16(x[i]); }
void from_f16(float *y, const uint16_t *x, long n) { for (long i = 0; i < n; i++) y[i] = ws_f32_f16(x[i]); }
"""


@pytest.fixture(scope="module")
def convert(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("convert")
    (folder / "convert.c").write_text(CONVERT)
    command = [*find_compiler().command, "-O3", "-shared", "-fPIC", f"-iquote{NATIVE}", "convert.c", "-o", "convert.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "convert.so"))


def converted(function: Any, x: Array, dtype: Any) -> Array:
    out = np.zeros(x.shape, dtype)
    function(out.ctypes.data_as(ctypes.c_void_p), x.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(x.size))
    return out


def test_every_half_is_widened_exactly(convert: ctypes.CDLL) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    for function, dtype in ((convert.from_bf16, HALVES["bfloat16"]), (convert.from_f16, HALVES["float16"])):
        expected = bits.view(dtype).astype(np.float32)
        assert np.array_equal(converted(function, bits, np.float32), expected, equal_nan=True)


def test_floats_are_rounded_to_the_nearest_half(convert: ctypes.CDLL) -> None:
    """All halves, what lies around the middle between neighbours, random bits, and every exponent."""
    rng = np.random.default_rng(0)
    for name, function in (("bfloat16", convert.to_bf16), ("float16", convert.to_f16)):
        dtype = HALVES[name]
        halves = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float32)
        finite = np.sort(halves[np.isfinite(halves)])
        middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
        random = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
        around = [np.nextafter(middle, np.float32(way)) for way in (-np.inf, np.inf)]
        x = np.concatenate([halves, middle, *around, random]).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = x.astype(dtype)
        got = converted(function, x, np.uint16).view(dtype)
        nan = np.isnan(x)
        assert np.isnan(got[nan].astype(np.float32)).all()
        if name == "bfloat16":
            at_once = converted(convert.round_bf16, x, np.float32)
            assert np.array_equal(at_once.view(np.uint32), got.astype(np.float32).view(np.uint32))
        if name == "bfloat16":  # what is subnormal counts as zero
            small = np.abs(x) < np.finfo(np.float32).tiny
            expected[small] = np.copysign(np.float32(0), x[small]).astype(dtype)
        assert np.array_equal(got[~nan].view(np.uint16), expected[~nan].view(np.uint16))
