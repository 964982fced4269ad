"""Multi-threaded copies of large arrays to pinned memory: one thread uses only a part of the memory bandwidth.

A C function copies with non-temporal stores.  A GPU needs no C compiler: without one, NumPy copies in Python threads,
which takes about twice as long and is noted in the report.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextvars import Context
from ctypes import c_int, c_long, c_void_p
from functools import partial
from typing import Any

import numpy as np

from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.background import Background, run_all
from wholestep.compiler.runtime.cache.content_store import open_cache
from wholestep.errors import CompilerError
from wholestep.options import CompileOptions

# bytes: smallest array that several threads copy; a single one needs 0.4 ms for 3 MB if the caches are small
LARGE = 2 << 20
LONG_ROW = 2 << 10  # bytes of a row; NumPy gathers shorter rows as fast
PART = 512 << 10  # bytes per work item of a thread
MOST_THREADS = 8  # more threads would only wait for memory
MOST_OF_PYTHON = 4  # more Python threads would only wait for each other
Native = Callable[..., Any]  # ws_copy_rows of copy.c

# Compiler options -> the compiled function, or the reason why it is not available.  A background thread compiles it.
_coming: dict[tuple[bool, str | None, str | None], Background[Native | str]] = {}


class HostCopies:
    """Copies large arrays of a program.  The C function is compiled in the background, once per machine."""

    def __init__(self, threads: int, options: CompileOptions) -> None:
        self._threads, self._options = threads, options

    def takes(self, size: int) -> bool:
        """Is an array of this many bytes worth several threads?"""
        return self._threads > 1 and size >= LARGE

    def prepare(self) -> None:
        """Starts to load or compile the C function."""
        self._native_copy()

    def _native_copy(self) -> Background[Native | str]:
        options = self._options
        key = options.cache, options.cache_folder, options.compiler_command
        if key not in _coming:
            # An empty context: its time spans do not belong to the build that happens to need it first.
            _coming[key] = Background(lambda: Context().run(_compile_native, options), patient=True)
        return _coming[key]

    def copy(self, to: AnyArray, array: AnyArray) -> None:
        """Copies an array to a contiguous one of its shape."""
        native, flat, of = self._native_copy().result(), to.reshape(-1), array.reshape(-1)
        if isinstance(native, str):
            parts = _parts(of.size, of.itemsize)
            run_all([partial(np.copyto, flat[part], of[part]) for part in parts], min(self._threads, MOST_OF_PYTHON))
        else:
            native(flat.ctypes.data, of.ctypes.data, None, of.nbytes, 1, PART, self._workers(of.nbytes))

    def gather(self, to: AnyArray, array: AnyArray, rows: AnyArray) -> None:
        """Copies rows of a contiguous array in the order of `rows`, which are all in range."""
        size = array[:1].nbytes
        native = self._native_copy().result() if size >= LONG_ROW else ""

        def take(part: slice) -> None:
            np.take(array, rows[part], axis=0, out=to[part], mode="clip")

        if isinstance(native, str):
            run_all([partial(take, part) for part in _parts(len(rows), size)], min(self._threads, MOST_OF_PYTHON))
        else:
            at, step = np.ascontiguousarray(rows, np.int64), max(1, PART // max(1, size))
            addresses = to.ctypes.data, array.ctypes.data, at.ctypes.data
            native(*addresses, len(rows), size, step, self._workers(len(rows) * size))

    def _workers(self, size: int) -> int:
        return min(self._threads, MOST_THREADS, -(-size // PART))


def _parts(count: int, size: int) -> list[slice]:
    """Slices of `count` elements of `size` bytes."""
    step = max(1, PART // max(1, size))
    return [slice(start, start + step) for start in range(0, count, step)]


def _compile_native(options: CompileOptions) -> Native | str:
    """The C function, or the reason why it is not available."""
    from wholestep.compiler.backends.cpu.runtime.compiler import (
        find_compiler,
    )  # imported here, since most steps copy little
    from wholestep.compiler.backends.cpu.runtime.library import build_library
    from wholestep.compiler.backends.cpu.target import detect_target

    try:
        compiler = find_compiler(options.compiler_command)
        path = build_library(open_cache(options), compiler, detect_target().name, "copy")
        native = ctypes.CDLL(os.fspath(path)).ws_copy_rows
    except (CompilerError, OSError) as error:
        return str(error)
    native.restype, native.argtypes = None, [*[c_void_p] * 3, *[c_long] * 3, c_int]
    return native


def notes_on(plan: Plan) -> tuple[str, ...]:
    """Report note if inputs are copied by Python threads."""
    if all(plan.buffers[id].bytes < LARGE for _, id in plan.inputs):
        return ()
    reasons = {reason for c in _coming.values() if isinstance(reason := c.result(), str)}
    return tuple(f"large inputs are copied by Python threads, half as fast as in C: {r}" for r in sorted(reasons))
