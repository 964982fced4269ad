"""Copies of large arrays by several threads, in C where there is a compiler."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.runtime.test_host import NO_COMPILER, batches, build
from wholestep.compiler.backends.cpu.runtime.compiler import find_compiler
from wholestep.compiler.backends.cpu.runtime.library import build_library
from wholestep.compiler.backends.cpu.target import available_targets
from wholestep.compiler.backends.cuda.driver import host_copies
from wholestep.compiler.backends.cuda.driver.host_copies import HostCopies
from wholestep.compiler.runtime.cache.content_store import open_cache

FENCE = 77  # a byte that nobody may write over
WAYS = [ws.CompileOptions(), NO_COMPILER]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def room(size: int, start: int) -> tuple[Bytes, Bytes]:
    """Bytes from a place on, and all of those around them."""
    around = np.full(size + start + 64, FENCE, np.uint8)
    return around[start : start + size], around


@pytest.mark.parametrize("target", [target.name for target in available_targets()])
def test_every_target_copies_any_number_of_bytes_to_any_place(target: str) -> None:
    options = ws.CompileOptions()
    path = build_library(open_cache(options), find_compiler(options.compiler_command), target, "copy")
    copy = ctypes.CDLL(os.fspath(path)).ws_copy_rows
    copy.argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_long] * 3, ctypes.c_int]
    rng = np.random.default_rng(0)
    for size in (0, 1, 63, 64, 127, 128, 129, 191, 192, 1000, 5000):
        for start in (0, 1, 17, 63):
            of, (to, around) = rng.integers(0, 50, size).astype(np.uint8), room(size, start)
            copy(to.ctypes.data, of.ctypes.data, None, size, 1, 700, 20)
            np.testing.assert_array_equal(to, of)
            assert (around == FENCE).sum() == start + 64


@pytest.mark.parametrize("options", WAYS, ids=["in C", "in Python"])
@pytest.mark.parametrize("threads", [1, 3])
def test_arrays_and_rows_are_the_same_both_ways(
    options: ws.CompileOptions, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "PART", 5000)
    monkeypatch.setattr(host_copies, "LONG_ROW", 100)
    copies, rng = HostCopies(threads, options), np.random.default_rng(1)
    for columns in (1, 24, 25, 700, 3000):
        array = rng.standard_normal((40, columns), np.float32)
        to, rows = np.zeros_like(array), rng.permutation(40)[:33]
        copies.copy(to, array)
        np.testing.assert_array_equal(to, array)
        copies.copy(to, array[:, ::-1])
        np.testing.assert_array_equal(to, array[:, ::-1])
        for kind in (np.int64, np.uint64):
            copies.gather(to[:33], array, rows.astype(kind))
            np.testing.assert_array_equal(to[:33], array[rows])
    assert isinstance(copies._native_copy().result(), str) == (options is NO_COMPILER)


def test_a_gpu_needs_no_c_compiler_and_the_report_says_what_that_costs(
    gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "LARGE", 8000)
    monkeypatch.setattr(host_copies, "_coming", {})
    (batch,) = batches(8)
    session = build("cuda", NO_COMPILER)
    assert float(session.step(**batch)) == pytest.approx(float(build("reference").step(**batch)), rel=1e-5)
    expected = "large inputs are copied by Python threads, half as fast as in C: the C compiler 'no-such-compiler' was"
    assert any(note.startswith(expected) for note in session.report().notes)
    monkeypatch.setattr(host_copies, "_coming", {})
    session = build("cuda")
    session.step(**batch)
    assert not any("Python" in note for note in session.report().notes)
