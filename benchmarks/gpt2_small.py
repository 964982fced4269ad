"""GPT-2 small, 124 million parameters, AdamW: the memory of a step, estimated in advance, and its cold first step."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contender import BenchmarkError

if TYPE_CHECKING:
    import wholestep as ws

VOCABULARY = 50257
SIZES = {"b4_t128": (4, 128), "b1_t1024": (1, 1024)}  # rows, tokens per row
STEPS = 4  # steps on one batch, over which the loss must fall
ESTIMATE = "from benchmarks import gpt2_small; print(gpt2_small.estimate{})"
FIRST_STEP = "from benchmarks import gpt2_small; print(gpt2_small.first_step{})"


def run(in_new_process: Any, folder: Path) -> dict[str, float]:
    """Measures each size with an empty cache; an error if memory or losses differ from the estimate."""
    result: dict[str, float] = {}
    for name, size in SIZES.items():
        promised = in_new_process(ESTIMATE.format(size), folder / name)
        print(f"GPT-2 small, {size[0]} x {size[1]} tokens: a step will map {promised:,} bytes", file=sys.stderr)
        report = in_new_process(FIRST_STEP.format(size), folder / name)
        check(promised, report)
        result[f"gpt2_{name}_peak_bytes"] = promised
        result[f"gpt2_{name}_first_step_s"] = report["seconds"]
        result[f"gpt2_{name}_first_loss"], result[f"gpt2_{name}_last_loss"] = report["losses"][0], report["losses"][-1]
    return result


def check(promised: int, report: dict[str, Any]) -> None:
    """The mapped bytes equal the estimate; the first loss is about ln(vocabulary), and the loss falls."""
    if report["mapped_bytes"] != promised:
        raise BenchmarkError(f"the estimate was {promised:,} bytes, the session maps {report['mapped_bytes']:,}")
    losses, guess = report["losses"], math.log(VOCABULARY)
    if not abs(losses[0] - guess) < 0.5 or not losses[-1] < losses[0]:
        raise BenchmarkError(f"losses are {losses}, expected about {guess:.2f} at first, and falling")


def model() -> ws.nn.Module:
    """The network of the published size."""
    import wholestep as ws

    return ws.models.gpt2(vocabulary=VOCABULARY)


def arguments(rows: int, tokens: int) -> dict[str, Any]:
    """The arguments of `ws.estimate` and `ws.build_session` besides the model."""
    import wholestep as ws

    words = ws.Spec(("batch", tokens), "int32")
    return {
        "inputs": words,
        "targets": words,
        "loss": "cross_entropy",
        "optimizer": ws.AdamW(lr=1e-4),
        "batch_size": rows,
        "threads": 2,
    }


def estimate(rows: int, tokens: int) -> int:
    """The bytes that the session will map, without compiling or running anything."""
    import wholestep as ws

    return ws.estimate(model(), **arguments(rows, tokens)).peak_bytes


def first_step(rows: int, tokens: int) -> str:
    """Seconds from building the model to a readable loss, after `import wholestep`; and a few more losses."""
    import numpy as np

    import wholestep as ws

    text = np.random.default_rng(0).integers(0, VOCABULARY, (rows, tokens + 1)).astype(np.int32)
    batch = {"x": np.ascontiguousarray(text[:, :-1]), "labels": np.ascontiguousarray(text[:, 1:])}
    began = time.perf_counter()
    session = ws.build_session(model(), **arguments(rows, tokens))
    losses = [float(session.step(**batch).loss)]
    seconds = time.perf_counter() - began
    losses += [float(session.step(**batch).loss) for _ in range(STEPS - 1)]
    return json.dumps({"seconds": seconds, "losses": losses, "mapped_bytes": session.peak_bytes})
