"""Makes a process a rank: reads the launcher's variables, and joins the process group once."""

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

FAILED, LOST = 1, 75  # exit codes: the script has an error; a rank was lost, so a restart may help (EX_TEMPFAIL)
JOIN = 300.0  # the least seconds that a rank waits for the others, which may prepare data first
# Seconds that an ending rank waits for the others under MPI, whose launcher counts a rank that does not wait as lost.
FINISH = 60.0
INSTALL = "pip install 'wholestep[mpi]'"

_joined: ProcessGroup | None = None
_grids: dict[int, ProcessGrid] = {}  # number of ranks along the model axis -> grid


def join(workers: Workers) -> ProcessGroup | ProcessGrid | None:
    """The group of which this process is a rank; None if it was started alone and one worker is enough."""
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
    """The group as a mesh, if it has a model axis; raises in all ranks unless they ask for the same mesh."""
    model = workers.model or 1
    models = [text.decode() for text in group.gather(str(model).encode())]
    for rank, other in enumerate(models):
        if other != models[0]:
            raise UsageError(
                f"the workers disagree on the device mesh: rank {rank} has ws.Workers(model={other}), and rank 0 "
                f"model={models[0]}. Give all of them the same."
            )
    if group.size % model:
        raise UsageError(
            f"ws.Workers(model={model}): {group.size} processes were started, which is not a multiple of {model}. "
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
    arguments = "" if workers.count is None else workers.count
    shards: object = count
    if (workers.model or 1) > 1:
        shards = (workers.data or 1, workers.model)
        arguments = f"model={workers.model}" if workers.data is None else f"data={workers.data}, model={workers.model}"
    script = sys.argv[0] if sys.argv and sys.argv[0].endswith(".py") else "train.py"
    return (
        f"workers=ws.Workers({arguments}): this process is to be one of several, and it was started alone. Start them: "
        f"wholestep launch -n {count} {script}. To make their steps in this process, to the same bits: shards={shards}."
    )


def _need_count(wanted: int | None, started: int | None) -> None:
    if wanted is not None and started is not None and wanted != started:
        raise UsageError(
            f"workers=ws.Workers({wanted}), and {started} processes were started. Start as many: wholestep launch -n "
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
    """The transport between the ranks: our sockets if our launcher has started them, else MPI."""
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
    assert launch.count is not None, "the launcher sets it together with the rank"
    return SocketTransport(launch.rank, launch.count, meeting, max(timeout, JOIN))


def _world(launch: Launch) -> MPI.Intracomm:
    try:
        import mpi4py
    except ImportError as error:
        raise UsageError(
            f"these processes were started by MPI's launcher or Slurm, which needs mpi4py and an MPI library: "
            f"{INSTALL}. Or start them by `wholestep launch`, which needs neither."
        ) from error
    mpi4py.rc.finalize, mpi4py.rc.thread_level = False, "serialized"  # `_leave` ends it, with a timeout
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UsageError(f"mpi4py found no MPI library to load: {INSTALL} brings one. It said: {error}") from error
    world = MPI.COMM_WORLD
    if launch.count is not None and world.size != launch.count:
        library = MPI.Get_library_version().splitlines()[0].strip()
        raise UsageError(
            f"{launch.count} processes were started, and MPI knows of {world.size}: their launcher and the library of "
            f"mpi4py ({library}) belong to different MPI implementations. Start them by `wholestep launch`, or with "
            "that library's own mpiexec."
        )
    return world


class _Hook:
    """A replacement of sys.excepthook: an uncaught error ends this rank, and all others that wait for it."""

    def __init__(self, group: ProcessGroup, launch: Launch) -> None:
        self.group, self.launch, self.previous_hook = group, launch, sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, WorkerError):
            sys.stderr.write(f"error: {error}\n")
            if self.launch.notes is not None:
                os.pwrite(self.launch.notes, str(error).encode(), STEP_BYTES)
        else:
            self.previous_hook(kind, error, trace)
        _abort(self.group, self.launch, LOST if isinstance(error, WorkerError) else FAILED)


def _abort(group: ProcessGroup, launch: Launch, code: int) -> None:
    """End this process immediately; under MPI's launcher, which may not notice, all ranks."""
    atexit.unregister(_leave)
    group.leave()
    sys.stdout.flush()
    sys.stderr.flush()
    if launch.rendezvous:
        os._exit(code)
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(code)


def _leave(group: ProcessGroup, launch: Launch) -> None:
    """Called at the exit of a process: wait until the others have received its messages, or until a timeout."""
    if group.has_failed:
        _abort(group, launch, LOST)
    all_left = group.leave_together(FINISH)
    if all_left and not launch.rendezvous:
        from mpi4py import MPI

        MPI.Finalize()
