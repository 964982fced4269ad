"""Inside Ray's processes: the controller serves the rendezvous, and each worker starts a rank that joins it.

Workers are told the secret of the job through Ray's own calls, which its tokens protect.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import get_runtime_context
from ray.train import get_context, report
from ray.train.backend import Backend, BackendConfig
from ray.util import get_node_ip_address

from wholestep.compiler.runtime.threads import default_threads
from wholestep.distributed.launch.authentication import new_secret
from wholestep.distributed.launch.joining import LOST
from wholestep.distributed.launch.rank_processes import DIES_WITH_PARENT, FINISHED, Ended
from wholestep.distributed.launch.ray import FAILED, RankProgram, log_of
from wholestep.distributed.launch.rendezvous import LOOPBACK, Rendezvous
from wholestep.options import launch_variables, rank_variables, read_launch

KEPT_LINES = 20  # of what a rank wrote last, in the error about it


class RankConfig(BackendConfig):
    """Workers that start ranks."""

    def __init__(self, program: RankProgram) -> None:
        self.program = program

    @property
    def backend_cls(self) -> type[Backend]:
        return RankBackend


class RankBackend(Backend):
    """In Ray's controller: a rendezvous and a secret for every start of the workers."""

    rendezvous: Rendezvous | None = None
    starts = 0

    def on_start(self, worker_group: Any, backend_config: RankConfig) -> None:
        """Tell each worker where its rank meets the others."""
        self.on_shutdown(worker_group, backend_config)
        workers, program = worker_group.get_workers(), backend_config.program
        nodes = Counter(w.metadata.node_id for w in workers)
        is_here = nodes.keys() == {get_runtime_context().get_node_id()}
        host, secret = LOOPBACK if is_here else get_node_ip_address(), new_secret()
        self.rendezvous = Rendezvous(len(workers), secret, [host])
        self.rendezvous.open()
        for rank, worker in enumerate(workers):
            own = rank_variables(rank, self.rendezvous.address(host), secret, worker.metadata.node_id)
            started = (len(workers), self.starts, program.restarts, program.since)
            worker_group.execute_single(rank, set_variables, own, started, nodes[worker.metadata.node_id])
        self.starts += 1

    def on_shutdown(self, worker_group: Any, backend_config: RankConfig) -> None:
        """Close the rendezvous."""
        if self.rendezvous is not None:
            self.rendezvous.close()
            self.rendezvous = None


def set_variables(own: Mapping[str, str], started: tuple[int, int, int, float], beside: int) -> None:
    """On a worker: what its rank will find in its environment; those of a machine share its cores."""
    os.environ.update({**launch_variables(*started, max(1, default_threads() // beside)), **own})


def run_rank(config: Mapping[str, RankProgram]) -> None:
    """On a worker: the program as one of the ranks, to its end.  It ends when the worker does."""
    program, rank = config["program"], get_context().get_world_rank()
    path, libc = log_of(Path(program.logs), rank), ctypes.CDLL(None)
    launch, failed = read_launch(), Path(program.logs) / FAILED
    assert launch is not None, "the backend has said so"
    if failed.exists():  # Ray knows no errors that starting again does not mend
        report({"code": 1})
        return
    with path.open("ab") as log:
        if launch.attempt and rank == 0:
            again = f"starting again from the last checkpoint ({launch.attempt} of {launch.restarts} restarts)"
            log.write(f"wholestep: {again}\n".encode())
            log.flush()
        child = subprocess.Popen(
            program.command,
            cwd=program.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: libc.prctl(DIES_WITH_PARENT, signal.SIGKILL),
        )
        ended = Ended.by(rank, child.wait())
        how = f"rank {rank} of {launch.count} {ended.how}"
        if ended.code not in FINISHED:
            log.write(f"wholestep: {how}\n".encode())
    last = "\n".join(path.read_text(errors="replace").splitlines()[-KEPT_LINES:])
    if ended.code not in FINISHED and ended.code != LOST and not ended.is_lost:  # the script's own mistake
        failed.write_text(f"{how}. It wrote last:\n{last}")
    elif ended.code not in FINISHED and not failed.exists():
        raise RuntimeError(f"{how}. It wrote last:\n{last}")
    report({"code": ended.code})
