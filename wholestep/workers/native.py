"""The native half of an engine over MPI: `ws_group` of group.h, and what group_mpi.c makes one of."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_int, c_long, c_uint64, c_void_p
from functools import cache

import numpy as np

from wholestep.compiler.backends.cpu.compiler import find_compiler
from wholestep.compiler.backends.cpu.library import Group as NativeGroup
from wholestep.compiler.backends.cpu.library import Share, build_library
from wholestep.compiler.backends.cpu.target import available_targets
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.cache import cache_of
from wholestep.options import CompileOptions

DTYPES = {"float32": 0, "float64": 1, "int32": 2, "int64": 3}


class Messages(Structure):
    """`messages` of group_mpi.c: functions of MPI, a communicator, and the type of a byte."""

    _fields_ = [(name, c_void_p) for name in ("isend", "irecv", "test", "comm", "byte")]


@cache
def library() -> ctypes.CDLL:
    """group_mpi.c, compiled and cached."""
    options = CompileOptions()
    compiler = find_compiler(options.compiler_command)
    found = ctypes.CDLL(os.fspath(build_library(cache_of(options), compiler, available_targets()[0].name, "mpi")))
    found.ws_mpi_window.restype, found.ws_mpi_window.argtypes = c_long, [c_int, c_long]
    found.ws_mpi_open.restype = POINTER(NativeGroup)
    found.ws_mpi_open.argtypes = [c_int, c_int, c_double, c_long, *[c_void_p] * 2, POINTER(Messages), c_int, c_void_p]
    found.ws_mpi_watch.restype, found.ws_mpi_watch.argtypes = None, [POINTER(NativeGroup)] * 2
    found.ws_mpi_sent.restype = c_uint64
    for name in ("missing", "sent", "leave", "close"):
        getattr(found, f"ws_mpi_{name}").argtypes = [POINTER(NativeGroup)]
    return found


def run(group: NativeGroup, collective: str, shares: Sequence[tuple[AnyArray, AnyArray, int]]) -> int:
    """One collective over (from, to, count) of contiguous arrays; 0 or an error number."""
    made = (Share * len(shares))(*[Share(a.ctypes.data, b.ctypes.data, count) for a, b, count in shares])
    dtype = DTYPES[shares[0][0].dtype.name]
    error: int = getattr(group, collective)(ctypes.addressof(group), made, len(shares), dtype)
    return error


def sum_all(group: NativeGroup, *arrays: AnyArray) -> int:
    """The sums of all ranks, in place."""
    return run(group, "all_reduce", [(array, array, array.size) for array in arrays])


def gather_words(group: NativeGroup, words: AnyArray) -> tuple[int, AnyArray]:
    """Whole numbers of all ranks, a row each."""
    found = np.zeros((group.size, words.size), words.dtype)
    return run(group, "all_gather", [(words, found, words.size)]), found


__all__ = ["Messages", "NativeGroup", "gather_words", "library", "run", "sum_all"]
