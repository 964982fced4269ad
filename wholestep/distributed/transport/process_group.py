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

MESSAGE = 1 << 20  # bytes of a piece that is sent
ROOM, LEAST = 1 << 22, 1 << 14  # bytes of a window, which stays in cache; and of a piece of it, at least
LINE = 64  # bytes
# What is said of a rank, and what can be done.
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
MEANINGS = {errno.ETIMEDOUT: LATE, errno.EPROTO: UNLIKE, errno.EBADMSG: ALTERED}  # of errors; of any other: GONE


class Transport(Protocol):
    """What carries bytes between ranks, or between some of them.  All ranks call the same methods in the same order."""

    engine: str  # for people
    rank: int
    size: int
    members: Sequence[int]  # their numbers among all ranks

    def gather(self, data: bytes) -> Sequence[bytes]:
        """The bytes of these ranks, while the group is set up."""

    def windows(self, size: int) -> list[int] | None:
        """Addresses of `size` bytes of each rank, zeros at first; None where ranks have no memory in common."""

    def messages(self) -> native.Messages:
        """Functions that send messages among these ranks."""

    def leave(self, missed: tuple[int, int] | None) -> None:
        """Tell the others not to wait for this rank any longer, and why: an error, and the rank that it has missed."""

    def subset(self, members: Sequence[int]) -> Transport:
        """Some of the ranks, this one among them.  All ranks call it, each for its own subset."""

    def end_together(self, seconds: float, is_one_gone: Callable[[], bool]) -> bool:
        """Wait for the others where this process must not end before them; False where they did not come."""


