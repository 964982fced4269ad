"""A group of ranks that are processes: collectives run in native code, over a transport that carries bytes."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from pathlib import Path
from typing import Protocol

import numpy as np

from wholestep.compiler.ir.mesh import Mesh
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.distributed.launch.rank_processes import STEP_BYTES
from wholestep.distributed.transport import native
from wholestep.errors import WorkerError

MESSAGE = 1 << 20  # bytes of one piece of a collective that is sent as a message
WINDOW = 1 << 22  # bytes of shared memory per rank: it stays in cache
MIN_PIECE = 1 << 14  # bytes of a piece of the window
CACHE_LINE = 64  # bytes
# The two parts of an error text about a rank: what happened to it, and what the user can do.
GONE = (
    "is gone: it was killed, or an error ended it",
    "Look at what it printed last; checkpoint= and `wholestep launch --restarts 3` go on by themselves.",
)
LATE = (
    "did not come within {timeout:g} s: it hangs, {others}or is slower than that",
    "Look at what it printed last, or wait longer: ws.Workers(timeout=...).",
)
ALTERED = (
    "sent a message that is not what came before it promised: it was altered, or forged, on its way",
    "Somebody on the network has interfered, or a device of it is broken. Use a network that you trust.",
)
UNLIKE = (
    "exchanges something else: it is at another place of the script",
    "What workers do together all of them call, in one order: steps, and where they have divided states or layers "
    "also ws.save_checkpoint, session.state_dict and session.get.",
)
# error number -> texts; for any other number: GONE
MEANINGS = {errno.ETIMEDOUT: LATE, errno.EPROTO: UNLIKE, errno.EBADMSG: ALTERED}


class Transport(Protocol):
    """Carries bytes between ranks, or some of them.  All ranks call the same methods in the same order."""

    engine: str  # name of the transport, for errors
    rank: int
    size: int
    members: Sequence[int]  # numbers of its ranks within the job

    def gather(self, data: bytes) -> Sequence[bytes]:
        """All-gather bytes while the group is set up."""

    def windows(self, size: int) -> list[int] | None:
        """Addresses of `size` zeroed bytes of shared memory for each rank; None if ranks cannot share memory."""

    def messages(self) -> native.Messages:
        """Native functions that send and receive messages among these ranks."""

    def leave(self, missed: tuple[int, int] | None) -> None:
        """Tell the others that this rank leaves, and why: an error number, and the rank that it lost."""

    def subset(self, members: Sequence[int]) -> Transport:
        """The transport of some ranks, this one included.  All ranks call it, each for its own subset."""

    def end_together(self, seconds: float, is_one_gone: Callable[[], bool]) -> bool:
        """Wait for the others if this process must not end before them; False if they did not come."""


class ProcessGroup:
    """A group of ranks that are processes, as one of its ranks uses it.

    Args:
        transport: carries bytes between them.
        timeout: seconds that a collective waits for the others.
        memory: use shared memory if all ranks are on one machine; False always sends messages.
        of: the group of all ranks, if this one is along one axis of a mesh; errors number its ranks.
    """

    def __init__(
        self, transport: Transport, timeout: float, memory: bool = True, of: ProcessGroup | None = None
    ) -> None:
        self.transport, self.engine = transport, transport.engine
        self.rank, self.size, self.numbers = transport.rank, transport.size, list(transport.members)
        self.grid = Mesh(self.size)
        self.ranks = [Rank(text.decode()) for text in transport.gather(_identity_text().encode())]
        self.asked_for_memory, self._library = memory, native.library()
        self._beside: list[ProcessGroup] = []  # this rank's groups along the axes of a mesh
        if of is not None:
            of._beside.append(self)
        self.notes: int | None = None  # a file for the last step; the launcher reads it after this process has ended
        window_bytes = self._library.ws_processes_window(self.size, self._piece_bytes(True))
        windows = transport.windows(window_bytes) if memory else None
        self.memory = windows is not None  # does it use shared memory, rather than messages?
        addresses = None if windows is None else (c_void_p * self.size)(*windows)
        carrier = transport.messages() if windows is None else native.Messages()
        pids = (ctypes.c_int * self.size)(*self._visible_pids())
        local_pids = self._visible_pids() if of is None else of._visible_pids()
        oversubscribed = 1 + sum(pid != 0 for pid in local_pids) > len(os.sched_getaffinity(0))
        numbers, piece = (ctypes.c_int * self.size)(*self.numbers), self._piece_bytes(self.memory)
        group = self._library.ws_processes_open(
            self.rank, self.size, timeout, piece, addresses, pids, ctypes.byref(carrier), oversubscribed, numbers
        )
        if not group:
            raise MemoryError("no memory for the buffers of a group of ranks")
        self.native: native.NativeGroup = group.contents

    def _piece_bytes(self, memory: bool) -> int:
        return max(MIN_PIECE, WINDOW // (2 * self.size) // CACHE_LINE * CACHE_LINE) if memory else MESSAGE

    def _visible_pids(self) -> list[int]:
        """The process number of each other rank on this machine; 0 for all others and for this one."""
        machine = self.ranks[self.rank].machine
        return [0 if r.machine != machine or at == self.rank else r.pid for at, r in enumerate(self.ranks)]

    # -- a group ---------------------------------------------------------------------------------------------------

    @property
    def address(self) -> int:
        """The address of its `ws_group`."""
        return ctypes.addressof(self.native)

    whole_address = address  # with a model axis the two addresses differ

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent so far."""
        return int(self._library.ws_processes_sent(self.native))

    def broadcast(self, data: bytes) -> bytes:
        """Broadcast rank 0's bytes to every rank."""
        words = np.array([len(data)], np.int64)
        self._run("broadcast", words, words, 1)
        length = int(words[0])
        words = _words(data if self.rank == 0 else b"", length)
        self._run("broadcast", words, words, words.size)
        return words.tobytes()[:length]

    def gather(self, data: bytes) -> Sequence[bytes]:
        """All-gather bytes: the result, on every rank, contains the bytes of all ranks."""
        if self.notes is not None:
            os.pwrite(self.notes, int(self.native.step).to_bytes(STEP_BYTES, "little"), 0)
        lengths = np.zeros(self.size, np.int64)
        self._run("all_gather", np.array([len(data)], np.int64), lengths, 1)
        words = _words(data, int(lengths.max()))
        rows = np.zeros((self.size, words.size), np.int64)
        self._run("all_gather", words, rows, words.size)
        return [row.tobytes()[: int(length)] for row, length in zip(rows, lengths)]

    def _run(self, collective: str, source: AnyArray, to: AnyArray, count: int) -> None:
        if native.run(self.native, collective, [(source, to, count)]):
            self.check()

    def check(self) -> None:
        """Raise WorkerError if a collective has failed; it names the lost rank and its last step."""
        if self.native.failed:
            raise self.worker_error(self.native.failed, self.missing_rank, int(self.native.step))

    @property
    def missing_rank(self) -> int:
        """The rank that did not arrive or has ended; -1: no rank."""
        return int(self._library.ws_processes_missing(self.native))

    def worker_error(self, error: int, missing_rank: int, step: int, others: str = "") -> WorkerError:
        """The exception for an error number; `others`: further reasons why a rank may be late."""
        subject = self.ranks[missing_rank].describe(missing_rank, self.size)
        what, how = MEANINGS.get(error, GONE)
        what = what.format(timeout=self.native.timeout, others=others)
        return WorkerError(f"{subject} {what}. Its last step was {step}. {how}", missing_rank, step)

    def wait_for(self, seconds: float) -> None:
        """Set the timeout of collectives."""
        self.native.timeout = seconds

    def watch(self, whole: ProcessGroup) -> None:
        """Publish and read, among all ranks of a mesh, which rank waits for which."""
        self._library.ws_processes_watch(self.native, whole.native)

    @property
    def has_failed(self) -> bool:
        """Has a collective of these ranks, or of some of them, failed?"""
        return any(group.native.failed for group in (self, *self._beside))

    def leave(self) -> None:
        """Tell the others that this rank leaves, and which rank it lost."""
        missed = next(((g.native.failed, g.missing_rank) for g in (self, *self._beside) if g.missing_rank >= 0), None)
        for group in (self, *self._beside):
            self._library.ws_processes_leave(group.native)
        self.transport.leave(missed)

    def leave_together(self, seconds: float) -> bool:
        """Leave, and wait for the others if the transport needs that; False if they did not come."""
        self.leave()
        return self.transport.end_together(seconds, self._is_one_gone)

    def _is_one_gone(self) -> bool:
        return any(pid and not Path(f"/proc/{pid}").exists() for pid in self._visible_pids())


class Rank:
    """The identity of a rank: machine and process namespace, host name, process number."""

    def __init__(self, text: str) -> None:
        self.machine, self.host, pid = text.split("\n")
        self.pid = int(pid)

    def describe(self, rank: int, size: int) -> str:
        return f"rank {rank} of {size} (process {self.pid} on {self.host})"


def machine() -> str:
    """The kernel's boot id and the process namespace: within them, process numbers can be compared."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _identity_text() -> str:
    return f"{machine()}\n{socket.gethostname()[:100]}\n{os.getpid()}"


def _words(data: bytes, length: int) -> AnyArray:
    """Bytes as 64-bit integers: as many as `length` bytes need, at least one."""
    return np.frombuffer(data.ljust(max(8, -(-length // 8) * 8), b"\0"), np.int64).copy()
