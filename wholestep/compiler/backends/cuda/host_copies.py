"""Copies of large arrays to pinned memory by several threads: one of them has a part of what memory can give."""

from __future__ import annotations

from functools import partial

import numpy as np

from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.together import run_all

LARGE = 2 << 20  # bytes of an array for which threads are begun
PART = 1 << 20  # bytes that a thread takes at a time
MOST_THREADS = 4  # more of them would only wait for memory


def copy_array(to: AnyArray, array: AnyArray, threads: int) -> None:
    """Copy an array to one of its shape; both are contiguous."""
    flat, of = to.reshape(-1), array.reshape(-1)
    parts = _parts(of.size, of.itemsize)
    run_all([partial(np.copyto, flat[part], of[part]) for part in parts], min(threads, MOST_THREADS))


def gather_rows(to: AnyArray, array: AnyArray, rows: AnyArray, threads: int) -> None:
    """Copy rows of an array in another order; all are there."""

    def gather(part: slice) -> None:
        np.take(array, rows[part], axis=0, out=to[part], mode="clip")

    parts = _parts(len(rows), array[:1].nbytes)
    run_all([partial(gather, part) for part in parts], min(threads, MOST_THREADS))


def _parts(count: int, size: int) -> list[slice]:
    """Of so many things of a size."""
    step = max(1, PART // max(1, size))
    return [slice(start, start + step) for start in range(0, count, step)]
