"""One rank of a contender that runs as several processes.

Rank 0 reads requests from standard input and answers, like `benchmarks.worker`.  Each other rank reads the same
requests from its own pipe: a rank that waited in a collective would spin while another contender is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES
from benchmarks.frameworks import MODULES
from benchmarks.worker import Worker, limit_processors, serve


def own_rank() -> int:
    """The rank of this process, from the environment of torch's launcher or ours."""
    return int(os.environ.get("RANK") or os.environ.get("WHOLESTEP_RANK") or 0)


class Follower:
    """A worker whose failure ends the process, so that the rank that answers detects it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def __getattr__(self, name: str) -> Any:
        def call(**request: Any) -> Any:
            try:
                return getattr(self.worker, name)(**request)
            except Exception:
                traceback.print_exc()
                os._exit(1)

        return call


def main() -> None:
    """Serves requests until there are no more."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("contender", choices=MODULES)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--requests", type=Path, required=True, help="the folder of the pipes of ranks 1, 2, ...")
    arguments = parser.parse_args()
    limit_processors(arguments.threads * arguments.ranks)
    rank, case = own_rank(), CASES[arguments.case]
    if rank:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdin = (arguments.requests / str(rank)).open()
        serve(lambda: Follower(Worker(arguments.contender, case, arguments.threads)))
    else:
        serve(lambda: Worker(arguments.contender, case, arguments.threads))


if __name__ == "__main__":
    main()
