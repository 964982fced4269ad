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
from pathlib import Path

from wholestep.compiler.backends.cuda.driver import call, gpu, gpu_count

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "test-cuda.md"
CUDA = "tests/compiler/backends/cuda"
MATRIX = [
    f"{CUDA}/test_sessions.py",
    f"{CUDA}/test_contracts.py",
    f"{CUDA}/test_streaming.py",
    f"{CUDA}/test_tf32.py",
    f"{CUDA}/test_command_line.py",
    f"{CUDA}/test_real_sizes.py",
    "tests/train/test_kills.py::test_fifty_kills_on_a_gpu",
]
SANITIZED = [sys.executable, "-m", f"{CUDA.replace('/', '.')}.one_step"]
SHOWN = re.compile(r"passed|failed|skipped|PASSED|FAILED|SKIPPED|ERROR SUMMARY|error")


def machine() -> str:
    version = call("cuDriverGetVersion")
    named = ", ".join(gpu(number).name for number in range(gpu_count()))
    return f"{named}; driver for CUDA {version // 1000}.{version % 1000 // 10}"


def commit() -> str:
    """Of the tree, where it is one."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return done.stdout.strip() or os.environ.get("COMMIT", "unknown")


def run(command: list[str]) -> tuple[int, str, float]:
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, flush=True)
    return done.returncode, done.stdout, time.perf_counter() - began


def section(title: str, command: list[str]) -> tuple[int, str]:
    """What a command said that matters, for the page."""
    code, text, seconds = run(command)
    lines = [line.strip("= ") for line in text.splitlines() if SHOWN.search(line)]
    shown = "\n".join(line.removeprefix(f"{CUDA}/") for line in lines[-120:])
    called = " ".join(Path(word).name if os.sep in word and "tests" not in word else word for word in command)
    return code, f"## {title}\n`{called}`, {seconds:.0f} s, exit status {code}\n```text\n{shown}\n```\n"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=50)
    options.add_argument("--page", type=Path, default=PAGE, help="where to write the report")
    given = options.parse_args()
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "--gpu",
        "-m",
        "long or not long",
    ]
    parts = [section("The matrix", [*pytest, f"--kills={given.kills}", *MATRIX])]
    if sanitizer := shutil.which("compute-sanitizer"):
        command = [sanitizer, "--tool", "memcheck", "--error-exitcode", "9", *SANITIZED]
        parts.append(section("compute-sanitizer on a step of every model", command))
    else:
        parts.append((0, "## compute-sanitizer\nIt is not on the PATH of this machine.\n"))
    head = (
        "# Last run of `make test-cuda`\n"
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, commit {commit()}, {machine()}.\n"
    )
    given.page.write_text("\n".join([head, *(text for _, text in parts)]))
    return max(code for code, _ in parts)


if __name__ == "__main__":
    sys.exit(main())
