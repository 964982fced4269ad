"""An NCCL that is none: a library of its functions, whose ranks are processes of MPI and whose GPUs are `fake_gpu`s.

What a step sends stands in the stream with its kernels; a receiver's stream goes no further until it is there.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from tests.compiler.backends.cuda.emulated import folder
from tests.compiler.backends.cuda.fake_gpu import FakeDriver, NotYetError
from wholestep.compiler.backends.cuda import nccl
from wholestep.compiler.backends.cuda.nccl import Piece

VERSION = 22803
LISTENER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
)


def view(address: int, bytes: int) -> Any:
    return np.frombuffer((ctypes.c_uint8 * bytes).from_address(address), np.uint8)


class FakeNccl:
    """What ranks are told by a step, and what it was asked for."""

    def __init__(self, driver: FakeDriver) -> None:
        self.driver, self.comm, self.rank = driver, None, 0
        self.asked: list[str] = []  # but for pieces
        self.open: dict[str, list[Piece]] | None = None  # of the group that is being put together
        self.sent = 0  # bytes, to others
        self.error, self.aborted = 0, False

    def listen(self, what: bytes, data: int, count: int, number: int, comm: int, stream: int) -> int:
        name = what.decode()
        if name in ("send", "receive"):
            assert self.open is not None, "pieces go in groups"
            assert comm == 0x7000000000 + self.rank, "handles are whole"
            self.open[name].append(Piece(data, count, number))
            return 0
        if name == "error":
            return self.error
        self.asked.append(name)
        if name == "init":
            self.rank = number
            self.comm = world_of(count)
        elif name == "start":
            assert self.open is None
            self.open = {"send": [], "receive": []}
        elif name == "end":
            assert self.open is not None
            self.driver.captured.append(Moving(self, self.open["send"], self.open["receive"]))
            self.open = None
        elif name == "abort":
            self.aborted = True
        return 0


def world_of(ranks: int) -> Any:
    if ranks == 1:
        return None
    from mpi4py import MPI

    assert ranks == MPI.COMM_WORLD.size
    return MPI.COMM_WORLD.Dup()


class Moving:
    """One group of pieces, as it stands in a stream: begun when the stream comes there, done when all have come."""

    def __init__(self, fake: FakeNccl, sends: list[Piece], receives: list[Piece]) -> None:
        self.fake, self.sends, self.receives = fake, sends, receives
        self.requests: list[Any] | None = None

    def __call__(self) -> None:
        own = self.fake.rank
        if self.fake.aborted:
            return
        if self.requests is None:
            here = [p for p in self.sends if p.peer == own], [p for p in self.receives if p.peer == own]
            for of, to in zip(*here, strict=True):
                assert of.bytes == to.bytes
                view(to.address, to.bytes)[:] = view(of.address, of.bytes).copy()
            ways = ((self.receives, "Irecv"), (self.sends, "Isend"))
            self.requests = [
                getattr(self.fake.comm, way)(view(p.address, p.bytes), p.peer)
                for pieces, way in ways
                for p in pieces
                if p.peer != own
            ]
        if self.requests:
            from mpi4py import MPI

            if not MPI.Request.Testall(self.requests):
                raise NotYetError
        self.requests = None
        self.fake.sent += sum(p.bytes for p in self.sends if p.peer != own)


def _compiled() -> Path:
    path, source = folder() / "libnccl.so", Path(__file__).with_suffix(".c")
    with FileLock(path.with_suffix(".lock")):  # processes may share a folder: one of them compiles
        if not path.exists():
            own = path.with_suffix(".part")
            subprocess.run(["gcc", "-Wall", "-Werror", "-shared", "-fPIC", str(source), "-o", str(own)], check=True)
            own.replace(path)
    return path


@contextmanager
def fake_nccl(driver: FakeDriver, version: int = VERSION) -> Iterator[FakeNccl]:
    """A machine on which it is installed."""
    fake = FakeNccl(driver)
    library, listener = ctypes.CDLL(str(_compiled())), LISTENER(fake.listen)
    library.fake_listen(listener, version)
    nccl.library.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl, "load", lambda: library)
        yield fake
        nccl.library.cache_clear()
