"""Ranks with one GPU each: NCCL carries the collectives of steps, the process group all other messages."""

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

SPINS = 200  # polls of the GPU before a waiting thread sleeps between two polls
SLEEP = 50e-6  # seconds between two polls
CHECK = 0.05  # seconds between two checks of the other ranks
ANSWER = 10.0  # seconds that a rank has to answer before it counts as absent
CLOSE = 5.0  # seconds that leaving may take

_joined: dict[int, NcclGroup] = {}  # number of a GPU -> its group


def take_gpu(workers: Workers) -> None:
    """Let `device="cuda"` mean this rank's GPU: rank i of a machine gets its GPU i."""
    control = _process_group_of(workers.join())
    if control is not None:
        machine = control.ranks[control.rank].machine
        before = sum(r.machine == machine for r in control.ranks[: control.rank])
        prefer_gpu(before % gpu_count())  # modulo, because a launcher may show each rank only its own GPU, as number 0


def join_gpus(workers: Workers, control: RankGroup | None, number: int) -> NcclGroup | NcclGrid | None:
    """The NCCL group of the rank that uses a GPU; None for a single process that did not request NCCL."""
    if control is None and workers.engine != "nccl":
        return None
    if number not in _joined:
        _joined[number] = NcclGroup(gpu(number), _process_group_of(control), workers.timeout)
        atexit.register(_joined[number].close)
    group = _joined[number]
    group.timeout = workers.timeout
    return group if control is None or control.grid == group.grid else NcclGrid(group, control.grid)


def _process_group_of(control: RankGroup | None) -> ProcessGroup | None:
    """The group of all processes, without the axes of a mesh."""
    group = control.whole if isinstance(control, ProcessGrid) else control
    assert group is None or isinstance(group, ProcessGroup)
    return group


