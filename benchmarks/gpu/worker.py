"""The process of one contender on the GPU.

`{"do": "prepare"}`                            -> `{}`; packages are imported and the network is built, without the GPU
`{"do": "compile"}`                            -> `{"first_step_s", "import_s"}`; others may compile at the same time
`{"do": "start", "steps": n}`                  -> `{"losses"}` of the first n steps; from here on alone on the GPU
`{"do": "measure", "steps": n}`                -> `{"seconds"}`; `"kind"`: only for ours, `calls`, `host`, ...
`{"do": "held"}`                               -> `{"device_bytes"}`, at their peak
`{"do": "profile"}`                            -> `{"kernels", "slow_kernels"}`, only for ours
"""

from __future__ import annotations

import argparse
import importlib
import time
from typing import Any

from benchmarks.gpu.cases import CASES
from benchmarks.gpu.zoo import ZOO
from benchmarks.worker import serve


class Worker:
    def __init__(self, case: str, contender: str) -> None:
        self.found, self.contender = {**CASES, **ZOO}[case], contender
        self.framework = importlib.import_module(f"benchmarks.gpu.with_{contender.partition('_')[0]}")

    def prepare(self) -> dict[str, Any]:
        if self.found.case.prepare is not None:
            self.found.case.prepare()
        return {}

    def compile(self) -> dict[str, Any]:
        """Seconds from the network's description to a readable loss, including the initialisation of the libraries;
        those of the import are counted apart.
        """
        self.prepare()
        began = time.perf_counter()
        self.stepper = self.framework.start(self.found, self.contender)
        self.first = self.stepper.compile()
        seconds = time.perf_counter() - began
        imported = getattr(self.stepper, "import_seconds", None)
        return {"first_step_s": seconds - (imported or 0.0), "import_s": imported}

    def start(self, steps: int) -> dict[str, Any]:
        self.stepper.settle()
        return {"losses": self.first + self.stepper.losses(steps - len(self.first))}

    def measure(self, steps: int, kind: str = "") -> dict[str, Any]:
        return {"seconds": getattr(self.stepper, f"measure_{kind}" if kind else "measure")(steps)}

    def held(self) -> dict[str, Any]:
        return {"device_bytes": self.stepper.device_bytes()}

    def profile(self) -> dict[str, Any]:
        return dict(self.stepper.profile())


def main() -> None:
    """Serves requests until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices={**CASES, **ZOO})
    parser.add_argument("contender")
    parser.add_argument("--threads", type=int)  # threads of the contender's process, without the GPU's own
    arguments = parser.parse_args()
    serve(lambda: Worker(arguments.case, arguments.contender))


if __name__ == "__main__":
    main()
