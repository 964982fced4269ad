"""The transport between ranks that `mpiexec` or `srun` has started: MPI, through mpi4py."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wholestep.distributed.launch.rank_processes import files_of
from wholestep.distributed.transport import native
from wholestep.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

LINE = 64  # bytes
MOST = 256  # bytes that a rank gives while a group is set up
POLL = 0.001  # seconds
SHARED = "/dev/shm/mpich_"  # memory that MPICH's ranks have in common, until it is removed


class MPITransport:
    """The ranks of an MPI communicator.

    Args:
        comm: of mpi4py; it is copied.
        members: numbers of its ranks among all of a job.
    """

    engine = "mpi"

    def __init__(self, comm: MPI.Intracomm, members: Sequence[int] | None = None) -> None:
        from mpi4py import MPI

        self.comm = comm.Dup()
        _forget_files(self.comm)
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._end = self.comm.Dup()  # what was exchanged before is no matter to those who leave
        self.rank, self.size = self.comm.rank, self.comm.size
        self.members = range(self.size) if members is None else members
        self._windows: list[MPI.Win] = []

    def subset(self, members: Sequence[int]) -> MPITransport:
        """Some of the ranks, this one among them.  All ranks call it, each for its own subset."""
        from mpi4py import MPI

        comm = self.comm.Split(members[0], self.rank)
        assert isinstance(comm, MPI.Intracomm)
        transport = MPITransport(comm, members)
        comm.Free()
        return transport

    def gather(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks, without zeros at their ends."""
        assert len(data) <= MOST
        rows = np.zeros((self.size, MOST), np.uint8)
        self.comm.Allgather(np.frombuffer(data.ljust(MOST, b"\0"), np.uint8), rows)
        return [row.tobytes().rstrip(b"\0") for row in rows]

    def windows(self, size: int) -> list[int] | None:
        """Where each rank's memory lies in this process; None where they are on several machines."""
        from mpi4py import MPI

        here = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        is_one_machine = here.size == self.size
        here.Free()
        if not is_one_machine:
            return None
        window = MPI.Win.Allocate_shared(size + LINE, 1, comm=self.comm)
        self._windows.append(window)
        addresses = [MPI.Get_address(window.Shared_query(rank)[0]) for rank in range(self.size)]
        aligned = [-(-address // LINE) * LINE for address in addresses]  # pages are alike in all processes
        ctypes.memset(aligned[self.rank], 0, LINE)
        _forget_files(self.comm)
        return aligned

    def messages(self) -> native.Messages:
        """Addresses of MPI's functions in the library that mpi4py has loaded, and handles as they are in C."""
        from mpi4py import MPI

        dll = ctypes.CDLL(_mpi_library_path())
        named = {name: getattr(dll, f"MPI_{name.capitalize()}") for name in ("isend", "irecv", "test")}
        functions = {name: ctypes.cast(function, c_void_p).value for name, function in named.items()}
        handles = {"comm": MPI._handleof(self.comm), "byte": MPI._handleof(MPI.BYTE)}
        return native.Messages(**functions, **handles)

    def leave(self, missed: tuple[int, int] | None) -> None:
        """MPI has no way to tell."""

    def end_together(self, seconds: float, is_one_gone: Callable[[], bool]) -> bool:
        """Wait for the others; False where they have not come by then, or have ended without."""
        everyone, deadline = self._end.Ibarrier(), time.monotonic() + seconds
        while not everyone.Test():
            if time.monotonic() > deadline or (is_one_gone() and not everyone.Test()):
                return False
            time.sleep(POLL)
        return True


def _mpi_library_path() -> str:
    libraries = sorted(path for path in files_of() if Path(path).name.startswith(("libmpi.so", "libmpi_abi.so")))
    if not libraries:
        raise UsageError("mpi4py has loaded no libmpi.so: install one with it, pip install 'wholestep[mpi]'.")
    return libraries[0]


def _forget_files(comm: MPI.Intracomm) -> None:
    """Memory that ranks share has names until MPI ends; without them nothing is left where ranks are killed.

    All ranks have it by then: windows are there, and zero.
    """
    comm.Barrier()
    for path in files_of():
        if path.startswith(SHARED):
            Path(path).unlink(missing_ok=True)
