"""The matrix product against NumPy, and its two promises: nothing outside is touched, no bit depends on the tiling."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiler.targets import own_library
from wholestep.compiler.backends.cpu.runtime.library import Ahead, Gemm, Library
from wholestep.compiler.backends.cpu.target import AVX2, AVX512, PORTABLE, available_targets

Array = np.ndarray[Any, Any]
PANEL = 16
CANARY = -7777.0
# The four before the last are large enough for A and B to be copied, with tails of one and of two vectors (on AVX-512 A
# is copied where its rows, transposed, are 2048 bytes apart); the rows of the last one's A are a multiple
# of 4096 bytes apart, and its sums are cut into blocks on every target.
SHAPES = [(1, 1, 1), (6, 16, 8), (5, 15, 3), (7, 17, 31), (16, 10, 128), (16, 128, 10), (13, 8, 5), (2, 4, 300),
          (32, 64, 257), (100, 33, 40), (3, 24, 16), (97, 7, 513), (8, 9, 512), (11, 12, 1),
          (300, 70, 100), (262, 84, 270), (258, 75, 64), (512, 67, 1100), (30, 90, 2048)]  # fmt: skip


def panels_of(x: Array) -> Array:
    """[rows, columns] -> [columns/16][rows][16], the missing columns filled with NaN: reading them would show."""
    rows, columns = x.shape
    padded = np.full((rows, -(-columns // PANEL) * PANEL), np.nan, x.dtype)
    padded[:, :columns] = x
    return np.ascontiguousarray(padded.reshape(rows, -1, PANEL).transpose(1, 0, 2))


def place_a(a: Array, layout: str) -> tuple[Array, dict[str, int]]:
    m, k = a.shape
    if layout == "rows":
        return np.ascontiguousarray(a), {"a_m": k, "a_k": 1, "a_kp": PANEL}
    if layout == "transposed":
        return np.ascontiguousarray(a.T), {"a_m": 1, "a_k": m, "a_kp": PANEL * m}
    return panels_of(a), {"a_m": PANEL, "a_k": 1, "a_kp": PANEL * m}


def place_b(b: Array, layout: str) -> tuple[Array, dict[str, int]]:
    k, n = b.shape
    if layout == "rows":
        return np.ascontiguousarray(b), {"b_k": n, "b_p": PANEL}
    return panels_of(b), {"b_k": PANEL, "b_p": PANEL * k}


def gemm(library: Library, dtype: Any, c: Array, **fields: Any) -> None:
    arguments = Gemm(c=c.ctypes.data, a=fields.pop("a").ctypes.data, b=fields.pop("b").ctypes.data, **fields)
    (library.gemm_f32 if dtype == np.float32 else library.parts["double"].functions["gemm_f64"])(arguments)


def product(library: Library, a: Array, b: Array, a_layout: str, b_layout: str, c_layout: str) -> Array:
    """a @ b through the kernel, with canaries around every row of C."""
    (m, k), n = a.shape, b.shape[1]
    stored_a, a_steps = place_a(a, a_layout)
    stored_b, b_steps = place_b(b, b_layout)
    count = -(-n // PANEL)
    if c_layout == "rows":
        c = np.full((m + 2, n + 3), CANARY, a.dtype)
        start, valid, steps = c[1:, 1:], c[1 : m + 1, 1 : n + 1], {"c_m": n + 3, "c_p": PANEL}
    else:
        c = np.full((count, m, PANEL), CANARY, a.dtype)
        start, valid, steps = c, c[-1, :, : n - PANEL * (count - 1)], {"c_m": PANEL, "c_p": m * PANEL}
    gemm(library, a.dtype, start, m=m, n=n, k=k, a=stored_a, b=stored_b, **a_steps, **b_steps, **steps)
    result = valid.copy() if c_layout == "rows" else c.transpose(1, 0, 2).reshape(m, -1)[:, :n].copy()
    valid[...] = CANARY
    outside = c if c_layout == "rows" else c[-1]  # the panels before the last have no outside
    assert (outside == CANARY).all(), "something outside C was written"
    return result


def fused_chain(a: Array, b: Array) -> Array:
    """The contract's own order, k = 0, 1, ...: long double holds a product exactly and rounds the sum harmlessly."""
    total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for k in range(a.shape[1]):
        exact = a[:, k : k + 1].astype(np.longdouble) * b[k].astype(np.longdouble)
        total = (total.astype(np.longdouble) + exact).astype(a.dtype)
    return total


