"""How a process becomes a rank: it finds what a launcher has told it, and joins the others, once."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from wholestep.distributed.launch.rank_processes import STEP_BYTES
from wholestep.errors import UsageError, WorkerError
from wholestep.options import Launch, read_launch

if TYPE_CHECKING:
    from mpi4py import MPI

    from wholestep.distributed.transport.grid import ProcessGrid
    from wholestep.distributed.transport.process_group import ProcessGroup, Transport
    from wholestep.distributed.workers import Workers

log = logging.getLogger("wholestep")

FAILED, LOST = 1, 75  # exit codes: an error of the script's own; a rank was lost, and a restart may go on (EX_TEMPFAIL)
JOIN = 300.0  # seconds, at least, that a rank waits for the others to join: what comes before a run differs among them
# Seconds that a rank of MPI which ends waits for the others: MPI's own launcher takes one that does not for lost.
FINISH = 60.0
INSTALL = "pip install 'wholestep[mpi]'"

_joined: ProcessGroup | None = None
_grids: dict[int, ProcessGrid] = {}  # by how many ranks stand along the model axis


def join(workers: Workers) -> ProcessGroup | ProcessGrid | None:
    """The group that this process is a rank of; None where it is alone and need not be more."""
    launch = read_launch()
    if launch is None:
        if workers.count == 1:
            return None
        raise UsageError(_not_launched_text(workers))
    _need_count(workers.count, launch.count)
    group = _joined or _join(launch, workers.timeout)
    group.wait_for(workers.timeout)
    _need_count(workers.count, group.size)
    return _in_grid(group, workers) if group.size > 1 or workers.model else None


def _in_grid(group: ProcessGroup, workers: Workers) -> ProcessGroup | ProcessGrid:
    """The ranks as they stand; all say the same, or each of them is told who does not."""
    model = workers.model or 1
    told = [text.decode() for text in group.gather(str(model).encode())]
    for rank, other in enumerate(told):
        if other != told[0]:
            raise UsageError(
                f"the workers do not stand in one grid: rank {rank} has ws.Workers(model={other}), and rank 0 "
                f"model={told[0]}. Give all of them the same."
            )
    if group.size % model:
        raise UsageError(
            f"ws.Workers(model={model}): {group.size} processes were started, which do not stand in rows of {model}. "
            f"Start a multiple of it: wholestep launch -n {2 * model} ..."
        )
    if model == 1:
        return group
    from wholestep.distributed.transport.grid import ProcessGrid

    if model not in _grids:
        _grids[model] = ProcessGrid(group, model)
    _grids[model].wait_for(workers.timeout)
    return _grids[model]


def _not_launched_text(workers: Workers) -> str:
    count = workers.count or workers.model or 2
    shown = "" if workers.count is None else workers.count
    shards: object = count
    if (workers.model or 1) > 1:
        shards = (workers.data or 1, workers.model)
        shown = f"model={workers.model}" if workers.data is None else f"data={workers.data}, model={workers.model}"
    script = sys.argv[0] if sys.argv and sys.argv[0].endswith(".py") else "train.py"
    return (
        f"workers=ws.Workers({shown}): this process is to be one of several, and it was started alone. Start them: "
        f"wholestep launch -n {count} {script}. To make their steps in this process, to the same bits: shards={shards}."
    )


def _need_count(wanted: int | None, there: int | None) -> None:
    if wanted is not None and there is not None and wanted != there:
        raise UsageError(
            f"workers=ws.Workers({wanted}), and {there} processes were started. Start as many: wholestep launch -n "
            f"{wanted} ...; or leave the number out, ws.Workers(), to take those that there are."
        )


def _join(launch: Launch, timeout: float) -> ProcessGroup:
    global _joined
    from wholestep.distributed.transport.process_group import ProcessGroup

    _joined = ProcessGroup(transport_of(launch, timeout), timeout)
    _joined.notes = launch.notes
    atexit.register(_leave, _joined, launch)
    sys.excepthook = _Hook(_joined, launch)
    return _joined


def transport_of(launch: Launch, timeout: float) -> Transport:
    """What carries data between the ranks: sockets of ours where we have started them, else MPI."""
    if not launch.rendezvous:
        from wholestep.distributed.transport.mpi import MPITransport

        return MPITransport(_world(launch))
    from wholestep.distributed.transport.sockets import Meeting, SocketTransport

    host, _, port = launch.rendezvous.rpartition(":")
    if not launch.secret:
        raise UsageError(
            "WHOLESTEP_RENDEZVOUS is set and WHOLESTEP_SECRET is not: a rank joins its job by both. Start all ranks by "
            "`wholestep launch`."
        )
    meeting = Meeting((host, int(port)), bytes.fromhex(launch.secret), launch.node)
    assert launch.count is not None, "said with the rank"
    return SocketTransport(launch.rank, launch.count, meeting, max(timeout, JOIN))


def _world(launch: Launch) -> MPI.Intracomm:
    try:
        import mpi4py
    except ImportError as error:
        raise UsageError(
            f"these processes were started by MPI's launcher or Slurm, which needs mpi4py and an MPI library: "
            f"{INSTALL}. Or start them by `wholestep launch`, which needs neither."
        ) from error
    mpi4py.rc.finalize, mpi4py.rc.thread_level = False, "serialized"  # we end it, within bounds: see `_leave`
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UsageError(f"mpi4py found no MPI library to load: {INSTALL} brings one. It said: {error}") from error
    world = MPI.COMM_WORLD
    if launch.count is not None and world.size != launch.count:
        library = MPI.Get_library_version().splitlines()[0].strip()
        raise UsageError(
            f"{launch.count} processes were started, and MPI knows of {world.size}: what has started them and the "
            f"library of mpi4py ({library}) are not of one kind. Start them by `wholestep launch`, or with that "
            "library's own mpiexec."
        )
    return world


class _Hook:
    """An error that nobody catches ends this rank and, where others wait for it, them."""

    def __init__(self, group: ProcessGroup, launch: Launch) -> None:
        self.group, self.launch, self.before = group, launch, sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, WorkerError):
            sys.stderr.write(f"error: {error}\n")
            if self.launch.notes is not None:
                os.pwrite(self.launch.notes, str(error).encode(), STEP_BYTES)
        else:
            self.before(kind, error, trace)
        _abort(self.group, self.launch, LOST if isinstance(error, WorkerError) else FAILED)


def _abort(group: ProcessGroup, launch: Launch, code: int) -> None:
    """End this process at once and, where nobody but MPI's own launcher sees that, all."""
    atexit.unregister(_leave)
    group.leave()
    sys.stdout.flush()
    sys.stderr.flush()
    if launch.rendezvous:
        os._exit(code)
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(code)


def _leave(group: ProcessGroup, launch: Launch) -> None:
    """At the end of a process: what it has sent is taken by the others, or they do not come and it ends alone."""
    if group.failed:
        _abort(group, launch, LOST)
    together = group.leave_together(FINISH)
    if together and not launch.rendezvous:
        from mpi4py import MPI

        MPI.Finalize()
