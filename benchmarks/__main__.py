"""`python -m benchmarks CASE [--json]`; `... overhead`, `optimizers`, `cuda`, `cuda-zoo`, `kernels` and others."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks import (
    adamw,
    augment,
    deadlines,
    epochs,
    estimates,
    estimators,
    harness,
    insight,
    kernels,
    metrics,
    optimizers,
    overhead,
    ragged,
    replicas,
    tables,
    wasm,
    workers,
    zoo,
)
from benchmarks.case import Case
from benchmarks.cases import CASES
from benchmarks.cases.optimizers import UPDATES
from benchmarks.cases.zoo import ZOO
from benchmarks.contender import BenchmarkError
from benchmarks.frameworks import FRAMEWORKS, HALF_PEERS, OURS, OURS_FLOAT32, PEERS
from benchmarks.gpu import run as on_one_gpu
from benchmarks.gpu import wide, zoo_table
from benchmarks.gpu.cases import CASES as GPU_CASES
from benchmarks.gpu.zoo import PEERS as ZOO_PEERS

FEWEST_ROUNDS = 9
PRECISIONS = ("float32", *harness.SAME_HALF_LOSS_WITHIN)


def parser() -> argparse.ArgumentParser:
    """The parser, with one sub-command per case and for `overhead` and others."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for name in CASES:
        case = commands.add_parser(name, help=f"the {name} case against its peers")
        case.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
        case.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="interleaved rounds (default: %(default)s)")
        case.add_argument("--threads", type=int, default=2, help="threads of each contender (default: %(default)s)")
        peers = [p for p in PEERS if FRAMEWORKS[p] in CASES[name].models]
        case.add_argument("--peers", nargs="+", choices=peers, metavar="PEER", help=f"{peers} (default: all)")
        case.add_argument(
            "--precision",
            choices=PRECISIONS,
            default="float32",
            help="of products; a half type beside our own float32 and torch's autocast (default: %(default)s)",
        )
        case.add_argument("--peers-only", action="store_true", help="measure the peers without Wholestep")
    fixed = commands.add_parser("overhead", help="Python's share of a step, import time, first step cold and warm")
    fixed.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    fixed.add_argument("--cache-dir", type=Path, help="an empty folder for the cold start (default: a temporary one)")
    fixed.add_argument("--gpt2", action="store_true", help="GPT-2 small too: its estimated memory; its first step")
    updates = commands.add_parser("optimizers", help="updates of ten million parameters against torch and optax")
    updates.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    updates.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="interleaved rounds (default: %(default)s)")
    updates.add_argument("--threads", type=int, default=2, help="threads of each contender (default: %(default)s)")
    updates.add_argument("--only", nargs="+", choices=UPDATES, metavar="UPDATE", help=str(tuple(UPDATES)))
    alone = commands.add_parser("adamw", help="AdamW on ten million parameters, and inside a training step")
    alone.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    alone.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="interleaved rounds (default: %(default)s)")
    alone.add_argument("--threads", type=int, default=2, help="threads of each contender (default: %(default)s)")
    alone.add_argument("--peers", nargs="+", choices=adamw.PEERS, default=adamw.PEERS, metavar="PEER")
    counted = commands.add_parser("metrics", help="what metrics inside the step cost, in percent of an MLP's step")
    counted.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    counted.add_argument("--threads", type=int, default=2, help="threads (default: %(default)s)")
    for name, text in (
        ("estimate", "the predicted time of a step beside the measured one, on all cases"),
        ("replicas", "eight replicas of the perceptron as a multiple of one"),
        ("within", "runs of 20 seconds on three examples: when they end, and how well they train"),
    ):
        plain = commands.add_parser(name, help=text)
        plain.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        plain.add_argument("--threads", type=int, default=2, help="threads (default: %(default)s)")
    rows = commands.add_parser("insight", help="losses and norms of single rows, and privacy, against the plain step")
    rows.add_argument("cases", nargs="*", metavar="CASE", help=f"of {tuple(insight.CASES)} (default: all)")
    rows.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    rows.add_argument("--rounds", type=int, default=30, help="interleaved rounds (default: %(default)s)")
    rows.add_argument("--threads", type=int, default=2, help="threads (default: %(default)s)")
    packed = commands.add_parser("ragged", help="packed sequences beside padding to the longest: a small GPT, an LSTM")
    packed.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    packed.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="interleaved rounds (default: %(default)s)")
    packed.add_argument("--threads", type=int, default=2, help="threads (default: %(default)s)")
    changed = commands.add_parser("augment", help="augmentations inside a step of LeNet-5 beside the plain step")
    changed.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    changed.add_argument("--rounds", type=int, default=30, help="interleaved rounds (default: %(default)s)")
    changed.add_argument("--threads", type=int, default=2, help="threads (default: %(default)s)")
    whole = commands.add_parser("epoch", help="whole epochs of ws.fit against loops of torch and JAX")
    whole.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    whole.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="interleaved rounds (default: %(default)s)")
    whole.add_argument("--threads", type=int, default=2, help="threads of each contender (default: %(default)s)")
    whole.add_argument("--peers", nargs="+", choices=epochs.PEERS, default=epochs.PEERS, metavar="PEER")
    whole.add_argument("--cells", nargs="+", choices=tuple(epochs.CELLS), default=tuple(epochs.CELLS), metavar="CELL")
    fitted = commands.add_parser("sklearn", help="wholestep.sklearn.Classifier against MLPClassifier")
    fitted.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    fitted.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="interleaved rounds (default: %(default)s)")
    fitted.add_argument("--threads", type=int, default=2, help="threads of each contender (default: %(default)s)")
    module = commands.add_parser("wasm", help="a step as a WebAssembly module in Node against one AVX2 thread")
    module.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    module.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="interleaved rounds (default: %(default)s)")
    on_gpu = commands.add_parser("cuda", help="training steps on one GPU against torch and JAX there")
    on_gpu.add_argument("cases", nargs="*", metavar="CASE", help=f"of {tuple(GPU_CASES)} (default: all)")
    on_gpu.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    on_gpu.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="interleaved rounds (default: %(default)s)")
    on_gpu.add_argument("--peers", nargs="*", metavar="PEER", help="those alone (default: all of a case)")
    on_gpu.add_argument(
        "--results", type=Path, help="JSON lines: cases in this file are not measured, others are added"
    )
    wild = commands.add_parser("cuda-zoo", help="networks of torchvision and transformers on one GPU against torch")
    wild.add_argument("--only", nargs="+", default=[], metavar="NAME", help="rows whose names begin so (default: all)")
    wild.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    wild.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="interleaved rounds (default: %(default)s)")
    wild.add_argument("--seconds", type=float, default=0.25, help="of a contender in a round (default: %(default)s)")
    wild.add_argument("--peers", nargs="*", metavar="PEER", help=f"of {ZOO_PEERS} (default: all)")
    wild.add_argument("--at-once", type=int, default=4, help="rows that compile side by side (default: %(default)s)")
    wild.add_argument("--alone", action="store_true", help="our first steps before the peers', for their seconds")
    wild.add_argument("--results", type=Path, help="a file of JSON lines: its rows are not measured, others are added")
    wild.add_argument("--wide", action="store_true", help="three steps of many architectures beside torch, untimed")
    wild.add_argument("--jobs", type=int, default=12, help="processes of --wide (default: %(default)s)")
    wild.add_argument(
        "--limit", type=float, default=200.0, help="seconds of a first step, or of a network of --wide: %(default)s"
    )
    wild.add_argument("--device", default="cuda", help="of --wide (default: %(default)s)")
    imported = commands.add_parser("zoo", help="networks that torch built, through ws.from_torch, against torch")
    imported.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {tuple(ZOO)} (default: all)")
    imported.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    imported.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="interleaved rounds (default: %(default)s)")
    imported.add_argument("--threads", type=int, default=2, help="threads of each contender (default: %(default)s)")
    imported.add_argument("--peers", nargs="+", choices=zoo.PEERS, default=zoo.PEERS, metavar="PEER")
    ranked = commands.add_parser("workers", help="two ranks against one process of two threads and torch's DDP")
    ranked.add_argument("cases", nargs="*", metavar="CASE", help=f"of {tuple(workers.GOALS)} (default: all)")
    ranked.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    ranked.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="interleaved rounds (default: %(default)s)")
    ranked.add_argument("--peers", nargs="*", choices=workers.PEERS, default=workers.PEERS, metavar="PEER")
    profile = commands.add_parser("kernels", help="every kernel of the cases' plans beside what the machine allows")
    profile.add_argument("cases", nargs="*", metavar="CASE", help=f"of {tuple(CASES)} (default: all)")
    profile.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    profile.add_argument("--threads", type=int, default=2, help="threads (default: %(default)s)")
    profile.add_argument(
        "--precision", choices=PRECISIONS, default="float32", help="of products (default: %(default)s)"
    )
    return top


