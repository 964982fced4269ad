"""The whole matrix of `device="cuda"` on this machine's GPU, and a report of it: `make test-cuda`.

python -m tests.compiler.backends.cuda.on_gpu                 runs everything, writes docs/test-cuda.md
python -m tests.compiler.backends.cuda.on_gpu --kills 5       fewer of the runs that are killed and resumed
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from wholestep.compiler.backends.cuda.driver.driver import call, gpu, gpu_count

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "test-cuda.md"
CUDA = "tests/compiler/backends/cuda"
KILLS = "tests/train/checkpoint/test_kills.py::test_fifty_kills_on_a_gpu"
MATRIX = {  # these run side by side
    "Sessions, the command line": [f"{CUDA}/runtime/test_sessions.py", f"{CUDA}/runtime/test_command_line.py"],
    "Contracts, streams, tf32": [
        f"{CUDA}/runtime/test_contracts.py",
        f"{CUDA}/runtime/test_streaming.py",
        f"{CUDA}/kernels/test_tf32.py",
    ],
    "Attention by cuDNN, launches": [
        *("-k", "cudnns or gathered or copy_ahead"),
        *(f"{CUDA}/kernels/test_attention.py", f"{CUDA}/test_launches.py"),
    ],
    "Loops, and many steps, in one kernel": [
        "-k",
        "not order",
        f"{CUDA}/kernels/test_loops.py",
        f"{CUDA}/kernels/test_persistent.py",
    ],
    "One rank over NCCL": ["-s", f"{CUDA}/runtime/test_nccl.py"],
    "Several ranks on one GPU": ["-s", f"{CUDA}/runtime/test_shards.py"],
    "Ten steps beside torch and the CPU": ["-s", f"{CUDA}/runtime/test_real_sizes.py"],
    **{f"Kills, part {i + 1} of 5": [f"{KILLS}[{i}]"] for i in range(5)},
}
SANITIZED = [sys.executable, "-m", f"{CUDA.replace('/', '.')}.one_step"]
SHOWN = re.compile(r"passed|failed|PASSED|FAILED|SKIPPED|ERROR|of float64 after|us a step|bits of a|bytes of a rank")


def machine() -> str:
    version = call("cuDriverGetVersion")
    named = ", ".join(gpu(number).name for number in range(gpu_count()))
    return f"{named}; driver for CUDA {version // 1000}.{version % 1000 // 10}"


def commit() -> str:
    """Of the tree, where it is one."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return done.stdout.strip() or os.environ.get("COMMIT", "unknown")


@dataclass(frozen=True)
class Part:
    """A command that has run."""

    title: str
    command: list[str]
    code: int
    output: str
    seconds: float

    def page(self) -> str:
        """What it said that matters."""
        lines = [line.strip("= ") for line in self.output.splitlines() if SHOWN.search(line)]
        shown = "\n".join(line.removeprefix(f"{CUDA}/") for line in lines[-80:])
        words = [Path(word).name if os.sep in word and "tests" not in word else word for word in self.command]
        said = f"`{' '.join(words)}`, {self.seconds:.0f} s, exit status {self.code}"
        return f"## {self.title}\n{said}\n```text\n{shown}\n```\n"


def run(title: str, command: list[str]) -> Part:
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    part = Part(title, command, done.returncode, done.stdout, time.perf_counter() - began)
    print(f"== {title}: {part.code}\n{done.stdout}", flush=True)
    return part


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=50)
    options.add_argument("--page", type=Path, default=PAGE, help="where to write the report")
    given = options.parse_args()
    pytest = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", "--gpu"]
    tests = [*pytest, "-m", "long or not long", f"--kills={given.kills}"]
    todo = {title: [*tests, *files] for title, files in MATRIX.items()}
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer:
        command = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", *SANITIZED]
        todo["compute-sanitizer on a step of every model"] = command
    with ThreadPoolExecutor(len(todo)) as pool:
        parts = list(pool.map(run, todo, todo.values()))
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    head = (
        f"# Last run of `make test-cuda`\n{today}, commit {commit()}, {machine()}.\n"
        "The parts ran side by side; tests that ask a driver of their own are skipped here.\n"
    )
    missing = [] if sanitizer else ["## compute-sanitizer\nIt is not on the PATH of this machine.\n"]
    given.page.write_text("\n".join([head, *(part.page() for part in parts), *missing]))
    return int(any(part.code for part in parts))  # of a signal it is negative


if __name__ == "__main__":
    sys.exit(main())