VECTOR_TARGETS = [target for target in available_targets() if target != PORTABLE]


@pytest.fixture(scope="module", params=VECTOR_TARGETS or [PORTABLE], ids=lambda target: target.name)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return own_library(tmp_path_factory.mktemp("library"), request.param, "double")


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return own_library(tmp_path_factory.mktemp("library"), PORTABLE, "double")


def random_pair(shape: tuple[int, int, int], dtype: Any) -> tuple[Array, Array]:
    m, n, k = shape
    rng = np.random.default_rng(m * 1000003 + n * 1009 + k)
    return rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("a_layout", ["rows", "transposed", "panels"])
@pytest.mark.parametrize("b_layout", ["rows", "panels"])
@pytest.mark.parametrize("c_layout", ["rows", "panels"])
def test_products_match_numpy(library: Library, dtype: Any, a_layout: str, b_layout: str, c_layout: str) -> None:
    for shape in SHAPES:
        a, b = random_pair(shape, dtype)
        got = product(library, a, b, a_layout, b_layout, c_layout)
        scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
        wide = np.longdouble if dtype == np.float64 else np.float64
        error = np.abs(got - a.astype(wide) @ b.astype(wide)) / scale
        assert error.max() <= (shape[2] + 1) * np.finfo(dtype).eps / 2, shape


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_empty_sum_is_zero(library: Library, dtype: Any) -> None:
    c = np.full((3, 20), CANARY, dtype)
    empty = np.zeros(1, dtype)
    gemm(library, dtype, c, m=3, n=18, k=0, a=empty, b=empty, a_m=1, a_k=1, a_kp=16, b_k=1, b_p=16, c_m=20, c_p=16)
    assert (c[:, :18] == 0).all()
    assert (c[:, 18:] == CANARY).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("a_layout", ["rows", "transposed", "panels"])
def test_what_is_fetched_ahead_changes_nothing(library: Library, dtype: Any, a_layout: str) -> None:
    """More lines than steps, fewer, pieces of any size, none at all, and addresses that are nobody's."""
    memory = np.zeros(10_000, dtype)
    entries = [(memory.ctypes.data, 3, 1000, 4096), (memory.ctypes.data, 0, 64, 64), (64, 5, 1, 1 << 40)]
    ahead = (Ahead * len(entries))(*[Ahead(*entry) for entry in entries])
    for m, n, k in [(1, 1, 1), (16, 64, 256), (48, 64, 128), (50, 70, 1100)]:
        a, b = random_pair((m, n, k), dtype)
        stored_a, a_steps = place_a(a, a_layout)
        stored_b, b_steps = place_b(b, "panels")
        results = []
        for given in ({}, {"ahead": ahead, "aheads": len(entries)}):
            results.append(np.zeros((m, n), dtype))
            steps = {**a_steps, **b_steps, "c_m": n, "c_p": PANEL, **given}
            gemm(library, dtype, results[-1], m=m, n=n, k=k, a=stored_a, b=stored_b, **steps)
        assert np.array_equal(*results), (m, n, k)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_goes_on_from_what_is_there(library: Library, portable: Library, dtype: Any) -> None:
    """Two halves of k, the second added to the first: the bits of the whole."""
    a, b = random_pair((13, 34, 60), dtype)
    steps = {"a_m": 60, "a_k": 1, "a_kp": PANEL, "b_k": 34, "b_p": PANEL, "c_m": 34, "c_p": PANEL}
    for each in (library, portable):
        whole, halves = np.zeros((13, 34), dtype), np.full((13, 34), CANARY, dtype)
        gemm(each, dtype, whole, m=13, n=34, k=60, a=a, b=b, **steps)
        for k in (0, 32):
            gemm(each, dtype, halves, m=13, n=34, k=28 if k else 32, a=a[:, k:], b=b[k:], add=int(k > 0), **steps)
        assert whole.tobytes() == halves.tobytes()
        gemm(each, dtype, halves, m=13, n=34, k=0, a=a, b=b, add=1, **steps)
        assert whole.tobytes() == halves.tobytes()


