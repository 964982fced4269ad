"""`python -m tests.fuzz --seconds 600 --seed 1`: look for wrong numbers, crashes and hangs for as long as one likes.

Every case follows from (mode, seed, index), and a finding says how to repeat it.  `make fuzz` calls this.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.fuzz.children import Child
from tests.fuzz.shrink import smallest
from tests.fuzz.worker import MODES

HANG = 120.0  # seconds after which a case is called hanging
SHRINK = 90.0  # seconds that are spent on making a finding smaller


@dataclass
class Run:
    """What all threads share."""

    seed: int
    modes: tuple[str, ...]
    until: float
    device: str | None = None  # of networks and graphs; None: now one, now the other
    lock: threading.Lock = field(default_factory=threading.Lock)
    spent: Counter[str] = field(default_factory=Counter)  # seconds by mode
    begun: Counter[str] = field(default_factory=Counter)  # cases by mode
    results: Counter[tuple[str, str]] = field(default_factory=Counter)

    def next_case(self) -> dict[str, Any] | None:
        """The next one of the mode that has had the least time."""
        with self.lock:
            if time.monotonic() >= self.until:
                return None
            mode = min(self.modes, key=lambda m: (self.spent[m], self.begun[m]))
            index = self.begun[mode]
            self.begun[mode] += 1
            self.spent[mode] += 1e-3  # two threads begin with different modes
            return {"ask": "check", "mode": mode, "seed": self.seed, "index": index, "device": self.device}

    def done(self, mode: str, result: str, seconds: float) -> None:
        with self.lock:
            self.spent[mode] += seconds
            self.results[mode, result] += 1

    def say(self, text: str) -> None:
        with self.lock:
            print(text, flush=True)


def work(run: Run, child: Child) -> None:
    """Check cases until the time is over."""
    while (request := run.next_case()) is not None:
        start = time.monotonic()
        reply = child.ask(request, HANG)
        run.done(request["mode"], reply["result"], time.monotonic() - start)
        if reply["result"] == "failed":
            run.say(told(request, reply))
            small = shrunk(child, request, reply)
            run.say(
                f"  made smaller ({small['mode']} {request['seed']} {request['index']}):\n" + case_text(child, small)
            )
    child.stop()


def told(request: dict[str, Any], reply: dict[str, Any]) -> str:
    """A finding: what happened, to what, and how to see it again."""
    again = f"python -m tests.fuzz --mode {request['mode']} "
    if "index" in request:
        again += f"--seed {request['seed']} --index {request['index']}"
        again += f" --device {request['device']}" if request["device"] else ""
    else:
        again += f"--case '{json.dumps(request['data'])}'"
    text = indented(reply.get("text", ""))
    return f"FOUND {reply['kind']}: {reply['message']}\n  repeat: {again}\n{text}"


def case_text(child: Child, request: dict[str, Any]) -> str:
    reply = child.ask({**request, "ask": "tell"}, HANG)
    again = f"  repeat: python -m tests.fuzz --mode {request['mode']} --case '{json.dumps(reply.get('data'))}'"
    return indented(reply.get("text", "")) + "\n" + again


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def shrunk(child: Child, request: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
    """The smallest case that was found to fail in the same way."""

    def fails(candidate: dict[str, Any]) -> bool:
        found = child.ask({**candidate, "ask": "check"}, HANG)
        return found["result"] == "failed" and found["kind"] == reply["kind"]

    return smallest(request, partial(smaller, child), fails, SHRINK)


def smaller(child: Child, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    reply = child.ask({**request, "ask": "smaller"}, HANG)
    for data in reply.get("smaller", ()):
        yield {"mode": request["mode"], "data": data}


def one_case(arguments: argparse.Namespace, child: Child) -> int:
    """Repeat a finding."""
    request: dict[str, Any] = {"ask": "check", "mode": arguments.mode}
    if arguments.case is not None:
        given = Path(arguments.case)
        is_file = not arguments.case.lstrip().startswith("{")
        request["data"] = json.loads(given.read_text() if is_file else arguments.case)
    else:
        request |= {"seed": arguments.seed, "index": arguments.index, "device": arguments.device}
    reply = child.ask(request, HANG)
    if reply["result"] != "failed":
        print(f"{reply['result']} {reply.get('message', '')}\n{case_text(child, request)}")
        return 0
    print(told(request, reply))
    if not arguments.whole:
        print("  made smaller:\n" + case_text(child, shrunk(child, request, reply)))
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--mode", default=",".join(MODES), help=f"some of {','.join(MODES)}")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--device", help="where networks and graphs run: cpu, reference, cuda; unless given, now cpu, now reference"
    )
    parser.add_argument("--index", type=int, help="repeat this case")
    parser.add_argument("--case", help="repeat a case given as JSON, or as a file of it")
    parser.add_argument("--whole", action="store_true", help="do not make a repeated case smaller")
    arguments = parser.parse_args()
    modes = tuple(arguments.mode.split(","))
    for mode in modes:
        if mode not in MODES:
            parser.error(f"there is no mode {mode!r}; there are {', '.join(MODES)}.")
    with tempfile.TemporaryDirectory(prefix="wholestep-fuzz-") as folder:
        children = [Child(Path(folder), i) for i in range(arguments.jobs)]
        try:
            if arguments.index is not None or arguments.case is not None:
                return one_case(arguments, children[0])
            run = Run(arguments.seed, modes, time.monotonic() + arguments.seconds, arguments.device)
            threads = [threading.Thread(target=work, args=(run, child)) for child in children]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for child in children:
                child.stop()
    for (mode, result), count in sorted(run.results.items()):
        print(f"{mode}: {count} {result}")
    return 1 if any(result == "failed" for _, result in run.results) else 0


if __name__ == "__main__":
    sys.exit(main())
