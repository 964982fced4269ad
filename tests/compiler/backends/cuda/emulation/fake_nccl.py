"""A fake NCCL: a library with its functions, whose ranks are processes that exchange files.

Their GPUs are `fake_gpu`s.  What a step sends stands in the stream with its kernels; a receiver's stream goes no
further until it is there.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from tests.compiler.backends.cuda.emulation import emulated
from tests.compiler.backends.cuda.emulation.emulated import folder
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver, NotYetError
from wholestep.compiler.backends.cuda.libraries import nccl
from wholestep.compiler.backends.cuda.libraries.nccl import PeerBytes

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
        self.driver, self.rank = driver, 0
        self.comm: Mail | None = None
        self.asked: list[str] = []  # but for pieces
        self.open: dict[str, list[PeerBytes]] | None = None  # of the group that is being put together
        self.sent = 0  # bytes, to others
        self.error, self.aborted = 0, False

    def listen(self, what: bytes, data: int, size: int, number: int, comm: int, stream: int) -> int:
        name = what.decode()
        if name in ("send", "receive"):
            assert self.open is not None, "pieces go in groups"
            assert comm == 0x7000000000 + self.rank, "handles are whole"
            self.open[name].append(PeerBytes(data, size, number))
            return 0
        if name == "error":
            return self.error
        self.asked.append(name)
        if name == "init":
            self.rank = number
            self.comm = world_of(size)
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


NUMBERS = count()  # of communicators: all ranks open them in one order


def world_of(ranks: int) -> Mail | None:
    job = f"{os.environ['WHOLESTEP_RENDEZVOUS']}-{os.environ['WHOLESTEP_SINCE']}" if ranks > 1 else ""
    return Mail(f"{job}-{next(NUMBERS)}") if job else None


class Mail:
    """Bytes between ranks: files in the folder that they share, numbered for each pair of them."""

    def __init__(self, job: str) -> None:
        self.folder = emulated.folder() / f"mail-{job}"
        self.folder.mkdir(exist_ok=True)
        self.counts: Counter[tuple[int, int]] = Counter()

    def next(self, sender: int, receiver: int) -> Path:
        """The file of the next message from one to the other."""
        self.counts[sender, receiver] += 1
        return self.folder / f"{sender}-{receiver}-{self.counts[sender, receiver]}"

    def send(self, data: bytes, file: Path) -> None:
        part = file.with_suffix(".part")
        part.write_bytes(data)
        part.replace(file)


class Moving:
    """One group of pieces, as it stands in a stream: begun when the stream comes there, done when all have come."""

    def __init__(self, fake: FakeNccl, sends: list[PeerBytes], receives: list[PeerBytes]) -> None:
        self.fake, self.sends, self.receives = fake, sends, receives
        self.requests: list[tuple[PeerBytes, Path]] | None = None  # what is still to come

    def __call__(self) -> None:
        own = self.fake.rank
        if self.fake.aborted:
            return
        if self.requests is None:
            here = [p for p in self.sends if p.peer == own], [p for p in self.receives if p.peer == own]
            for of, to in zip(*here, strict=True):
                assert of.bytes == to.bytes
                view(to.address, to.bytes)[:] = view(of.address, of.bytes).copy()
            mail = self.fake.comm
            assert mail is not None or not [p for p in (*self.sends, *self.receives) if p.peer != own]
            for piece in self.sends:
                if piece.peer != own:
                    mail.send(view(piece.address, piece.bytes).tobytes(), mail.next(own, piece.peer))
            self.requests = [(p, mail.next(p.peer, own)) for p in self.receives if p.peer != own]
        for piece, file in list(self.requests):
            if not file.exists():
                raise NotYetError
            data = file.read_bytes()
            assert len(data) == piece.bytes
            view(piece.address, piece.bytes)[:] = np.frombuffer(data, np.uint8)
            file.unlink()
            self.requests.remove((piece, file))
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
