"""Ranks with a GPU each: NCCL carries what their steps exchange, their processes' own group everything else."""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, NoReturn
from weakref import WeakSet

from wholestep.compiler.backends.cuda.driver.driver import Gpu, gpu, gpu_count
from wholestep.compiler.backends.cuda.libraries import nccl
from wholestep.compiler.backends.cuda.runtime.device import prefer_gpu
from wholestep.compiler.ir.mesh import Mesh
from wholestep.distributed.transport.grid import ProcessGrid
from wholestep.distributed.transport.process_group import GONE, LATE, ProcessGroup
from wholestep.errors import UsageError, WorkerError

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.runtime.collectives import GraphOwner
    from wholestep.compiler.runtime.process_group import RankGroup
    from wholestep.distributed.workers import Workers

SPINS = 200  # looks at the GPU, one after the other, before somebody who waits sleeps in between:
SLEEP = 50e-6  # seconds
LOOK = 0.05  # seconds from one look at the others to the next
ASK = 10.0  # seconds that they have to say that they are there
CLOSE = 5.0  # seconds that leaving may take

_joined: dict[int, NcclGroup] = {}  # by GPU


def take_gpu(workers: Workers) -> None:
    """Let `device="cuda"` mean this rank's own: the first rank of a machine has the first of its GPUs."""
    control = _whole(workers.join())
    if control is not None:
        own = control.ranks[control.rank].machine
        before = sum(r.machine == own for r in control.ranks[: control.rank])
        prefer_gpu(before % gpu_count())  # where a launcher shows each its own alone, that one is number 0


def join_gpus(workers: Workers, control: RankGroup | None, number: int) -> NcclGroup | NcclGrid | None:
    """The group whose ranks exchange by NCCL, this one with the GPU of a number; None for a process that is alone and
    has not asked for it.
    """
    if control is None and workers.engine != "nccl":
        return None
    if number not in _joined:
        _joined[number] = NcclGroup(gpu(number), _whole(control), workers.timeout)
        atexit.register(_joined[number].close)
    found = _joined[number]
    found.timeout = workers.timeout
    return found if control is None or control.grid == found.grid else NcclGrid(found, control.grid)


def _whole(control: RankGroup | None) -> ProcessGroup | None:
    """All processes, however they stand."""
    found = control.whole if isinstance(control, ProcessGrid) else control
    assert found is None or isinstance(found, ProcessGroup)
    return found


