"""The native half of a group of processes: `ws_group` of group.h, built by group_processes.c, and group_sockets.c."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_int, c_long, c_uint64, c_void_p
from functools import cache

import numpy as np

from wholestep.compiler.backends.cpu.runtime.compiler import find_compiler
from wholestep.compiler.backends.cpu.runtime.library import NativeGroup as NativeGroup
from wholestep.compiler.backends.cpu.runtime.library import NativeShare, build_library
from wholestep.compiler.backends.cpu.target import available_targets
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.cache.content_store import open_cache
from wholestep.options import CompileOptions

DTYPES = {"float32": 0, "float64": 1, "int32": 2, "int64": 3}


class Messages(Structure):
    """`messages` of group_messages.h: functions that send, a communicator, and MPI's type of a byte."""

    _fields_ = [(name, c_void_p) for name in ("isend", "irecv", "test", "comm", "byte")]


def _part(name: str) -> ctypes.CDLL:
    options = CompileOptions()
    compiler = find_compiler(options.compiler_command)
    return ctypes.CDLL(os.fspath(build_library(open_cache(options), compiler, available_targets()[0].name, name)))


@cache
def library() -> ctypes.CDLL:
    """group_processes.c, compiled and cached."""
    found = _part("processes")
    found.ws_processes_window.restype, found.ws_processes_window.argtypes = c_long, [c_int, c_long]
    found.ws_processes_open.restype = POINTER(NativeGroup)
    pointers = (c_void_p, c_void_p, POINTER(Messages))
    found.ws_processes_open.argtypes = [c_int, c_int, c_double, c_long, *pointers, c_int, c_void_p]
    found.ws_processes_watch.restype, found.ws_processes_watch.argtypes = None, [POINTER(NativeGroup)] * 2
    found.ws_processes_sent.restype = c_uint64
    for name in ("missing", "sent", "leave", "close"):
        getattr(found, f"ws_processes_{name}").argtypes = [POINTER(NativeGroup)]
    return found


@cache
def sockets() -> ctypes.CDLL:
    """group_sockets.c, compiled and cached."""
    found = _part("sockets")
    found.ws_sockets_open.restype, found.ws_sockets_open.argtypes = c_void_p, [c_int, c_void_p, c_void_p]
    found.ws_sockets_group.restype = c_void_p
    found.ws_sockets_group.argtypes = [c_void_p, c_uint64, c_void_p, c_int]
    found.ws_sockets_tag.restype, found.ws_sockets_tag.argtypes = c_uint64, [c_void_p, c_uint64, c_void_p, c_uint64]
    found.ws_sockets_leave.restype, found.ws_sockets_leave.argtypes = None, [c_void_p, c_int]
    return found


def run(group: NativeGroup, collective: str, shares: Sequence[tuple[AnyArray, AnyArray, int]]) -> int:
    """One collective over (from, to, count) of contiguous arrays; 0 or an error number."""
    made = (NativeShare * len(shares))(*[NativeShare(a.ctypes.data, b.ctypes.data, count) for a, b, count in shares])
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


__all__ = ["Messages", "NativeGroup", "gather_words", "library", "run", "sockets", "sum_all"]
