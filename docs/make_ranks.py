"""Writes the tables of docs/thousand-ranks.md from the model behind `ws.estimate`: `python docs/make_ranks.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, log2, sqrt
from pathlib import Path

import wholestep as ws
from wholestep.distributed.estimate import WorkersReport
from wholestep.distributed.network import NETWORKS, CollectiveCost, Network

PAGE = Path(__file__).with_name("thousand-ranks.md")
RANKS = (8, 64, 256, 1024)
ROWS, TOKENS = 8, 1024  # per rank
NODE = 8  # ranks that share a machine
INSIDE = Network(latency_us=2, gigabytes_per_second=300)  # between the GPUs of a machine
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Step:
    """The step of a rank, as the tables need it; a test compares it with the plan (`told`)."""

    compute_seconds: float
    parameters: int
    buckets: int

    @property
    def exchanges(self) -> list[CollectiveCost]:
        """Buckets of equal size: their cost is linear in their bytes."""
        return [CollectiveCost("all_reduce", 4 * self.parameters // self.buckets)] * self.buckets

    @property
    def state_bytes(self) -> int:
        """Weights and both moments of AdamW."""
        return 12 * self.parameters


GPT2 = Step(compute_seconds=0.134, parameters=124_439_808, buckets=20)


def told(ranks: int) -> WorkersReport:
    """The estimate from which GPT2 is taken."""
    tokens = ws.Spec(("batch", TOKENS), "int32")
    return ws.estimate(
        ws.models.gpt2(),
        inputs=tokens,
        targets=tokens,
        loss="cross_entropy",
        optimizer="adamw",
        batch_size=ROWS * ranks,
        workers=ranks,
        network="400Gb",
        device="null:cuda/sm_90",
    )


# -- all-reduce algorithms -----------------------------------------------------------------------------------


def direct(exchanges: Iterable[CollectiveCost], ranks: int, network: Network) -> float:
    """The algorithm of our transports: each part is sent directly to its owner."""
    return sum(e.seconds(ranks, network) for e in exchanges)


def halving(exchanges: Iterable[CollectiveCost], ranks: int, network: Network) -> float:
    """Recursive halving and doubling: 2 log2 n messages, the same bytes."""
    wire = 1e9 * network.gigabytes_per_second
    return sum(2 * ceil(log2(ranks)) * 1e-6 * network.latency_us + float(e.bytes_sent(ranks)) / wire for e in exchanges)


def two_levels(exchanges: Iterable[CollectiveCost], ranks: int, network: Network) -> float:
    """Reduce-scatter inside machines, then halving between the ranks with equal local rank."""
    total = 0.0
    for e in exchanges:
        inside = 2 * CollectiveCost("reduce_scatter", e.bytes).seconds(NODE, INSIDE)
        total += inside + halving([CollectiveCost("all_reduce", e.bytes // NODE)], ranks // NODE, network)
    return total


WAYS: dict[str, Callable[[Iterable[CollectiveCost], int, Network], float]] = {
    "direct, as now": direct,
    "direct, one bucket": lambda exchanges, n, net: direct(
        [CollectiveCost("all_reduce", sum(e.bytes for e in exchanges))], n, net
    ),
    "halving": halving,
    "two levels": two_levels,
}


# -- tables --------------------------------------------------------------------------------------------------------


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    first, *rest = [[str(c) for c in row] for row in (head, *rows)]
    lines = [first, ["---", *["--:"] * (len(first) - 1)], *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def exchange_table() -> str:
    """Milliseconds of one step's all-reduces."""
    rows = [
        (f"{way}, {name}", *(f"{1e3 * spent(GPT2.exchanges, n, NETWORKS[name]):.1f}" for n in RANKS))
        for way, spent in WAYS.items()
        for name in ("100Gb", "400Gb")
    ]
    return table(["all-reduce of 498 MB, ms", *(f"{n:,} ranks" for n in RANKS)], rows)


def step_table() -> str:
    """The step and its computing fraction, without overlap and with complete overlap."""
    rows = []
    for way, spent in WAYS.items():
        exchange = spent(GPT2.exchanges, 1024, NETWORKS["400Gb"])
        after = GPT2.compute_seconds + exchange
        beside = max(GPT2.compute_seconds, exchange)
        shares = [f"{1e3 * t:.0f} ms, {GPT2.compute_seconds / t:.0%}" for t in (after, beside)]
        rows.append((way, f"{1e3 * exchange:.1f} ms", *shares))
    return table(["1,024 ranks, 400Gb", "exchange", "step, of it computing", "overlapped"], rows)


HOURS_OF_A_GPU = 54 * 24 * 16_384 / 419  # between two failures: arXiv:2407.21783
COPY, WRITE, RESTART = 10e9, 1e9, 60.0  # bytes per second to memory and to storage, from one rank; seconds


def failure_table() -> str:
    """The interval between failures, the checkpoint interval by Young's rule, and the time lost to both."""
    rows = []
    for n in RANKS:
        between = 3600 * HOURS_OF_A_GPU / n
        pause = GPT2.state_bytes / COPY
        every = max(sqrt(2 * pause * between), GPT2.state_bytes / WRITE)  # Young; at least the time to write one
        lost = pause / every + (every / 2 + RESTART) / between
        rows.append((f"{n:,}", f"{between / 3600:,.0f} h", f"{every / 60:.1f} min", f"{lost:.3%}"))
    return table(["ranks", "between failures", "a checkpoint every", "time lost to both"], rows)


TABLES = {"exchange": exchange_table, "step": step_table, "failures": failure_table}


def render(text: str) -> str:
    """The page with its tables recomputed."""
    return TABLE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}{found[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
