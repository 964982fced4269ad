"""NumPy's products beside compilers: OpenBLAS shares one among threads that wait for each other, and for a core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL
from functools import cache
from pathlib import Path
from threading import Lock

import numpy as np

PREFIX = "scipy_openblas"  # of the functions of the library that NumPy's wheels bring
_changing = Lock()
_users = 0
_before = 0


@contextmanager
def on_one_thread() -> Iterator[None]:
    """While other processes use the cores: a product of 1 ms would take 100.  Another BLAS is left as it is."""
    global _users, _before
    found = _thread_counts()
    if found is None:
        yield
        return
    get, set_to = found
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
    """Functions that tell and set how many threads OpenBLAS uses, where NumPy has it from its wheel."""
    for path in (Path(np.__file__).parent.parent / "numpy.libs").glob(f"lib{PREFIX}*"):
        library = CDLL(str(path))  # NumPy has loaded it: this is the same one
        for suffix in ("64_", ""):
            names = [f"{PREFIX}_{what}_num_threads{suffix}" for what in ("get", "set")]
            if all(hasattr(library, name) for name in names):
                return library[names[0]], library[names[1]]
    return None
