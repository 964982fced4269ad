"""A process beside each rank of `wholestep launch --hosts`: it starts the rank, outlives it, and tells how it ended.

MPI's own launcher ends all ranks where one is lost, before anybody can say which, and where it was.  So it is given
this process in the rank's place: one that stays until our launcher, who is told by a line, ends the job.

    python -m wholestep.workers.watching python train.py ...
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

from wholestep.options import launched, noting_variables
from wholestep.workers.ranks import DIES_WITH_PARENT, FINISHED, FORWARDED, STEP_BYTES, Ended

MARK = "wholestep: rank ended: "  # before what our launcher is told
PATIENCE = 120.0  # seconds that it has to end the job


def main(command: Sequence[str]) -> int:
    """Run a command as a rank; its exit code, 128 + signal where one killed it."""
    launch, libc, notes = launched(), ctypes.CDLL(None), os.memfd_create("wholestep-step")
    os.set_inheritable(notes, True)
    child = subprocess.Popen(
        command,
        env={**os.environ, **noting_variables(notes)},
        close_fds=False,  # it reaches MPI's launcher through a file that we were given
        start_new_session=True,  # signals are handed on, once
        preexec_fn=lambda: libc.prctl(DIES_WITH_PARENT, signal.SIGKILL),
    )
    for number in FORWARDED:
        signal.signal(number, lambda number, _: child.send_signal(number))
    ended = Ended.by(0 if launch is None else launch.rank, child.wait())
    if ended.code in FINISHED:
        return ended.code
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    sys.stderr.write(f"{MARK}{json.dumps(asdict(_with_notes(ended, child.pid, notes)))}\n")
    sys.stderr.flush()
    time.sleep(PATIENCE)
    return ended.code


def _with_notes(ended: Ended, pid: int, notes: int) -> Ended:
    """How a rank ended, with its process, machine and step."""
    step, missed = os.pread(notes, STEP_BYTES, 0), os.pread(notes, 1 << 16, STEP_BYTES)
    last = f"; it was last heard of at step {int.from_bytes(step, 'little')}" if step else ""
    how = f"(process {pid} on {socket.gethostname()}) {ended.how}{last}"
    return replace(ended, how=how, missed=missed.decode())


def heard(line: str) -> Ended | None:
    """What a line of a rank's says about its end; None where it says something else."""
    _, mark, text = line.partition(MARK)
    return replace(Ended(**json.loads(text)), when=time.monotonic()) if mark else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
