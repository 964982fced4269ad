"""The process of one contender on the GPU.

`{"do": "start"}`                              -> `{"first_step_s", "losses"}`
`{"do": "measure", "steps": n}`                -> `{"seconds"}`; `"kind"`: only for ours, `calls`, `host`, ...
`{"do": "held"}`                               -> `{"device_bytes"}`, at their peak
"""

from __future__ import annotations

import argparse
import importlib
import time
from typing import Any

from benchmarks.gpu.cases import CASES
from benchmarks.worker import serve

COMPARED_STEPS = 10


class Worker:
    def __init__(self, case: str, contender: str) -> None:
        self.found, self.contender = CASES[case], contender
        self.framework = importlib.import_module(f"benchmarks.gpu.with_{contender.partition('_')[0]}")

    def start(self) -> dict[str, Any]:
        """Seconds from the network's description to a readable loss, including the initialisation of the libraries."""
        began = time.perf_counter()
        self.stepper = self.framework.start(self.found, self.contender)
        losses = self.stepper.losses(1)
        first = time.perf_counter() - began
        return {"first_step_s": first, "losses": losses + self.stepper.losses(COMPARED_STEPS - 1)}

    def measure(self, steps: int, kind: str = "") -> dict[str, Any]:
        return {"seconds": getattr(self.stepper, f"measure_{kind}" if kind else "measure")(steps)}

    def held(self) -> dict[str, Any]:
        return {"device_bytes": self.stepper.device_bytes()}


def main() -> None:
    """Serves requests until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("contender")
    parser.add_argument("--threads", type=int)  # threads of the contender's process, without the GPU's own
    arguments = parser.parse_args()
    serve(lambda: Worker(arguments.case, arguments.contender))


if __name__ == "__main__":
    main()
