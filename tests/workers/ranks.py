"""Processes that are ranks of one job, started as people start them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from wholestep.workers import launching

ROOT = Path(__file__).parent.parent.parent


def is_open_mpi() -> bool:
    """Are ranks of this machine started by Open MPI's own launcher?  With MPICH they are ours."""
    return launching._library_of(launching.find_mpiexec()) == "Open MPI"


def lost(rank: str, how: str) -> str:
    """What is said of a lost rank of two, as a regular expression of a whole line, by whoever started it."""
    if is_open_mpi():
        return rf"wholestep: {rank} of 2 \(process \d+ on \S+\) {how}(; it was last heard of at step \d+)?"
    return f"wholestep: {rank} of 2 {how}"


def mpiexec(count: int, module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`mpiexec -n count python -m module arguments`, with MPI's own program of this Python."""
    program = Path(sys.executable).parent / "mpiexec"
    return run([os.fspath(program), "-n", str(count), sys.executable, "-m", module, *arguments], environment)


def launch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`wholestep launch arguments`"""
    return run([sys.executable, "-m", "wholestep.cli", "launch", *arguments], environment)


def run(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": os.fspath(ROOT), **environment}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False)
