"""A child process that checks cases, one at a time: what kills or hangs it is a finding, not the end of the run.

Requests and replies are lines of JSON.  A case is named by (mode, seed, index), or given as data.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from importlib import import_module
from random import Random
from typing import Any, TextIO

MODES = {
    "networks": "tests.fuzz.networks",
    "graphs": "tests.fuzz.graphs",
    "readers": "tests.fuzz.readers.files",
    "combinations": "tests.fuzz.combinations",
}


ON_REFERENCE = 6  # every sixth network or graph runs on the reference backend
IN_FLOAT64 = 4  # every fourth case on a GPU: float32 has other kernels there


def case_of(mode: Any, request: dict[str, Any]) -> Any:
    if "data" in request:
        return mode.from_data(request["data"])
    case = mode.draw(Random(f"{request['mode']} {request['seed']} {request['index']}"))
    if not hasattr(case, "device"):
        return case
    chosen = "reference" if request["index"] % ON_REFERENCE == ON_REFERENCE - 1 else "cpu"
    device = request.get("device") or chosen
    if device.startswith("cuda") and hasattr(case, "dtype") and request["index"] % IN_FLOAT64:
        case = replace(case, dtype="float32")
    return replace(case, device=device)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Check a case, or list simpler ones."""
    from tests.fuzz.case import Unfit

    mode = import_module(MODES[request["mode"]])
    case = case_of(mode, request)
    told = {"data": mode.to_data(case), "text": mode.text(case)}
    if request["ask"] == "smaller":
        return {"smaller": [mode.to_data(c) for c in mode.smaller(case)]}
    if request["ask"] == "tell":
        return told
    try:
        mode.check(case)
    except Unfit as reason:
        return {"result": "unfit", "message": str(reason)}
    except Exception as error:
        return {"result": "failed", "kind": type(error).__name__, "message": str(error)[:2000], **told}
    return {"result": "ok"}


def serve(requests: TextIO, replies: TextIO) -> None:
    for line in requests:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints must not be taken for a reply
    serve(sys.stdin, replies)
