"""ctypes bindings of process groups: `ws_group` of group.h, created by group_processes.c, and group_sockets.c."""

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
    """`messages` of group_messages.h: functions that send and receive, a communicator, and MPI's byte type."""

    _fields_ = [(name, c_void_p) for name in ("isend", "irecv", "test", "comm", "byte")]


def _load(name: str) -> ctypes.CDLL:
    options = CompileOptions()
    compiler = find_compiler(options.compiler_command)
    return ctypes.CDLL(os.fspath(build_library(open_cache(options), compiler, available_targets()[0].name, name)))


@cache
def library() -> ctypes.CDLL:
    """group_processes.c, compiled and cached."""
    lib = _load("processes")
    lib.ws_processes_window.restype, lib.ws_processes_window.argtypes = c_long, [c_int, c_long]
    lib.ws_processes_open.restype = POINTER(NativeGroup)
    pointers = (c_void_p, c_void_p, POINTER(Messages))
    lib.ws_processes_open.argtypes = [c_int, c_int, c_double, c_long, *pointers, c_int, c_void_p]
    lib.ws_processes_watch.restype, lib.ws_processes_watch.argtypes = None, [POINTER(NativeGroup)] * 2
    lib.ws_processes_sent.restype = c_uint64
    for name in ("missing", "sent", "leave", "close"):
        getattr(lib, f"ws_processes_{name}").argtypes = [POINTER(NativeGroup)]
    return lib


@cache
def sockets() -> ctypes.CDLL:
    """group_sockets.c, compiled and cached."""
    lib = _load("sockets")
    lib.ws_sockets_open.restype, lib.ws_sockets_open.argtypes = c_void_p, [c_int, c_void_p, c_void_p]
    lib.ws_sockets_group.restype = c_void_p
    lib.ws_sockets_group.argtypes = [c_void_p, c_uint64, c_void_p, c_int]
    lib.ws_sockets_tag.restype, lib.ws_sockets_tag.argtypes = c_uint64, [c_void_p, c_uint64, c_void_p, c_uint64]
    lib.ws_sockets_leave.restype, lib.ws_sockets_leave.argtypes = None, [c_void_p, c_int]
    return lib


def run(group: NativeGroup, collective: str, shares: Sequence[tuple[AnyArray, AnyArray, int]]) -> int:
    """Run one collective over (source, destination, count) of contiguous arrays; returns 0 or an error number."""
    native_shares = (NativeShare * len(shares))(
        *[NativeShare(source.ctypes.data, to.ctypes.data, count) for source, to, count in shares]
    )
    dtype = DTYPES[shares[0][0].dtype.name]
    error: int = getattr(group, collective)(ctypes.addressof(group), native_shares, len(shares), dtype)
    return error


def sum_all(group: NativeGroup, *arrays: AnyArray) -> int:
    """All-reduce arrays in place."""
    return run(group, "all_reduce", [(array, array, array.size) for array in arrays])


def gather_words(group: NativeGroup, words: AnyArray) -> tuple[int, AnyArray]:
    """All-gather integers: one row per rank."""
    rows = np.zeros((group.size, words.size), words.dtype)
    return run(group, "all_gather", [(words, rows, words.size)]), rows


__all__ = ["Messages", "NativeGroup", "gather_words", "library", "run", "sockets", "sum_all"]