class NcclGroup:
    """Ranks with a GPU each, seen from one of them.

    Args:
        gpu: this rank's own.
        control: the group of their processes; None where this one is alone.
        timeout: seconds that a step waits for the others.
    """

    engine = "nccl"

    def __init__(self, gpu: Gpu, control: ProcessGroup | None, timeout: float) -> None:
        self._gpu, self._control, self.timeout = gpu, control, timeout
        self.rank, self.size = (0, 1) if control is None else (control.rank, control.size)
        self.grid = Mesh(self.size)
        self.step = 0
        self.users: WeakSet[GraphOwner] = WeakSet()
        self._meet()
        id = self.broadcast(nccl.new_id() if self.rank == 0 else b"")
        try:
            self.communicator = nccl.Communicator(gpu, self.rank, self.size, id, timeout)
        except TimeoutError:
            self._say_late()
        gpu.watch = self

    def _meet(self) -> None:
        """Every rank has the library, of one version, and a GPU of its own; all of them hear what is wrong."""
        try:
            own: dict[str, object] = {
                "gpu": self._gpu.bus,
                "called": self._gpu.name,
                "count": gpu_count(),
                "nccl": nccl.version(),
            }
        except UsageError as error:
            own = {"missing": str(error)}
        told = [json.loads(text) for text in self.gather(json.dumps(own).encode())]
        seen: dict[tuple[str, str], int] = {}
        for rank, other in enumerate(told):
            if "missing" in other:
                raise UsageError(
                    other["missing"] if self.size == 1 else f"{self._describe_rank(rank)}: {other['missing']}"
                )
            if other["nccl"] != told[0]["nccl"]:
                raise UsageError(
                    f"{self._describe_rank(rank)} has NCCL {other['nccl']}, and rank 0 has {told[0]['nccl']}: install "
                    "the same version everywhere."
                )
            first = seen.setdefault((self._machine(rank), other["gpu"]), rank)
            if first != rank:
                raise UsageError(
                    f"ranks {first} and {rank} have the same GPU, {other['called']} at {other['gpu']}, and NCCL wants "
                    f"one for each. This machine shows {other['count']}: start at most as many workers on it, and let "
                    "device='cuda', without a number, take a GPU for each."
                )

    # -- who they are ----------------------------------------------------------------------------------------------

    def _machine(self, rank: int) -> str:
        """By the boot of its kernel: containers of one machine have its GPUs."""
        return "" if self._control is None else self._control.ranks[rank].machine.partition(" ")[0]

    def _describe_rank(self, rank: int) -> str:
        return "rank 0" if self._control is None else self._control.ranks[rank].named(rank, self.size)

    def along(self, axis: str) -> tuple[int, Sequence[int]]:
        """Where this rank stands, and the numbers of all that stand along an axis."""
        return self.grid.place(axis, self.rank), self.grid.beside(axis, self.rank)

    # -- a group ---------------------------------------------------------------------------------------------------

    @property
    def address(self) -> int:
        """No native program calls it."""
        return 0

    whole_address = address

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's bytes, on every rank."""
        return data if self._control is None else self._control.broadcast(data)

    def gather(self, data: bytes) -> Sequence[bytes]:
        """The bytes of all ranks, on every rank."""
        return [data] if self._control is None else self._control.gather(data)

    def check(self) -> None:
        """Raise what went wrong among the processes; what goes wrong among the GPUs is raised where it is seen."""
        if self._control is not None:
            self._control.check()

    # -- waiting ---------------------------------------------------------------------------------------------------

    def until(self, is_done: Callable[[], bool]) -> None:
        """Return when the GPU is done; WorkerError where a rank that it waits for is gone, or does not come."""
        for _ in range(SPINS):
            if is_done():
                return
        began = looked = time.monotonic()
        while not is_done():
            now = time.monotonic()
            if now - looked >= LOOK:
                looked = now
                self._look(now - began)
            time.sleep(SLEEP)

    def _look(self, waited: float) -> None:
        lost = self._lost_rank()
        if lost is not None:
            self._abort()
            raise WorkerError(f"{self._describe_rank(lost)} {GONE[0]}. {self._so_far} {GONE[1]}", lost, self.step)
        error = self.communicator.error()
        if error:
            self._abort()
            raise WorkerError(f"NCCL could not exchange: {error}. {self._so_far} {GONE[1]}", self._absent(), self.step)
        if waited > self.timeout:
            self._abort()
            self._say_late()

    def _say_late(self) -> NoReturn:
        absent = self._absent()
        named = "a rank" if absent is None else self._describe_rank(absent)
        what, how = LATE[0].format(timeout=self.timeout, others=""), LATE[1]
        raise WorkerError(f"{named} {what}. {self._so_far} {how}", absent, self.step)

    @property
    def _so_far(self) -> str:
        return f"All had made {self.step} steps."

    def _lost_rank(self) -> int | None:
        """A rank of this machine whose process is gone."""
        if self._control is None:
            return None
        ranks, own = self._control.ranks, self._control.ranks[self.rank].machine
        here = [rank for rank, each in enumerate(ranks) if rank != self.rank and each.machine == own]
        return next((rank for rank in here if _is_dead(ranks[rank].pid)), None)

    def _absent(self) -> int | None:
        """A rank that does not say that it is there; None where all do, or nobody can tell."""
        if self._control is None:
            return None
        self._control.wait_for(min(self.timeout, ASK))
        try:
            self._control.gather(b"")
        except WorkerError as error:
            return error.rank
        return None

    # -- the end ---------------------------------------------------------------------------------------------------

    def _abort(self) -> None:
        """End what is under way: kernels of NCCL that wait for a rank would wait for ever."""
        self._leave(self.communicator.abort)

    def close(self) -> None:
        """Leave, unless it has ended before."""
        if self._gpu.watch is self:
            self._leave(self.communicator.close)

    def _leave(self, call: Callable[[], None]) -> None:
        """Either way NCCL waits for graphs that have exchanges in them, and perhaps for ranks that are gone."""
        self._gpu.watch = None
        for user in list(self.users):
            user.forget_graphs()

        def leave() -> None:
            with suppress(Exception):  # the process, or the run, ends anyway
                call()

        thread = Thread(target=leave, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # an interpreter that ends begins no threads
            leave()
        else:
            thread.join(CLOSE)


class NcclGrid:
    """The same ranks where they stand in a grid: a collective is among those along an axis, by their numbers."""

    engine = "nccl"

    def __init__(self, whole: NcclGroup, grid: Mesh) -> None:
        self.whole, self.grid, self.rank, self.size = whole, grid, whole.rank, whole.size
        self.communicator, self.users = whole.communicator, whole.users
        self.address = self.whole_address = whole.address
        self.broadcast, self.gather, self.check = whole.broadcast, whole.gather, whole.check

    @property
    def step(self) -> int:
        """That is under way: all of them count together."""
        return self.whole.step

    @step.setter
    def step(self, value: int) -> None:
        self.whole.step = value

    def along(self, axis: str) -> tuple[int, Sequence[int]]:
        """Where this rank stands, and the numbers of all that stand along an axis."""
        return self.grid.place(axis, self.rank), self.grid.beside(axis, self.rank)


def _is_dead(pid: int) -> bool:
    """Is a process gone, or does it wait to be buried?"""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except FileNotFoundError:
        return True
    except OSError:
        return False