class NcclGroup:
    """A group of ranks with one GPU each, as one of its ranks uses it.

    Args:
        gpu: the GPU of this rank.
        control: the group of the processes; None for a single process.
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
            self._raise_late()
        gpu.watch = self

    def _meet(self) -> None:
        """Check, on all ranks, that each has the same version of NCCL and a different GPU."""
        try:
            description: dict[str, object] = {
                "gpu": self._gpu.bus,
                "called": self._gpu.name,
                "count": gpu_count(),
                "nccl": nccl.version(),
            }
        except UsageError as error:
            description = {"missing": str(error)}
        descriptions = [json.loads(text) for text in self.gather(json.dumps(description).encode())]
        rank_of_gpu: dict[tuple[str, str], int] = {}
        for rank, other in enumerate(descriptions):
            if "missing" in other:
                raise UsageError(
                    other["missing"] if self.size == 1 else f"{self._describe_rank(rank)}: {other['missing']}"
                )
            if other["nccl"] != descriptions[0]["nccl"]:
                raise UsageError(
                    f"{self._describe_rank(rank)} has NCCL {other['nccl']}, and rank 0 has "
                    f"{descriptions[0]['nccl']}: install the same version everywhere."
                )
            first = rank_of_gpu.setdefault((self._machine(rank), other["gpu"]), rank)
            if first != rank:
                raise UsageError(
                    f"ranks {first} and {rank} have the same GPU, {other['called']} at {other['gpu']}, and NCCL needs "
                    f"one for each rank. This machine has {other['count']}: start at most as many workers on it, and "
                    "let device='cuda', without a number, take a GPU for each."
                )

    # -- who they are ----------------------------------------------------------------------------------------------

    def _machine(self, rank: int) -> str:
        """The boot id of a rank's machine, which containers share as they share its GPUs."""
        return "" if self._control is None else self._control.ranks[rank].machine.partition(" ")[0]

    def _describe_rank(self, rank: int) -> str:
        return "rank 0" if self._control is None else self._control.ranks[rank].describe(rank, self.size)

    def along(self, axis: str) -> tuple[int, Sequence[int]]:
        """This rank's coordinate along an axis, and the numbers of all ranks of that group."""
        return self.grid.coordinate(axis, self.rank), self.grid.group(axis, self.rank)

    # -- a group ---------------------------------------------------------------------------------------------------

    @property
    def address(self) -> int:
        """None, because no native program calls this group."""
        return 0

    whole_address = address

    def broadcast(self, data: bytes) -> bytes:
        """Broadcast rank 0's bytes to every rank."""
        return data if self._control is None else self._control.broadcast(data)

    def gather(self, data: bytes) -> Sequence[bytes]:
        """All-gather bytes: the result, on every rank, contains the bytes of all ranks."""
        return [data] if self._control is None else self._control.gather(data)

    def check(self) -> None:
        """Raise a failure of the process group; `until` raises failures of NCCL."""
        if self._control is not None:
            self._control.check()

    # -- waiting ---------------------------------------------------------------------------------------------------

    def until(self, is_done: Callable[[], bool]) -> None:
        """Wait for the GPU; raises WorkerError if a rank that it waits for is gone, or does not come."""
        for _ in range(SPINS):
            if is_done():
                return
        start = last_check = time.monotonic()
        while not is_done():
            now = time.monotonic()
            if now - last_check >= CHECK:
                last_check = now
                self._check_peers(now - start)
            time.sleep(SLEEP)

    def _check_peers(self, seconds: float) -> None:
        lost = self._find_lost_rank()
        if lost is not None:
            self._abort()
            raise WorkerError(
                f"{self._describe_rank(lost)} {GONE[0]}. {self._progress_text} {GONE[1]}", lost, self.step
            )
        error = self.communicator.error()
        if error:
            self._abort()
            raise WorkerError(
                f"NCCL could not exchange: {error}. {self._progress_text} {GONE[1]}",
                self._find_absent_rank(),
                self.step,
            )
        if seconds > self.timeout:
            self._abort()
            self._raise_late()

    def _raise_late(self) -> NoReturn:
        absent = self._find_absent_rank()
        named = "a rank" if absent is None else self._describe_rank(absent)
        what, how = LATE[0].format(timeout=self.timeout, others=""), LATE[1]
        raise WorkerError(f"{named} {what}. {self._progress_text} {how}", absent, self.step)

    @property
    def _progress_text(self) -> str:
        return f"All had made {self.step} steps."

    def _find_lost_rank(self) -> int | None:
        """A rank of this machine whose process has ended; None if there is none."""
        if self._control is None:
            return None
        ranks, machine = self._control.ranks, self._control.ranks[self.rank].machine
        here = [rank for rank, each in enumerate(ranks) if rank != self.rank and each.machine == machine]
        return next((rank for rank in here if _is_dead(ranks[rank].pid)), None)

    def _find_absent_rank(self) -> int | None:
        """A rank that does not answer; None if all answer, or if the rank is unknown."""
        if self._control is None:
            return None
        self._control.wait_for(min(self.timeout, ANSWER))
        try:
            self._control.gather(b"")
        except WorkerError as error:
            return error.rank
        return None

    # -- the end ---------------------------------------------------------------------------------------------------

    def _abort(self) -> None:
        """Abort the communicator: NCCL kernels that wait for a lost rank would never end."""
        self._leave(self.communicator.abort)

    def close(self) -> None:
        """Close the communicator, unless it was closed before."""
        if self._gpu.watch is self:
            self._leave(self.communicator.close)

    def _leave(self, call: Callable[[], None]) -> None:
        """Leave with `call` in bounded time; CUDA graphs with collectives, for which NCCL waits, are dropped first."""
        self._gpu.watch = None
        for user in list(self.users):
            user.forget_graphs()

        def leave() -> None:
            with suppress(Exception):  # the process or the run ends even if this fails
                call()

        thread = Thread(target=leave, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # an interpreter that is shutting down cannot start threads
            leave()
        else:
            thread.join(CLOSE)


class NcclGrid:
    """The same ranks as a mesh: a collective runs among the ranks along one axis."""

    engine = "nccl"

    def __init__(self, whole: NcclGroup, grid: Mesh) -> None:
        self.whole, self.grid, self.rank, self.size = whole, grid, whole.rank, whole.size
        self.communicator, self.users = whole.communicator, whole.users
        self.address = self.whole_address = whole.address
        self.broadcast, self.gather, self.check = whole.broadcast, whole.gather, whole.check

    @property
    def step(self) -> int:
        """The current step, common to all axes."""
        return self.whole.step

    @step.setter
    def step(self, value: int) -> None:
        self.whole.step = value

    def along(self, axis: str) -> tuple[int, Sequence[int]]:
        """This rank's coordinate along an axis, and the numbers of all ranks of that group."""
        return self.grid.coordinate(axis, self.rank), self.grid.group(axis, self.rank)


def _is_dead(pid: int) -> bool:
    """Is a process gone, or a zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except FileNotFoundError:
        return True
    except OSError:
        return False