@pytest.mark.skipif(not VECTOR_TARGETS, reason="needs fused multiply-adds")
@pytest.mark.parametrize("shape", [(7, 17, 31), (32, 20, 600), (3, 9, 257)])
def test_each_element_is_one_fused_chain(library: Library, shape: tuple[int, int, int]) -> None:
    a, b = random_pair(shape, np.float32)
    for a_layout in ("rows", "transposed", "panels"):
        assert np.array_equal(product(library, a, b, a_layout, "rows", "rows"), fused_chain(a, b))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("b_layout", ["rows", "panels"])
def test_bits_do_not_depend_on_how_a_product_is_cut(library: Library, dtype: Any, b_layout: str) -> None:
    a, b = random_pair((270, 77, 530), dtype)
    whole = product(library, a, b, "rows", b_layout, "rows")
    assert np.array_equal(product(library, a, b, "transposed", b_layout, "rows"), whole)
    for rows, columns in [(slice(3, 4), slice(16, 32)), (slice(0, 7), slice(0, 77)), (slice(5, 45), slice(64, 77)),
                          (slice(44, 45), slice(76, 77)), (slice(0, 45), slice(8, 16))]:  # fmt: skip
        for a_layout in ("rows", "transposed", "panels"):
            part = product(library, a[rows], np.ascontiguousarray(b[:, columns]), a_layout, b_layout, "rows")
            assert np.array_equal(part, whole[rows, columns])


def guarded(x: Array) -> Array:
    """A copy of x whose last byte is the last of a page; the next page cannot be touched."""
    page = mmap.PAGESIZE
    size = -(-x.nbytes // page) * page
    memory = mmap.mmap(-1, size + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    no_access = 0  # PROT_NONE
    assert libc.mprotect(ctypes.c_void_p(start + size), ctypes.c_size_t(page), no_access) == 0
    copy = np.frombuffer(memory, x.dtype, x.size, size - x.nbytes).reshape(x.shape)
    copy[...] = x
    return copy


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 9, 10, 12, 13, 15, 16, 17, 26, 67, 73])
@pytest.mark.parametrize("m", [1, 4, 40, 259, 512])
def test_nothing_is_read_or_written_beyond_the_last_element(library: Library, dtype: Any, n: int, m: int) -> None:
    a, b = random_pair((m, n, 70), dtype)
    a_copy = guarded(a)
    b_copy = guarded(b)
    c = guarded(np.zeros((m, n), dtype))
    steps = {"a_m": 70, "a_k": 1, "a_kp": 16, "b_k": n, "b_p": 16, "c_m": n, "c_p": 16}
    gemm(library, dtype, c, m=m, n=n, k=70, a=a_copy, b=b_copy, **steps)  # a touch outside would end the process
    assert np.allclose(c, a @ b, atol=1e-4)
    a_copy = guarded(np.ascontiguousarray(a.T))
    steps |= {"a_m": 1, "a_k": m, "a_kp": 16 * m}
    before = c.copy()
    gemm(library, dtype, c, m=m, n=n, k=70, a=a_copy, b=b_copy, **steps)
    assert np.array_equal(c, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_portable_kernels_add_in_the_same_order(portable: Library, dtype: Any) -> None:
    for shape in [(7, 17, 31), (3, 8, 300), (1, 1, 1)]:
        a, b = random_pair(shape, dtype)
        expected = np.zeros((shape[0], shape[1]), dtype)
        for k in range(shape[2]):
            expected = a[:, k : k + 1] * b[k] + expected
        for a_layout in ("rows", "transposed", "panels"):
            for b_layout in ("rows", "panels"):
                assert np.array_equal(product(portable, a, b, a_layout, b_layout, "rows"), expected)


@pytest.mark.skipif(AVX512 not in VECTOR_TARGETS, reason="needs a processor with AVX-512")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_avx2_and_avx512_give_the_same_bits(dtype: Any, tmp_path: Path) -> None:
    narrow, wide = (own_library(tmp_path, target, "double") for target in (AVX2, AVX512))
    for shape, a_layout, b_layout in itertools.product(SHAPES, ("rows", "transposed", "panels"), ("rows", "panels")):
        a, b = random_pair(shape, dtype)
        expected = product(narrow, a, b, a_layout, b_layout, "rows")
        assert np.array_equal(product(wide, a, b, a_layout, b_layout, "rows"), expected), shape
