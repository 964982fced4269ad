"""Two checkouts measured by turns on this machine: `python tools/turns.py ../before mlp lenet gpt`.

Each checkout runs our own contender of `benchmarks/` in a process of its own with an empty cache; one is measured while
the other sleeps, and who begins changes with every round.  Prints, for each case and cell, the median step of both and
the median ratio (this tree / the other one: below 1 is faster), and the first steps, cold.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SETTLE_SECONDS = 0.2  # threads of a pool spin for a while after their last work
SECONDS = 0.4  # intended duration of one measurement


class Tree:
    """The worker process of one of the two checkouts."""

    def __init__(self, root: Path, case: str, threads: int, cache: str) -> None:
        variables = {"PYTHONPATH": str(root), "WHOLESTEP_CACHE_DIR": cache, "XDG_CACHE_HOME": cache}
        command = [sys.executable, "-m", "benchmarks.worker", case, "wholestep", "--threads", str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ, **variables}
        )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        time.sleep(SETTLE_SECONDS)
        self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        if "error" in answer:
            sys.exit(answer["error"])
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(trees: list[Tree], case: str, cell: str, rounds: int) -> None:
    first = [tree.ask("start", cell=cell) for tree in trees]
    same = first[0]["losses"] == first[1]["losses"]
    steps = max(5, round(SECONDS / (trees[0].ask("measure", cell=cell, steps=5)["seconds"] / 5)))
    seconds: list[list[float]] = [[], []]
    for turn in range(rounds):
        for index in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[index].append(trees[index].ask("measure", cell=cell, steps=steps)["seconds"] / steps)
    ratio = statistics.median(new / old for new, old in zip(*seconds, strict=True))
    new, old = (1e6 * statistics.median(each) for each in seconds)
    starts = " / ".join(f"{answer['first_step_s']:.2f}" for answer in first)
    print(
        f"{case:10} {cell:14} {new:10.1f} us {old:10.1f} us  ratio {ratio:.3f}  first step {starts} s  "
        f"losses of 20 steps {'equal' if same else 'DIFFER'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("cases", nargs="+", help="cases of `python -m benchmarks`, or networks of its zoo")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from benchmarks.cases import CASES
    from benchmarks.cases.zoo import ZOO

    known = {**CASES, **{case.name: case for case in ZOO.values()}}
    for case in arguments.cases:
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            roots = ((ROOT, one), (arguments.other.resolve(), other))
            trees = [Tree(root, case, arguments.threads, cache) for root, cache in roots]
            for cell in known[case].cells:
                compare(trees, case, cell.name, arguments.rounds)
            for tree in trees:
                tree.close()


if __name__ == "__main__":
    main()
