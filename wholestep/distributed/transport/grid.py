"""Processes in a grid: a group of all of them, and of each those along either axis."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from wholestep.compiler.backends.cpu.runtime.library import NativeGroup as NativeGroup
from wholestep.compiler.ir.mesh import AXES, DATA, Mesh
from wholestep.distributed.transport.process_group import ProcessGroup


class ProcessGrid:
    """Ranks that are processes, of which `model` at a time have the same rows.

    What Python says goes to all of them; native programs exchange along the axes.
    """

    def __init__(self, whole: ProcessGroup, model: int) -> None:
        self.whole, self.rank, self.size, self.engine = whole, whole.rank, whole.size, whole.engine
        self.grid = Mesh(whole.size // model, model)
        self.along = {axis: self._along(axis) for axis in AXES}
        first, beside = (self.along[axis].native for axis in AXES)
        first.model = ctypes.addressof(beside)
        # A rank that has all rows is alone but for those along the model axis.
        self._whole_rows = NativeGroup(rank=0, size=1, timeout=first.timeout, model=first.model)
        self.wait_for(whole.native.timeout)
        if whole.memory:
            for group in (whole, *self.along.values()):
                group.watch(whole)

    def _along(self, axis: str) -> ProcessGroup:
        transport = self.whole.transport.subset(self.grid.beside(axis, self.rank))
        return ProcessGroup(transport, self.whole.native.timeout, self.whole.asked_for_memory, self.whole)

    @property
    def address(self) -> int:
        """Of the `ws_group` along the data axis."""
        return self.along[DATA].address

    @property
    def whole_address(self) -> int:
        """The same for programs that are given all rows."""
        return ctypes.addressof(self._whole_rows)

    @property
    def sent(self) -> int:
        """Bytes that the others were given so far."""
        return self.whole.sent + sum(group.sent for group in self.along.values())

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's bytes, on every rank."""
        return self.whole.broadcast(data)

    def gather(self, data: bytes) -> Sequence[bytes]:
        """The bytes of all ranks, on every rank."""
        return self.whole.gather(data)

    def check(self) -> None:
        """Raise what went wrong in a collective: WorkerError, which names the rank and its last step."""
        natives = [*self._natives, self._whole_rows]
        error = next((native.failed for native in natives if native.failed), 0)
        if not error:
            return
        for native in natives:  # nothing is exchanged any more, along no axis
            native.failed = native.failed or error
        missing = next(found for group in (self.whole, *self.along.values()) if (found := group.missing) >= 0)
        others = "" if self.whole.memory else "waits for another one, "
        raise self.whole.lost(error, missing, max(int(native.step) for native in natives), others)

    @property
    def _natives(self) -> list[NativeGroup]:
        return [group.native for group in (self.whole, *self.along.values())]

    def wait_for(self, seconds: float) -> None:
        """From now on a collective waits so long for the others."""
        for native in (*self._natives, self._whole_rows):
            native.timeout = seconds
