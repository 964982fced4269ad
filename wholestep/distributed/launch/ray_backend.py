"""Inside Ray's processes: the controller serves the rendezvous, and each worker starts a rank that joins it.

The job's secret reaches the workers through Ray's calls, which its tokens protect.
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
from wholestep.distributed.launch.rank_processes import DIES_WITH_PARENT, FINISHED, RankExit
from wholestep.distributed.launch.ray import FAILED, RankProgram, log_of
from wholestep.distributed.launch.rendezvous import LOOPBACK, Rendezvous
from wholestep.options import launch_variables, rank_variables, read_launch

LAST_LINES = 20  # lines of a rank's log that the error about it shows


class RankConfig(BackendConfig):
    """The configuration of Ray workers that start ranks."""

    def __init__(self, program: RankProgram) -> None:
        self.program = program

    @property
    def backend_cls(self) -> type[Backend]:
        return RankBackend


class RankBackend(Backend):
    """Runs in Ray's controller: a new rendezvous and secret for every start of the workers."""

    rendezvous: Rendezvous | None = None
    starts = 0

    def on_start(self, worker_group: Any, backend_config: RankConfig) -> None:
        """Start a rendezvous, and set the environment of each worker's rank."""
        self.on_shutdown(worker_group, backend_config)
        workers, program = worker_group.get_workers(), backend_config.program
        nodes = Counter(w.metadata.node_id for w in workers)
        is_here = nodes.keys() == {get_runtime_context().get_node_id()}
        host, secret = LOOPBACK if is_here else get_node_ip_address(), new_secret()
        self.rendezvous = Rendezvous(len(workers), secret, [host])
        self.rendezvous.open()
        for rank, worker in enumerate(workers):
            of_rank = rank_variables(rank, self.rendezvous.address(host), secret, worker.metadata.node_id)
            of_launch = (len(workers), self.starts, program.restarts, program.since)
            worker_group.execute_single(rank, set_variables, of_rank, of_launch, nodes[worker.metadata.node_id])
        self.starts += 1

    def on_shutdown(self, worker_group: Any, backend_config: RankConfig) -> None:
        """Close the rendezvous."""
        if self.rendezvous is not None:
            self.rendezvous.close()
            self.rendezvous = None


def set_variables(of_rank: Mapping[str, str], of_launch: tuple[int, int, int, float], local_ranks: int) -> None:
    """Runs on a worker: set the environment of its rank; the ranks of a machine share its cores."""
    os.environ.update({**launch_variables(*of_launch, max(1, default_threads() // local_ranks)), **of_rank})


def run_rank(config: Mapping[str, RankProgram]) -> None:
    """Runs on a worker: run the program as a rank until it ends; it is killed when the worker ends."""
    program, rank = config["program"], get_context().get_world_rank()
    path, libc = log_of(Path(program.logs), rank), ctypes.CDLL(None)
    launch, failed = read_launch(), Path(program.logs) / FAILED
    assert launch is not None, "set_variables has set it"
    if failed.exists():  # Ray would restart after an exception, which does not help if the script has an error
        report({"code": 1})
        return
    with path.open("ab") as log:
        if launch.attempt and rank == 0:
            message = f"starting again from the last checkpoint ({launch.attempt} of {launch.restarts} restarts)"
            log.write(f"wholestep: {message}\n".encode())
            log.flush()
        child = subprocess.Popen(
            program.command,
            cwd=program.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: libc.prctl(DIES_WITH_PARENT, signal.SIGKILL),
        )
        rank_exit = RankExit.of_code(rank, child.wait())
        how = f"rank {rank} of {launch.count} {rank_exit.how}"
        if rank_exit.code not in FINISHED:
            log.write(f"wholestep: {how}\n".encode())
    last = "\n".join(path.read_text(errors="replace").splitlines()[-LAST_LINES:])
    if rank_exit.code not in (*FINISHED, LOST) and not rank_exit.is_lost:  # the script has an error
        failed.write_text(f"{how}. Its last output:\n{last}", encoding="utf-8")
    elif rank_exit.code not in FINISHED and not failed.exists():
        raise RuntimeError(f"{how}. Its last output:\n{last}")
    report({"code": rank_exit.code})
