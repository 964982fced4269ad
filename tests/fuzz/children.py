"""Child processes, as their parent sees them: requests with a time limit, and a death as the reply."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WORKER = (sys.executable, "-m", "tests.fuzz.worker")
TAIL = 1500  # characters of what a child that died has said


class Child:
    """A worker of worker.py, started again after each death."""

    def __init__(self, cache: Path, number: int, command: Sequence[str] = WORKER) -> None:
        self.command = command
        self.errors = cache / f"child-{number}.txt"
        self.environment = {**os.environ, "WHOLESTEP_CACHE_DIR": str(cache / "plans"), "PYTHONFAULTHANDLER": "1"}
        self.process: subprocess.Popen[bytes] | None = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            Path(self.environment["WHOLESTEP_CACHE_DIR"]).mkdir(exist_ok=True)
            with self.errors.open("wb") as errors:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    cwd=ROOT,
                    env=self.environment,
                    start_new_session=True,  # its own children end with it
                )
        return self.process

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The reply; a death or a hang is one too, with result "failed"."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], timeout)
        line = process.stdout.readline() if ready else b""
        if line:
            return dict(json.loads(line))
        self.stop(dying=bool(ready))
        died = f"{signal.Signals(-process.returncode).name}" if process.returncode < 0 else f"exit {process.returncode}"
        kind = died if ready else "Hang"
        said = self.errors.read_text(errors="replace")[-TAIL:]
        return {"result": "failed", "kind": kind, "message": f"after {timeout:g} s" if kind == "Hang" else said}

    def stop(self, dying: bool = False) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                if self.process.poll() is None and dying:
                    with suppress(subprocess.TimeoutExpired):
                        self.process.wait(30.0)  # it tells how
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                with suppress(BrokenPipeError):  # unwritten data is discarded
                    if pipe is not None:
                        pipe.close()
            self.process = None
