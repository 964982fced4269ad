"""A contender as the harness sees it: a process that answers one request at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


# BLAS and OpenMP pools spin for a while after their last work; the next contender starts once they sleep.
SETTLE_SECONDS = 0.1


class BenchmarkError(Exception):
    """A contender cannot run, or computes other values than the others."""


def environment(threads: int, cache: Path) -> dict[str, str]:
    """The environment of a contender: the size of every thread pool, and empty caches, so that a first step is cold."""
    return {
        **os.environ,
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "WHOLESTEP_CACHE_DIR": str(cache / "wholestep"),
        "XDG_CACHE_HOME": str(cache),
    }


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, all threads; 0 if /proc does not exist."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    after_name = stat.read_text().rpartition(")")[2].split()
    user, system = int(after_name[11]), int(after_name[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


class Contender:
    """Starts the worker and sends it requests; counts the processor time that it uses between requests."""

    def __init__(
        self,
        name: str,
        case: str,
        threads: int,
        cache: Path,
        worker: str = "benchmarks.worker",
        more: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
        launcher: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [*(launcher or (sys.executable, "-m", worker)), case, name, "--threads", str(threads), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**environment(threads, cache), **variables},
        )
        self.idle_cpu = self.idle_wall = 0.0
        self.left_at: tuple[float, float] | None = None

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request, and return the answer."""
        self._came_back()
        assert self.process.stdout is not None
        self.send(json.dumps({"do": do, **request}))
        line = self.process.stdout.readline()
        if not line:
            raise BenchmarkError(f"{self.name}: the worker ended with exit code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            missing = "ModuleNotFoundError" in answer["error"]
            hint = "\nPeers are installed by: pip install -e '.[bench,zoo]'" if missing else ""
            raise BenchmarkError(f"{self.name}: {answer['error']}{hint}")
        time.sleep(SETTLE_SECONDS)
        self.left_at = (time.perf_counter(), self.cpu_seconds())
        return answer

    def send(self, line: str) -> None:
        """Sends a request."""
        assert self.process.stdin is not None
        try:
            print(line, file=self.process.stdin, flush=True)
        except BrokenPipeError as error:
            raise BenchmarkError(f"{self.name}: the worker ended with exit code {self.process.wait()}") from error

    def cpu_seconds(self) -> float:
        """The processor time of the worker so far."""
        return cpu_seconds(self.process.pid)

    def _came_back(self) -> None:
        if self.left_at is not None:
            wall, cpu = self.left_at
            self.idle_wall += time.perf_counter() - wall
            self.idle_cpu += self.cpu_seconds() - cpu

    @property
    def idle_share(self) -> float:
        """Processors used on average while another contender was measured: above 0 for a spinning pool."""
        return self.idle_cpu / self.idle_wall if self.idle_wall else 0.0

    def kill(self) -> None:
        """Ends the worker now; who waits for an answer gets an error."""
        self.process.kill()

    def close(self) -> None:
        """Ends the worker."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # it ended before it read a request
            self.process.stdin.close()
        end(self.process)
        self.process.stdout.close()


def end(process: subprocess.Popen[Any]) -> None:
    """Waits for a process that was asked to end, and kills it if it does not."""
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
