"""MPI transport, through mpi4py, for ranks that `mpiexec` or `srun` has started."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wholestep.distributed.launch.rank_processes import mapped_files
from wholestep.distributed.transport import native
from wholestep.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

CACHE_LINE = 64  # bytes
MAX_MESSAGE = 256  # bytes of a message while a group is set up
POLL = 0.001  # seconds between two tests of a barrier
SHARED = "/dev/shm/mpich_"  # path prefix of the shared memory of MPICH's ranks


class MPITransport:
    """The ranks of an MPI communicator.

    Args:
        comm: mpi4py's; it is duplicated.
        members: the numbers of its ranks within the job.
    """

    engine = "mpi"

    def __init__(self, comm: MPI.Intracomm, members: Sequence[int] | None = None) -> None:
        from mpi4py import MPI

        self.comm = comm.Dup()
        _unlink_shared_memory(self.comm)
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._end = self.comm.Dup()  # for the last barrier, separate from all other messages
        self.rank, self.size = self.comm.rank, self.comm.size
        self.members = range(self.size) if members is None else members
        self._windows: list[MPI.Win] = []

    def subset(self, members: Sequence[int]) -> MPITransport:
        """The transport of some ranks, this one included.  All ranks call it, each for its own subset."""
        from mpi4py import MPI

        comm = self.comm.Split(members[0], self.rank)
        assert isinstance(comm, MPI.Intracomm)
        transport = MPITransport(comm, members)
        comm.Free()
        return transport

    def gather(self, data: bytes) -> list[bytes]:
        """All-gather bytes, without trailing zeros."""
        assert len(data) <= MAX_MESSAGE
        rows = np.zeros((self.size, MAX_MESSAGE), np.uint8)
        self.comm.Allgather(np.frombuffer(data.ljust(MAX_MESSAGE, b"\0"), np.uint8), rows)
        return [row.tobytes().rstrip(b"\0") for row in rows]

    def windows(self, size: int) -> list[int] | None:
        """The address of each rank's shared memory in this process; None if ranks are on several machines."""
        from mpi4py import MPI

        here = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        is_one_machine = here.size == self.size
        here.Free()
        if not is_one_machine:
            return None
        window = MPI.Win.Allocate_shared(size + CACHE_LINE, 1, comm=self.comm)
        self._windows.append(window)
        addresses = [MPI.Get_address(window.Shared_query(rank)[0]) for rank in range(self.size)]
        aligned = [
            -(-address // CACHE_LINE) * CACHE_LINE for address in addresses
        ]  # equal in all processes, because the page size is
        ctypes.memset(aligned[self.rank], 0, CACHE_LINE)
        _unlink_shared_memory(self.comm)
        return aligned

    def messages(self) -> native.Messages:
        """Addresses of the functions of the MPI library that mpi4py has loaded, and its C handles."""
        from mpi4py import MPI

        dll = ctypes.CDLL(_mpi_library_path())
        by_name = {name: getattr(dll, f"MPI_{name.capitalize()}") for name in ("isend", "irecv", "test")}
        functions = {name: ctypes.cast(function, c_void_p).value for name, function in by_name.items()}
        handles = {"comm": MPI._handleof(self.comm), "byte": MPI._handleof(MPI.BYTE)}
        return native.Messages(**functions, **handles)

    def leave(self, missed: tuple[int, int] | None) -> None:
        """Does nothing, since MPI has no message for this."""

    def end_together(self, seconds: float, is_one_gone: Callable[[], bool]) -> bool:
        """Wait for the other ranks at a barrier; False after a timeout, or if a rank is gone."""
        everyone, deadline = self._end.Ibarrier(), time.monotonic() + seconds
        while not everyone.Test():
            if time.monotonic() > deadline or (is_one_gone() and not everyone.Test()):
                return False
            time.sleep(POLL)
        return True


def _mpi_library_path() -> str:
    libraries = sorted(path for path in mapped_files() if Path(path).name.startswith(("libmpi.so", "libmpi_abi.so")))
    if not libraries:
        raise UsageError("mpi4py has loaded no libmpi.so: install one with it, pip install 'wholestep[mpi]'.")
    return libraries[0]


def _unlink_shared_memory(comm: MPI.Intracomm) -> None:
    """Unlink the files of shared memory, so that none remains if ranks are killed.

    All ranks have mapped them when the barrier ends.
    """
    comm.Barrier()
    for path in mapped_files():
        if path.startswith(SHARED):
            Path(path).unlink(missing_ok=True)
