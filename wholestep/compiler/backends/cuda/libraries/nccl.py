"""NCCL through ctypes: point-to-point transfers between ranks.  No other module calls the library.

It only moves bytes; sums are computed by our kernels, since NCCL's order depends on sizes, ranks and topology.
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
    """ncclUniqueId, which identifies a communicator; it is passed by value."""

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
    """Loads the library from NVIDIA's packages."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    return ctypes.CDLL(load_nvidia_dynamic_lib("nccl").abs_path)


@cache
def library() -> ctypes.CDLL:
    """The loaded NCCL library, with declared argument types; UsageError if it is missing."""
    try:
        loaded = load()
    except Exception as error:  # the pathfinder raises its own error types
        raise UsageError(
            f"workers on GPUs need NCCL, which cannot be loaded ({type(error).__name__}). Install it: {INSTALL}."
        ) from None
    for name, types in {**FUNCTIONS, **TEXTS}.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = list(types), c_char_p if name in TEXTS else c_int
    return loaded


def _text(result: int) -> str:
    texts = [library().ncclGetErrorString(result), library().ncclGetLastError(None)]
    return "; ".join(text.decode(errors="replace").strip() for text in texts if text)


def call(name: str, *args: Any) -> None:
    """Calls a function of the library; DeviceError if it fails."""
    result = getattr(library(), name)(*args)
    if result != SUCCESS:
        raise DeviceError(f"NCCL refused {name}: {_text(result)}.")


def version() -> str:
    """The library's version: "2.28.3"."""
    number = c_int()
    call("ncclGetVersion", byref(number))
    return f"{number.value // 10_000}.{number.value % 10_000 // 100}.{number.value % 100}"


def new_id() -> bytes:
    """Id of a new communicator: one rank creates it, all ranks join with it."""
    id = UniqueId()
    call("ncclGetUniqueId", byref(id))
    return bytes(id)


@dataclass(frozen=True)
class PeerBytes:
    """Bytes on this GPU, and the rank they are sent to or received from."""

    address: int
    bytes: int
    peer: int


class Communicator:
    """One rank's view of the communicator; all ranks must issue the same exchanges in the same order."""

    def __init__(self, owner: Gpu, rank: int, size: int, id: bytes, timeout: float) -> None:
        """Joins the communicator; TimeoutError if the other ranks have not joined in time."""
        self._gpu, self._handle = owner, c_void_p()
        unique_id, errors = UniqueId.from_buffer_copy(id), list[BaseException]()

        def join() -> None:
            try:
                owner.enter()  # the current context is per thread
                call("ncclCommInitRank", byref(self._handle), size, unique_id, rank)
            except BaseException as error:  # raised below, in the caller's thread
                errors.append(error)

        thread = Thread(target=join, daemon=True)
        thread.start()
        thread.join(timeout)
        if thread.is_alive():
            raise TimeoutError
        if errors:
            raise errors[0]

    def exchange(self, sends: Sequence[PeerBytes], receives: Sequence[PeerBytes], stream: int) -> None:
        """Enqueues a group of sends and receives into a stream; between two ranks they match in order."""
        call("ncclGroupStart")
        try:
            for name, pieces in (("ncclSend", sends), ("ncclRecv", receives)):
                for piece in pieces:
                    call(name, piece.address, piece.bytes, BYTE, piece.peer, self._handle, stream)
        finally:
            call("ncclGroupEnd")

    def error(self) -> str:
        """Text of an asynchronous error; "" if there is none."""
        result = c_int()
        call("ncclCommGetAsyncError", self._handle, byref(result))
        return "" if result.value in (SUCCESS, IN_PROGRESS) else _text(result.value)

    def abort(self) -> None:
        """Ends pending operations, whatever the other ranks do."""
        self._close("ncclCommAbort")

    def close(self) -> None:
        """Leaves the communicator; no captured graph may still contain its exchanges."""
        self._close("ncclCommDestroy")

    def _close(self, name: str) -> None:
        if self._handle:
            handle, self._handle = self._handle, c_void_p()
            self._gpu.enter()
            call(name, handle)
