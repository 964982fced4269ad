"""A mesh of processes: one group of all ranks, and for each rank one group along each axis."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from wholestep.compiler.backends.cpu.runtime.library import NativeGroup as NativeGroup
from wholestep.compiler.ir.mesh import AXES, DATA, Mesh
from wholestep.distributed.transport.process_group import ProcessGroup


class ProcessGrid:
    """Ranks that are processes in a data x model mesh: `model` consecutive ranks have the same rows.

    Python's messages go to all ranks; the collectives of native programs run along one axis.
    """

    def __init__(self, whole: ProcessGroup, model: int) -> None:
        self.whole, self.rank, self.size, self.engine = whole, whole.rank, whole.size, whole.engine
        self.grid = Mesh(whole.size // model, model)
        self.along = {axis: self._along(axis) for axis in AXES}
        first, beside = (self.along[axis].native for axis in AXES)
        first.model = ctypes.addressof(beside)
        # The group for programs over all rows: the data axis has one rank, the model axis is unchanged.
        self._all_rows = NativeGroup(rank=0, size=1, timeout=first.timeout, model=first.model)
        self.wait_for(whole.native.timeout)
        if whole.memory:
            for group in (whole, *self.along.values()):
                group.watch(whole)

    def _along(self, axis: str) -> ProcessGroup:
        transport = self.whole.transport.subset(self.grid.group(axis, self.rank))
        return ProcessGroup(transport, self.whole.native.timeout, self.whole.asked_for_memory, self.whole)

    @property
    def address(self) -> int:
        """The address of the `ws_group` along the data axis."""
        return self.along[DATA].address

    @property
    def whole_address(self) -> int:
        """The address for programs that every rank runs over all rows."""
        return ctypes.addressof(self._all_rows)

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent so far."""
        return self.whole.bytes_sent + sum(group.bytes_sent for group in self.along.values())

    def broadcast(self, data: bytes) -> bytes:
        """Broadcast rank 0's bytes to every rank."""
        return self.whole.broadcast(data)

    def gather(self, data: bytes) -> Sequence[bytes]:
        """All-gather bytes: the result, on every rank, contains the bytes of all ranks."""
        return self.whole.gather(data)

    def check(self) -> None:
        """Raise WorkerError if a collective has failed; it names the lost rank and its last step."""
        natives = [*self._natives, self._all_rows]
        error = next((native.failed for native in natives if native.failed), 0)
        if not error:
            return
        for native in natives:  # end the collectives along all axes
            native.failed = native.failed or error
        groups = (self.whole, *self.along.values())
        missing_rank = next(group.missing_rank for group in groups if group.missing_rank >= 0)
        others = "" if self.whole.memory else "waits for another one, "
        raise self.whole.worker_error(error, missing_rank, max(int(native.step) for native in natives), others)

    @property
    def _natives(self) -> list[NativeGroup]:
        return [group.native for group in (self.whole, *self.along.values())]

    def wait_for(self, seconds: float) -> None:
        """Set the timeout of collectives."""
        for native in (*self._natives, self._all_rows):
            native.timeout = seconds
