"""Sums over ranks: the order that group.h promises, for any number of ranks, also over what a rank gave."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from tests.distributed.support.trees import tree_sum
from wholestep.compiler.backends.cpu.runtime.compiler import compile_c
from wholestep.compiler.backends.cpu.target import available_targets

DRIVER = """
#include "group_sums.h"
__attribute__((visibility("default"))) void sum(void *to, const void *const *from, long count, int size, int dtype) {
  ws_tree_sum(to, from, count, size, dtype);
}
"""
DTYPES = ["float32", "float64", "int32", "int64"]


@lru_cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL(str(compile_c(DRIVER, target=available_targets()[0].name)))


@pytest.mark.parametrize("dtype", range(4), ids=DTYPES)
def test_sums_add_in_the_order_of_the_tree(dtype: int) -> None:
    generator = np.random.default_rng(dtype)
    for size, count in [(1, 7), (2, 1000), (3, 513), (4, 512), (5, 1), (7, 1025), (16, 600), (2, 0)]:
        parts: list[np.ndarray[Any, Any]] = [
            (generator.standard_normal(count) * 10.0 ** generator.integers(-3, 4)).astype(DTYPES[dtype])
            for _ in range(size)
        ]
        expected = tree_sum(parts)
        to = parts[-1]  # the sum may be written over what a rank gave
        pointers = (ctypes.c_void_p * size)(*[part.ctypes.data for part in parts])
        driver().sum(ctypes.c_void_p(to.ctypes.data), pointers, ctypes.c_long(count), size, dtype)
        assert to.tobytes() == expected.tobytes()


def test_the_order_differs_from_adding_one_after_the_other() -> None:
    parts = [np.float32([1.0]), np.float32([2.0**-24]), np.float32([2.0**-24]), np.float32([2.0**-24])]
    assert tree_sum(parts)[0] != parts[0] + parts[1] + parts[2] + parts[3]