class ProcessGroup:
    """Ranks that are processes, seen from one of them.

    Args:
        transport: what carries bytes between them.
        timeout: seconds that a collective waits for the others.
        memory: read the others' memory where all ranks are on one machine; False sends messages anyway.
        of: a group of which these are some, along one axis of a grid; errors count its ranks.
    """

    def __init__(
        self, transport: Transport, timeout: float, memory: bool = True, of: ProcessGroup | None = None
    ) -> None:
        self.transport, self.engine = transport, transport.engine
        self.rank, self.size, self.numbers = transport.rank, transport.size, list(transport.members)
        self.grid = Mesh(self.size)
        self.ranks = [Rank(text.decode()) for text in transport.gather(_who().encode())]
        self.asked_for_memory, self._library = memory, native.library()
        self._beside: list[ProcessGroup] = []  # groups of some of these ranks, this one among them
        if of is not None:
            of._beside.append(self)
        self.notes: int | None = None  # a file for the last step, which outlives this process
        room = self._library.ws_processes_window(self.size, self._slot(True))
        windows = transport.windows(room) if memory else None
        self.memory = windows is not None  # do the ranks read each other's memory?  Else they send messages
        addresses = None if windows is None else (c_void_p * self.size)(*windows)
        carrier = transport.messages() if windows is None else native.Messages()
        pids = (ctypes.c_int * self.size)(*self._visible())
        beside = self._visible() if of is None else of._visible()
        crowded = 1 + sum(pid != 0 for pid in beside) > len(os.sched_getaffinity(0))
        numbers, slot = (ctypes.c_int * self.size)(*self.numbers), self._slot(self.memory)
        opened = self._library.ws_processes_open(
            self.rank, self.size, timeout, slot, addresses, pids, ctypes.byref(carrier), crowded, numbers
        )
        if not opened:
            raise MemoryError("no memory for the buffers of a group of ranks")
        self.native: native.NativeGroup = opened.contents

    def _slot(self, memory: bool) -> int:
        return max(LEAST, ROOM // (2 * self.size) // LINE * LINE) if memory else MESSAGE

    def _visible(self) -> list[int]:
        """Processes that can be looked at from here, 0 for the others and for this one."""
        own = self.ranks[self.rank].machine
        return [0 if r.machine != own or at == self.rank else r.pid for at, r in enumerate(self.ranks)]

    # -- a group ---------------------------------------------------------------------------------------------------

    @property
    def address(self) -> int:
        """Of its `ws_group`."""
        return ctypes.addressof(self.native)

    whole_address = address  # without a model axis nobody asks for it

    @property
    def sent(self) -> int:
        """Bytes that the others were given so far."""
        return int(self._library.ws_processes_sent(self.native))

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's bytes, on every rank."""
        words = np.array([len(data)], np.int64)
        self._run("broadcast", words, words, 1)
        length = int(words[0])
        words = _words(data if self.rank == 0 else b"", length)
        self._run("broadcast", words, words, words.size)
        return words.tobytes()[:length]

    def gather(self, data: bytes) -> Sequence[bytes]:
        """The bytes of all ranks, on every rank."""
        if self.notes is not None:
            os.pwrite(self.notes, int(self.native.step).to_bytes(STEP_BYTES, "little"), 0)
        lengths = np.zeros(self.size, np.int64)
        self._run("all_gather", np.array([len(data)], np.int64), lengths, 1)
        words = _words(data, int(lengths.max()))
        found = np.zeros((self.size, words.size), np.int64)
        self._run("all_gather", words, found, words.size)
        return [row.tobytes()[: int(length)] for row, length in zip(found, lengths)]

    def _run(self, collective: str, source: AnyArray, to: AnyArray, count: int) -> None:
        if native.run(self.native, collective, [(source, to, count)]):
            self.check()

    def check(self) -> None:
        """Raise what went wrong in a collective: WorkerError, which names the rank and its last step."""
        if self.native.failed:
            raise self.lost(self.native.failed, self.missing, int(self.native.step))

    @property
    def missing(self) -> int:
        """The rank that did not come, or was lost; -1: none."""
        return int(self._library.ws_processes_missing(self.native))

    def lost(self, error: int, missing: int, step: int, others: str = "") -> WorkerError:
        """What a failure means, for people; `others`: what else may keep a rank from coming."""
        named = self.ranks[missing].named(missing, self.size)
        what, how = MEANINGS.get(error, GONE)
        what = what.format(timeout=self.native.timeout, others=others)
        return WorkerError(f"{named} {what}. Its last step was {step}. {how}", missing, step)

    def wait_for(self, seconds: float) -> None:
        """From now on a collective waits so long for the others."""
        self.native.timeout = seconds

    def watch(self, whole: ProcessGroup) -> None:
        """Look at, and show, who waits for whom among all ranks of a grid."""
        self._library.ws_processes_watch(self.native, whole.native)

    @property
    def failed(self) -> bool:
        """Did a collective of these ranks, or of some of them, not come to its end?"""
        return any(group.native.failed for group in (self, *self._beside))

    def leave(self) -> None:
        """Tell the others not to wait for this rank any longer, and whom it has missed."""
        missed = next(((g.native.failed, g.missing) for g in (self, *self._beside) if g.missing >= 0), None)
        for group in (self, *self._beside):
            self._library.ws_processes_leave(group.native)
        self.transport.leave(missed)

    def leave_together(self, seconds: float) -> bool:
        """Leave, and wait for the others where the transport needs that; False where they did not come."""
        self.leave()
        return self.transport.end_together(seconds, self._is_one_gone)

    def _is_one_gone(self) -> bool:
        return any(pid and not Path(f"/proc/{pid}").exists() for pid in self._visible())


class Rank:
    """Who a rank is: the machine and its view of processes, the host by name, the process."""

    def __init__(self, text: str) -> None:
        self.machine, self.host, pid = text.split("\n")
        self.pid = int(pid)

    def named(self, rank: int, size: int) -> str:
        return f"rank {rank} of {size} (process {self.pid} on {self.host})"


def machine() -> str:
    """A kernel's boot and its namespace of processes, which say whose process numbers can be compared."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _who() -> str:
    return f"{machine()}\n{socket.gethostname()[:100]}\n{os.getpid()}"


def _words(data: bytes, length: int) -> AnyArray:
    """Bytes as whole numbers of 64 bits, at least one, as many as `length` bytes need."""
    return np.frombuffer(data.ljust(max(8, -(-length // 8) * 8), b"\0"), np.int64).copy()
