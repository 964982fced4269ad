"""The engine over MPI: mpi4py starts it and gives the communicator; native code exchanges."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import time
from collections.abc import Sequence
from ctypes import c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.ir.grid import Grid
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import UsageError, WorkerError
from wholestep.workers import native
from wholestep.workers.ranks import SHARED, STEP_BYTES, files_of

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger("wholestep")

MESSAGE = 1 << 20  # bytes of a piece that is sent
ROOM, LEAST = 1 << 22, 1 << 14  # bytes of a window, which stays in cache; and of a piece of it, at least
LINE = 64  # bytes
NAME = 256  # bytes of who a rank is
POLL = 0.001  # seconds
# What is said of a rank, and what can be done.
GONE = (
    "is gone: it was killed, or an error ended it",
    "Look at what it printed last; checkpoint= and `wholestep launch --restarts 3` go on by themselves.",
)
LATE = (
    "did not come within {timeout:g} s: it hangs, {others}or is slower than that",
    "Look at what it printed last, or wait longer: ws.Workers(timeout=...).",
)
UNLIKE = (
    "exchanges something else: it is at another place of the script",
    "What workers do together all of them call, in one order: steps, and where they have divided states or layers "
    "also ws.save_checkpoint, session.state_dict and session.get.",
)
MEANINGS = {errno.ETIMEDOUT: LATE, errno.EPROTO: UNLIKE}  # of errors; of any other: GONE


class MPIGroup:
    """The ranks of an MPI communicator.

    Args:
        comm: of mpi4py; it is copied.
        timeout: seconds that a collective waits for the others.
        memory: read the others' memory where all ranks are on one machine; False sends messages anyway.
        of: a group of which these are some, along one axis of a grid; errors count its ranks.
    """

    engine = "mpi"

    def __init__(self, comm: MPI.Intracomm, timeout: float, memory: bool = True, of: MPIGroup | None = None) -> None:
        from mpi4py import MPI

        self.comm = comm.Dup()
        _forget_files(self.comm)
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._end = self.comm.Dup()  # what was exchanged before is no matter to those who leave
        self.rank, self.size = self.comm.rank, self.comm.size
        self.grid = Grid(self.size)
        self.ranks = _gathered(self.comm, _who())  # who the ranks are: machine, host, process
        self.numbers = list(range(self.size)) if of is None else _numbers(self.comm, of.rank)
        self.asked_for_memory, self._library = memory, native.library()
        self._beside: list[MPIGroup] = []  # groups of some of these ranks, this one among them
        if of is not None:
            of._beside.append(self)
        self.notes: int | None = None  # a file for the last step, which outlives this process
        self._window: MPI.Win | None = None
        addresses = self._addresses() if memory and self._share_memory() else None
        slot = self._slot(addresses is not None)
        pids = (ctypes.c_int * self.size)(*self._visible())
        mpi = _functions(self.comm)
        beside = self._visible() if of is None else of._visible()
        crowded = 1 + sum(pid != 0 for pid in beside) > len(os.sched_getaffinity(0))
        numbers = (ctypes.c_int * self.size)(*self.numbers)
        opened = self._library.ws_mpi_open(
            self.rank, self.size, timeout, slot, addresses, pids, ctypes.byref(mpi), crowded, numbers
        )
        if not opened:
            raise MemoryError("no memory for the buffers of a group of ranks")
        self.native: native.NativeGroup = opened.contents
        _forget_files(self.comm)

    # -- how it is made ------------------------------------------------------------------------------------------

    def _share_memory(self) -> bool:
        from mpi4py import MPI

        here = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        found: bool = here.size == self.size
        here.Free()
        return found

    def _slot(self, memory: bool) -> int:
        return max(LEAST, ROOM // (2 * self.size) // LINE * LINE) if memory else MESSAGE

    def _addresses(self) -> Any:
        """Where each rank's window lies in this process; they are whole lines, zero at first."""
        from mpi4py import MPI

        bytes_ = self._library.ws_mpi_window(self.size, self._slot(True)) + LINE
        window = self._window = MPI.Win.Allocate_shared(bytes_, 1, comm=self.comm)
        found = [MPI.Get_address(window.Shared_query(rank)[0]) for rank in range(self.size)]
        aligned = [-(-address // LINE) * LINE for address in found]  # pages are alike in all processes
        ctypes.memset(aligned[self.rank], 0, LINE)
        return (c_void_p * self.size)(*aligned)

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
    def memory(self) -> bool:
        """Do the ranks read each other's memory?  Else they send messages."""
        return self._window is not None

    @property
    def sent(self) -> int:
        """Bytes that the others were given so far."""
        return int(self._library.ws_mpi_sent(self.native))

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
        return int(self._library.ws_mpi_missing(self.native))

    def lost(self, error: int, missing: int, step: int, others: str = "") -> WorkerError:
        """What a failure means, for people; `others`: what else may keep a rank from coming."""
        named = self.ranks[missing].named(missing, self.size)
        what, how = MEANINGS.get(error, GONE)
        what = what.format(timeout=self.native.timeout, others=others)
        return WorkerError(f"{named} {what}. Its last step was {step}. {how}", missing, step)

    def wait_for(self, seconds: float) -> None:
        """From now on a collective waits so long for the others."""
        self.native.timeout = seconds

    def watch(self, whole: MPIGroup) -> None:
        """Look at, and show, who waits for whom among all ranks of a grid."""
        self._library.ws_mpi_watch(self.native, whole.native)

    @property
    def failed(self) -> bool:
        """Did a collective of these ranks, or of some of them, not come to its end?"""
        return any(group.native.failed for group in (self, *self._beside))

    def leave(self) -> None:
        """Tell the others not to wait for this rank any longer."""
        for group in (self, *self._beside):
            self._library.ws_mpi_leave(group.native)

    def leave_together(self, seconds: float) -> bool:
        """Leave, and wait for the others to; False where they have not by then, or have ended without."""
        self.leave()
        everyone, deadline = self._end.Ibarrier(), time.monotonic() + seconds
        while not everyone.Test():
            if time.monotonic() > deadline or (self._is_one_gone() and not everyone.Test()):
                return False
            time.sleep(POLL)
        return True

    def _is_one_gone(self) -> bool:
        return any(pid and not Path(f"/proc/{pid}").exists() for pid in self._visible())


class _Rank:
    """Who a rank is: the machine and its view of processes, the host by name, the process."""

    def __init__(self, text: str) -> None:
        self.machine, self.host, pid = text.split("\n")
        self.pid = int(pid)

    def named(self, rank: int, size: int) -> str:
        return f"rank {rank} of {size} (process {self.pid} on {self.host})"


def _who() -> str:
    """A kernel's boot and its namespace of processes say whose process numbers can be compared."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        machine = ""
    return f"{machine}\n{socket.gethostname()[:100]}\n{os.getpid()}"


def _gathered(comm: MPI.Intracomm, own: str) -> list[_Rank]:
    found = np.zeros((comm.size, NAME), np.uint8)
    comm.Allgather(np.frombuffer(own.encode().ljust(NAME, b"\0"), np.uint8), found)
    return [_Rank(row.tobytes().rstrip(b"\0").decode()) for row in found]


def _numbers(comm: MPI.Intracomm, own: int) -> list[int]:
    found = np.zeros(comm.size, np.int32)
    comm.Allgather(np.array([own], np.int32), found)
    return [int(number) for number in found]


def _words(data: bytes, length: int) -> AnyArray:
    """Bytes as whole numbers of 64 bits, at least one, as many as `length` bytes need."""
    return np.frombuffer(data.ljust(max(8, -(-length // 8) * 8), b"\0"), np.int64).copy()


def _functions(comm: MPI.Intracomm) -> native.Messages:
    """Addresses of MPI's functions in the library that mpi4py has loaded, and handles as they are in C."""
    from mpi4py import MPI

    dll = ctypes.CDLL(_loaded())
    named = {name: getattr(dll, f"MPI_{name.capitalize()}") for name in ("isend", "irecv", "test")}
    found = {name: ctypes.cast(function, c_void_p).value for name, function in named.items()}
    handles = {"comm": MPI._handleof(comm), "byte": MPI._handleof(MPI.BYTE)}
    return native.Messages(**found, **handles)


def _loaded() -> str:
    found = sorted(path for path in files_of() if Path(path).name.startswith(("libmpi.so", "libmpi_abi.so")))
    if not found:
        raise UsageError("mpi4py has loaded no libmpi.so: install one with it, pip install 'wholestep[mpi]'.")
    return found[0]


def _forget_files(comm: MPI.Intracomm) -> None:
    """Memory that ranks share has names until MPI ends; without them nothing is left where ranks are killed.

    All ranks have it by then: windows are there, and zero.
    """
    comm.Barrier()
    for path in files_of():
        if path.startswith(SHARED):
            Path(path).unlink(missing_ok=True)
