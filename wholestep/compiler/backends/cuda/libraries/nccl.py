"""NCCL by ctypes: what ranks on GPUs send each other.  Nothing else here speaks to it.

It carries bytes and adds nothing: the order of its own sums follows from sizes, ranks and wires.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from threading import Thread
from typing import Any, ClassVar

from wholestep.compiler.backends.cuda.driver.driver import Gpu
from wholestep.errors import DeviceError, UsageError

INSTALL = 'pip install "wholestep[nccl]"'
ID_BYTES = 128
BYTE = 1  # ncclUint8
SUCCESS, IN_PROGRESS = 0, 7


class UniqueId(ctypes.Structure):
    """What the ranks of a communicator have in common; it is passed by value."""

    _fields_: ClassVar[Any] = [("internal", c_char * ID_BYTES)]


_PIECE = (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)  # address, count, dtype, peer, communicator, stream
FUNCTIONS: Mapping[str, Sequence[Any]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(UniqueId),),
    "ncclCommInitRank": (POINTER(c_void_p), c_int, UniqueId, c_int),
    "ncclCommGetAsyncError": (c_void_p, POINTER(c_int)),
    "ncclCommAbort": (c_void_p,),
    "ncclCommDestroy": (c_void_p,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclSend": _PIECE,
    "ncclRecv": _PIECE,
}
TEXTS: Mapping[str, Sequence[Any]] = {"ncclGetErrorString": (c_int,), "ncclGetLastError": (c_void_p,)}


def load() -> ctypes.CDLL:
    """The library, as it is found beside NVIDIA's others."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    return ctypes.CDLL(load_nvidia_dynamic_lib("nccl").abs_path)


@cache
def library() -> ctypes.CDLL:
    """The library with the types of what is called; UsageError where it is missing."""
    try:
        found = load()
    except Exception as error:  # the pathfinder has errors of its own
        raise UsageError(
            f"workers on GPUs exchange by NCCL, which cannot be loaded ({type(error).__name__}). Install it: {INSTALL}."
        ) from None
    for name, types in {**FUNCTIONS, **TEXTS}.items():
        function = getattr(found, name)
        function.argtypes, function.restype = list(types), c_char_p if name in TEXTS else c_int
    return found


def _text(result: int) -> str:
    said = [library().ncclGetErrorString(result), library().ncclGetLastError(None)]
    return "; ".join(text.decode(errors="replace").strip() for text in said if text)


def call(name: str, *args: Any) -> None:
    """A function of the library; DeviceError where it refuses."""
    result = getattr(library(), name)(*args)
    if result != SUCCESS:
        raise DeviceError(f"NCCL refused {name}: {_text(result)}.")


def version() -> str:
    """Of the library: "2.28.3"."""
    found = c_int()
    call("ncclGetVersion", byref(found))
    return f"{found.value // 10_000}.{found.value % 10_000 // 100}.{found.value % 100}"


def new_id() -> bytes:
    """Of a communicator that is to be: one rank makes it, all of them join with it."""
    found = UniqueId()
    call("ncclGetUniqueId", byref(found))
    return bytes(found)


@dataclass(frozen=True)
class PeerBytes:
    """Bytes on this GPU, and the rank that they go to or come from."""

    address: int
    bytes: int
    peer: int


class Communicator:
    """Ranks with a GPU each, seen from one of them.  All of them make the same exchanges in the same order."""

    def __init__(self, owner: Gpu, rank: int, size: int, id: bytes, timeout: float) -> None:
        """Join; TimeoutError where the others have not by then."""
        self._gpu, self._handle = owner, c_void_p()
        joined, errors = UniqueId.from_buffer_copy(id), list[BaseException]()

        def join() -> None:
            try:
                owner.enter()  # whose context a thread has is its own affair
                call("ncclCommInitRank", byref(self._handle), size, joined, rank)
            except BaseException as error:  # raised below, where the caller sees it
                errors.append(error)

        thread = Thread(target=join, daemon=True)
        thread.start()
        thread.join(timeout)
        if thread.is_alive():
            raise TimeoutError
        if errors:
            raise errors[0]

    def exchange(self, sends: Sequence[PeerBytes], receives: Sequence[PeerBytes], stream: int) -> None:
        """Put pieces on their way, all at once, into a stream; between two ranks they come in their order."""
        call("ncclGroupStart")
        try:
            for name, pieces in (("ncclSend", sends), ("ncclRecv", receives)):
                for piece in pieces:
                    call(name, piece.address, piece.bytes, BYTE, piece.peer, self._handle, stream)
        finally:
            call("ncclGroupEnd")

    def error(self) -> str:
        """What has gone wrong meanwhile; "" while nothing has."""
        found = c_int()
        call("ncclCommGetAsyncError", self._handle, byref(found))
        return "" if found.value in (SUCCESS, IN_PROGRESS) else _text(found.value)

    def abort(self) -> None:
        """End what is under way, whatever the others do."""
        self._close("ncclCommAbort")

    def close(self) -> None:
        """Leave; no graph may have exchanges of it any more."""
        self._close("ncclCommDestroy")

    def _close(self, name: str) -> None:
        if self._handle:
            handle, self._handle = self._handle, c_void_p()
            self._gpu.enter()
            call(name, handle)
