"""Processes that are ranks of one job, started as people start them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from wholestep.distributed.launch import joining
from wholestep.distributed.transport.mpi import MPITransport
from wholestep.distributed.transport.process_group import ProcessGroup, Transport
from wholestep.options import read_launch

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "tests" / "distributed" / "scripts"


def transport() -> Transport:
    """What carries data between the ranks that this process is one of."""
    told = read_launch()
    assert told is not None
    if told.rendezvous:
        return joining.transport_of(told, timeout=60.0)
    from mpi4py import MPI

    return MPITransport(MPI.COMM_WORLD)


def wait_for(group: ProcessGroup, ranks: Sequence[int]) -> None:
    """Until these ranks, which all call it, have come so far.

    Of our own launcher's, the first waits for the others to end.
    """
    if isinstance(group.transport, MPITransport):
        world = group.transport.comm
        world.Create_group(world.group.Incl(ranks)).Barrier()
    elif group.rank == 0:
        while any(Path(f"/proc/{group.ranks[rank].pid}").exists() for rank in ranks if rank):
            time.sleep(0.01)


def mpiexec(count: int, module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`mpiexec -n count python -m module arguments`, with MPI's own program of this Python."""
    program = Path(sys.executable).parent / "mpiexec"
    return run([os.fspath(program), "-n", str(count), sys.executable, "-m", module, *arguments], environment)


def start(by: str, count: int, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A module of these tests as ranks, by `mpiexec` or by `wholestep launch`."""
    if by == "mpiexec":
        import pytest  # imported here because ranks import this module, and pytest takes 0.1 s

        pytest.importorskip("mpi4py", reason="MPI is an extra: pip install 'wholestep[mpi]'")
        return mpiexec(count, module, *arguments)
    return launch("-n", str(count), f"{module.replace('.', '/')}.py", *arguments)


def launch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`wholestep launch arguments`"""
    return run([sys.executable, "-m", "wholestep.cli", "launch", *arguments], environment)


def run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": os.fspath(ROOT), **environment}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False)