def contenders(case: Case, precision: str, chosen: list[str] | None, peers_only: bool) -> list[str]:
    """The contenders: ours, our float32 if a half precision is measured, and the peers that support the precision."""
    half = precision != "float32"
    supported = [p for p in (HALF_PEERS if half else PEERS) if FRAMEWORKS[p] in case.models]
    strangers = [p for p in chosen or [] if p not in supported]
    if strangers:
        raise BenchmarkError(f"--peers {strangers[0]} does not support {precision}; expected {', '.join(supported)}")
    ours = [] if peers_only else [OURS, OURS_FLOAT32] if half else [OURS]
    return ours + (supported if chosen is None else chosen)


def check_threads(threads: int) -> None:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not 1 <= threads <= available:
        raise BenchmarkError(f"--threads is {threads}, expected 1 to {available}, the processors this process may use")


def main() -> int:
    """Runs the command; progress goes to standard error, the result to standard output."""
    arguments = parser().parse_args()
    try:
        if arguments.command == "overhead":
            result = overhead.run(arguments.cache_dir, arguments.gpt2)
            show = tables.show_overhead
        elif arguments.command == "optimizers":
            check_threads(arguments.threads)
            result = optimizers.run(arguments.only, arguments.rounds, arguments.threads)
            show = tables.show_updates
        elif arguments.command == "epoch":
            check_threads(arguments.threads)
            result = epochs.run(arguments.rounds, arguments.threads, arguments.peers, arguments.cells)
            show = tables.show_epochs
        elif arguments.command == "adamw":
            check_threads(arguments.threads)
            result = adamw.run_all(arguments.rounds, arguments.threads, tuple(arguments.peers))
            show = tables.show_adamw
        elif arguments.command == "cuda":
            if strangers := [name for name in arguments.cases if name not in GPU_CASES]:
                raise BenchmarkError(f"no case {strangers[0]!r} on a GPU; expected some of {', '.join(GPU_CASES)}")
            chosen = [GPU_CASES[name] for name in arguments.cases or GPU_CASES]
            how = on_one_gpu.Rounds(arguments.rounds, peers=arguments.peers)
            result = on_one_gpu.run(chosen, how, arguments.results)
            show = on_one_gpu.show
        elif arguments.command == "cuda-zoo" and arguments.wide:
            result = wide.run(arguments.only, arguments.device, arguments.jobs, arguments.limit, arguments.results)
            show = wide.show
        elif arguments.command == "cuda-zoo":
            how = on_one_gpu.Rounds(
                arguments.rounds,
                arguments.seconds,
                arguments.peers,
                arguments.at_once,
                arguments.alone,
                arguments.limit,
            )
            result = zoo_table.run(arguments.only, how, arguments.results)
            show = zoo_table.show
        elif arguments.command == "zoo":
            check_threads(arguments.threads)
            if strangers := [name for name in arguments.networks if name not in ZOO]:
                raise BenchmarkError(f"no network {strangers[0]!r}; expected some of {', '.join(ZOO)}")
            result = zoo.run(arguments.networks or list(ZOO), arguments.rounds, arguments.threads, arguments.peers)
            show = zoo.show
        elif arguments.command == "workers":
            check_threads(workers.RANKS)
            if strangers := [name for name in arguments.cases if name not in workers.GOALS]:
                raise BenchmarkError(
                    f"no case {strangers[0]!r} of workers; expected some of {', '.join(workers.GOALS)}"
                )
            result = workers.run(arguments.cases or list(workers.GOALS), arguments.rounds, arguments.peers)
            show = workers.show
        elif arguments.command == "kernels":
            check_threads(arguments.threads)
            result = kernels.run_all(arguments.cases, arguments.threads, arguments.precision)
            show = tables.show_kernels
        elif arguments.command == "sklearn":
            check_threads(arguments.threads)
            result = estimators.run(arguments.rounds, arguments.threads)
            show = tables.show_estimators
        elif arguments.command in ("estimate", "replicas", "within"):
            check_threads(arguments.threads)
            benchmark: Any = {"estimate": estimates, "replicas": replicas, "within": deadlines}[arguments.command]
            result, show = benchmark.run(arguments.threads), benchmark.show
        elif arguments.command == "wasm":
            result = {name: wasm.measure(name, arguments.rounds) for name in wasm.NETWORKS}
            show = wasm.show
        elif arguments.command == "insight":
            check_threads(arguments.threads)
            if strangers := [name for name in arguments.cases if name not in insight.CASES]:
                raise BenchmarkError(f"no case {strangers[0]!r}; expected some of {', '.join(insight.CASES)}")
            result = insight.run(arguments.cases or list(insight.CASES), arguments.rounds, arguments.threads)
            show = insight.show
        elif arguments.command in ("augment", "ragged"):
            check_threads(arguments.threads)
            benchmark = {"augment": augment, "ragged": ragged}[arguments.command]
            result, show = benchmark.run(arguments.rounds, arguments.threads), benchmark.show
        elif arguments.command == "metrics":
            check_threads(arguments.threads)
            result = metrics.run(arguments.threads)
            show = tables.show_metrics
        else:
            check_threads(arguments.threads)
            case, precision = CASES[arguments.command], arguments.precision
            names = contenders(case, precision, arguments.peers, arguments.peers_only)
            measured = harness.run(case, names, arguments.rounds, arguments.threads, precision=precision)
            result = harness.summary(measured)
            show = tables.show_case
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
