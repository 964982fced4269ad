"""Limits OpenBLAS to one thread while compilers use the cores.

OpenBLAS splits each product among threads that wait for each other; with fewer free cores than threads they stall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np

PREFIX = "scipy_openblas"  # prefix of the file and the functions of OpenBLAS in NumPy's wheels
_changing = Lock()
_users = 0
_before = 0


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Use one OpenBLAS thread inside: while other processes use the cores, a product of 1 ms would take 100 ms.

    Nested and concurrent uses are counted; the last one restores the former number.  Another BLAS is left unchanged.
    """
    global _users, _before
    functions = _thread_counts()
    if functions is None:
        yield
        return
    get, set_to = functions
    with _changing:
        if _users == 0:
            _before = get()
            set_to(1)
        _users += 1
    try:
        yield
    finally:
        with _changing:
            _users -= 1
            if _users == 0:
                set_to(_before)


@cache
def _thread_counts() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """The functions that get and set OpenBLAS's number of threads; None if NumPy does not use its wheel's OpenBLAS."""
    for path in (Path(np.__file__).parent.parent / "numpy.libs").glob(f"lib{PREFIX}*"):
        library = CDLL(str(path))  # already loaded by NumPy: this returns the same library
        for suffix in ("64_", ""):
            names = [f"{PREFIX}_{verb}_num_threads{suffix}" for verb in ("get", "set")]
            if all(hasattr(library, name) for name in names):
                return library[names[0]], library[names[1]]
    return None
