"""Processes that are ranks of one job, started as people start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def mpiexec(count: int, module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`mpiexec -n count python -m module arguments`, with MPI's own program of this Python."""
    program = Path(sys.executable).parent / "mpiexec"
    command = [os.fspath(program), "-n", str(count), sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
