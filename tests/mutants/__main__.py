"""`python -m tests.mutants [--only NAME]`: plants each bug of the table and says whether the tests notice it.

Each mutant is applied to a copy of the package in a temporary folder, where its tests run.  A mutant is *caught* if a
test fails; it *survived* if all pass; *broken* if the tests could not run, which proves nothing.  `--baseline` runs the
tests of all chosen mutants on the unchanged copy first.  The exit status is the number of mutants that were not caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.table import MUTANTS, ROOT, Mutant

PASSED, FAILED = 0, 1  # exit statuses of pytest
LINKED = ("benchmarks", "docs", "examples", "tools", "pyproject.toml", "README.md", "CONTRIBUTING.md")


def copy_of_repository(folder: Path) -> Path:
    """The package and its tests; what no mutant changes is linked."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("wholestep", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    return folder


def run_tests(root: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The tests on the copy; its compiled code is cached apart from everybody else's."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]
    env = {**os.environ, "PYTHONPATH": str(root), "WHOLESTEP_CACHE_DIR": str(root / ".cache")}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


def judge(root: Path, mutant: Mutant) -> tuple[str, str]:
    """caught, survived or broken, and the line of pytest that says so."""
    (path,) = mutant.files(root / "wholestep")
    original = path.read_bytes()
    try:
        mutant.apply(root / "wholestep")
        ran = run_tests(root, mutant.tests)
    finally:
        path.write_bytes(original)
    said = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    verdict = {PASSED: "survived", FAILED: "caught"}.get(ran.returncode, "broken")
    return verdict, (said or ran.stdout.splitlines()[-1:] or [ran.stderr[-200:]])[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Are planted bugs noticed?")
    parser.add_argument("--only", metavar="NAME", help="mutants whose name contains this")
    parser.add_argument("--baseline", action="store_true", help="first run their tests on the unchanged package")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if options.only is None or options.only in m.name]
    with tempfile.TemporaryDirectory(prefix="wholestep-mutants-") as folder:
        root = copy_of_repository(Path(folder))
        if options.baseline:
            ran = run_tests(root, sorted({test for m in chosen for test in m.tests}))
            if ran.returncode != PASSED:
                print(ran.stdout[-2000:], "the tests fail without a mutant", sep="\n")
                return len(chosen)
        missed = 0
        for mutant in chosen:
            begun = time.monotonic()
            verdict, line = judge(root, mutant)
            missed += verdict != "caught"
            print(f"{verdict:9}{time.monotonic() - begun:6.1f} s  {mutant.name}: {line[:110]}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return missed


if __name__ == "__main__":
    sys.exit(main())
