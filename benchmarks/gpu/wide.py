"""`python -m benchmarks cuda-zoo --wide`: three steps of many architectures, their losses beside torch's, and the
kernel that is furthest above its price.

Every architecture has its own process with a limit of time; several share the GPU, so no time of a step is reported.
A loss may differ by twice what torch's own half precision changes it, or by the rounding of the type.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.contender import ROOT, THREAD_VARIABLES, BenchmarkError
from benchmarks.gpu.run import read_results
from benchmarks.gpu.wide_networks import Architecture, architectures
from benchmarks.harness import log_line

if TYPE_CHECKING:
    import torch

STEPS, RATE, DECAY = 3, 1e-4, 0.01
SAME_LOSS_WITHIN = {"float32": 1e-4, "bfloat16": 1e-2}  # relative
SHORTEST = 20e-6  # seconds of a kernel that is more than its launch and its timer


# -- many --------------------------------------------------------------------------------------------------------


def run(names: Sequence[str], device: str, jobs: int, limit: float, results: Path | None = None) -> dict[str, Any]:
    """Examines all architectures with this prefix, `jobs` at a time; results that the file has are read from it."""
    chosen = [name for name in architectures() if not names or name.startswith(tuple(names))]
    if not chosen:
        raise BenchmarkError(f"no architecture {names[0]!r}; expected some of {', '.join(architectures())}")
    rows = read_results(results)

    def one(name: str) -> None:
        rows[name] = examine_apart(name, device, limit)
        log_line(json.dumps({name: rows[name]}))
        if results is not None:
            with results.open("a") as lines:
                lines.write(json.dumps({name: rows[name]}) + "\n")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, [name for name in chosen if name not in rows]))
    return {"case": "cuda-zoo-wide", "device": device, "networks": {name: rows[name] for name in chosen}}


def examine_apart(name: str, device: str, limit: float) -> dict[str, Any]:
    """The result of a separate process for one architecture, or the reason why there is none."""
    command = [sys.executable, "-m", "benchmarks.gpu.wide", name, "--device", device]
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, "2")},  # several processes share the cores
    )
    try:
        said, complaint = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the compilers that it started
        process.communicate()
        return {"result": "refused", "error": f"it took more than {limit:.0f} s"}
    if process.returncode or not said:
        last = (complaint.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return {"result": "refused", "error": last[:300]}
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    return {**answer, "seconds": round(time.perf_counter() - began, 1)}


def show(result: dict[str, Any]) -> None:
    """A table with one row per architecture."""
    table = Table(title=f"three steps on {result['device']}, beside torch")
    for heading in (
        "",
        "precision",
        "result",
        "loss apart (torch's own)",
        "import, first step",
        "worst kernel / price",
    ):
        table.add_column(heading)
    for name, row in result["networks"].items():
        if row["result"] == "refused":
            table.add_row(name, "", "refused", row["error"][:60])
            continue
        worst, apart = row["worst"], f"{row['apart']:.0e} ({row['rounding']:.0e})"
        kernel = f"{worst['times']:.1f}x, {worst['us']:.0f} us: {worst['name'][:50]}" if worst else ""
        times = f"{row['import_s']:.1f}, {row['first_step_s']:.1f} s"
        table.add_row(name, row["precision"], row["result"], apart, times, kernel)
    console = Console(width=170)
    console.print(table)
    results = [row["result"] for row in result["networks"].values()]
    console.print(", ".join(f"{results.count(kind)} {kind}" for kind in ("ok", "loss differs", "refused")))


# -- one ---------------------------------------------------------------------------------------------------------


def examine(architecture: Architecture, device: str) -> dict[str, Any]:
    """Three steps by torch and by us, from the same weights towards the same random target."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    module, arguments = architecture.module(), architecture.arguments()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        shape = module(*arguments.values()).shape
    target = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    module.load_state_dict(state)  # the forward pass moved running statistics
    ours = our_losses(module, arguments, target, architecture.precision, device)
    theirs = partial(torch_losses, module, state, arguments, target, device=device)
    exact = theirs(None)
    wanted = exact if architecture.precision == "float32" else theirs(torch.bfloat16)
    apart, rounding = distance(ours["losses"], wanted), distance(wanted, exact)
    within = max(SAME_LOSS_WITHIN[architecture.precision], 2 * rounding)
    return {
        "result": "ok" if apart <= within else "loss differs",  # NaN differs too
        "precision": architecture.precision,
        "apart": apart,
        "rounding": rounding,
        "theirs": wanted,
        **ours,
    }


def distance(losses: Sequence[float], wanted: Sequence[float]) -> float:
    return max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(losses, wanted, strict=True))


def our_losses(
    module: torch.nn.Module, arguments: dict[str, torch.Tensor], target: torch.Tensor, precision: str, device: str
) -> dict[str, Any]:
    """The losses of a session, the seconds of its start, and its worst kernel."""
    import wholestep as ws

    began = time.perf_counter()
    network = ws.from_torch(module, tuple(arguments.values()))
    imported = time.perf_counter()
    rows: str | int = len(target) if network.fixed_batch else "batch"
    g = ws.Graph()
    batch = {name: a.numpy() for name, a in (*arguments.items(), ("target", target))}
    inputs = {name: g.input(name, (rows, *a.shape[1:]), str(a.dtype)) for name, a in batch.items()}
    apart = network(*(inputs[name] for name in arguments)) - inputs["target"]
    g.set_outputs([(apart * apart).mean()])
    session = ws.build_session(
        g,
        optimizer=ws.AdamW(lr=RATE, weight_decay=DECAY, decay_on=("*",)),
        batch_size=None if network.fixed_batch else len(target),
        seed=0,
        device=device,
        precision=precision,
    )
    losses = [float(session.step(**batch).loss)]
    ready = time.perf_counter()
    losses += [float(session.step(**batch).loss) for _ in range(STEPS - 1)]
    worst = min(
        (k for k in session.profile(batch, steps=3).kernels if k.seconds > SHORTEST and k.expected),
        key=lambda k: k.of_expected,
        default=None,
    )
    return {
        "losses": losses,
        "import_s": round(imported - began, 1),
        "first_step_s": round(ready - imported, 1),
        "worst": worst and {"times": 1 / worst.of_expected, "us": 1e6 * worst.seconds, "name": worst.name},
    }


def torch_losses(
    module: torch.nn.Module,
    state: dict[str, Any],
    arguments: dict[str, torch.Tensor],
    target: torch.Tensor,
    half: torch.dtype | None,
    device: str,
) -> list[float]:
    """The losses of eager torch from these weights, under autocast if there is a half type."""
    import torch

    place = "cuda" if device.startswith("cuda") else "cpu"
    module.to(place).load_state_dict(state)
    batch, wanted = [a.to(place) for a in arguments.values()], target.to(place)
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=DECAY)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(place, half) if half else nullcontext():
            out = module(*batch)
        loss = (out.float() - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="one architecture: a line of JSON")
    parser.add_argument("name", choices=architectures())
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    print(json.dumps(examine(architectures()[options.name], options.device)))


if __name__ == "__main__":
    main()
