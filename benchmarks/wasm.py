"""A training step as a WebAssembly module in Node against the same step in Python with one AVX2 thread.

Both train over the same rows, alternately; the ratio is the median over rounds of Python's processor time divided by
Node's.  Each has one thread, so processor time is wall-clock time that no other program of the machine lengthens.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

GOAL = 0.25  # of the speed of one AVX2 thread
ROWS, BATCH, SECONDS = 2048, 64, 0.5
NETWORKS = {"mlp": (784,), "lenet": (1, 28, 28)}  # and the shapes of their rows
PROGRAM = """
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Step } from "./step.mjs";
const read = (name) => { const b = readFileSync(name); return b.buffer.slice(b.byteOffset, b.byteOffset + b.length); };
const step = await Step.load(read("step.wasm"), JSON.parse(readFileSync("manifest.json")));
step.load(new Uint8Array(read("weights.safetensors")));
const labels = new Int32Array(read("labels"));
step.setData({ x: new Float32Array(read("x")), labels }, labels.length);
for await (const line of createInterface({ input: process.stdin })) {
  const began = process.cpuUsage();
  step.run({ steps: Number(line) });
  const { user, system } = process.cpuUsage(began);
  console.log((user + system) / 1e6);
}
"""


def network(name: str) -> Any:
    """One of NETWORKS."""
    import wholestep as ws

    if name == "lenet":
        return ws.models.LeNet5()
    return ws.nn.Sequential(ws.nn.Linear(784, 256), ws.nn.ReLU(), ws.nn.Linear(256, 10))


def measure(name: str, rounds: int) -> dict[str, float]:
    """Milliseconds per step of both, and the ratio of the speeds."""
    import wholestep as ws

    model, shape = network(name), NETWORKS[name]
    rng = np.random.default_rng(0)
    data = {"x": rng.random((ROWS, *shape), np.float32), "labels": rng.integers(0, 10, ROWS).astype(np.int32)}
    session = ws.build_session(
        model,
        inputs=ws.Spec(("batch", *shape)),
        targets=ws.Spec(("batch",), "int32"),
        loss="cross_entropy",
        optimizer="adam",
        batch_size=BATCH,
        device="cpu/avx2",
        threads=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        _prepare(session, Path(folder), data)
        with subprocess.Popen(
            ["node", "run.mjs"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as node:
            seconds: dict[str, Callable[[int], float]] = {
                "python": lambda steps: _run_python(session, data, steps),
                "node": lambda steps: _run_node(node, steps),
            }
            steps = max(1, min(ROWS // BATCH, int(SECONDS / max(seconds["node"](2) / 2, 1e-4))))
            times = [{who: run(steps) / steps for who, run in seconds.items()} for _ in range(rounds + 1)][1:]
            assert node.stdin is not None
            node.stdin.close()
    fastest = {f"{who}_ms": 1000 * min(each[who] for each in times) for who in seconds}
    return {**fastest, "ratio": median(each["python"] / each["node"] for each in times)}


def _prepare(session: Any, folder: Path, data: dict[str, Any]) -> None:
    session.export(folder, to="wasm")
    (folder / "run.mjs").write_text(PROGRAM)
    for name, array in data.items():
        array.tofile(folder / name)


def _run_python(session: Any, data: dict[str, Any], steps: int) -> float:
    rows = {name: array[: steps * BATCH] for name, array in data.items()}
    began = time.process_time()
    session.run(rows)
    return time.process_time() - began


def _run_node(node: Any, steps: int) -> float:
    node.stdin.write(f"{steps}\n")
    node.stdin.flush()
    return float(node.stdout.readline())


def show(results: dict[str, dict[str, float]]) -> None:
    """Print the table."""
    print(f"{'step':<8}{'Python, AVX2':>14}{'Node, WASM':>14}{'ratio':>8}   goal {GOAL}")
    for name, row in results.items():
        print(f"{name:<8}{row['python_ms']:>11.3f} ms{row['node_ms']:>11.3f} ms{row['ratio']:>8.2f}")
