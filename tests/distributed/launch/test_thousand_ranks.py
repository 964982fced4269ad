"""The tables and numbers in docs/thousand-ranks.md equal the results of the model."""

from __future__ import annotations

import pytest

from docs import make_ranks
from docs.make_ranks import GPT2
from wholestep.distributed.network import NETWORKS, CollectiveCost

TEXT = make_ranks.PAGE.read_text()
FAST = NETWORKS["400Gb"]


def test_the_tables_are_those_of_the_model() -> None:
    assert make_ranks.render(TEXT) == TEXT, "run python docs/make_ranks.py"
    assert all(f"<!-- table: {name} -->" in TEXT for name in make_ranks.TABLES)


def test_numbers_in_sentences_are_those_of_the_model() -> None:
    gradients = 4 * GPT2.parameters
    sent = -(-gradients * 2 * 1023 // 1024)
    waiting = 1e3 * sum(CollectiveCost(e.collective, 0).seconds(1024, FAST) for e in GPT2.exchanges)
    carried = 1e3 * sent / (1e9 * FAST.gigabytes_per_second)
    fills = 1024 * 1e-6 * FAST.latency_us * 1e9 * FAST.gigabytes_per_second
    for said in (
        f"{GPT2.parameters:,} parameters",
        f"computes {1e3 * GPT2.compute_seconds:.0f} ms per step",
        f"gradients are {gradients:,} bytes",
        f"{sent:,} bytes at 1,024",
        f"{GPT2.buckets} buckets times {2 * 1023:,} messages wait {waiting:.0f} ms",
        f"carries their bytes in {carried:.0f}",
        f"{fills / 1e6:.0f} MB at 1,024 ranks on 400Gb",
        f"Weights and moments are {GPT2.state_bytes / 1e9:.1f} GB",
        f"once in {round(make_ranks.HOURS_OF_A_GPU, -2):,.0f} hours",
    ):
        assert said in " ".join(TEXT.split()), said


def test_halving_beats_sending_directly_where_there_are_many_ranks_only() -> None:
    ways = {
        n: (make_ranks.direct(GPT2.exchanges, n, FAST), make_ranks.halving(GPT2.exchanges, n, FAST)) for n in (2, 1024)
    }
    assert ways[2][0] == pytest.approx(ways[2][1])
    assert ways[1024][0] > 5 * ways[1024][1]


@pytest.mark.long
def test_the_step_is_that_of_the_plan() -> None:
    report = make_ranks.told(1024)
    assert sum(e.bytes for e in report.exchanges) == 4 * GPT2.parameters + 4, "gradients, and the loss"
    assert len(report.exchanges) == GPT2.buckets
    assert report.compute_seconds == pytest.approx(GPT2.compute_seconds, rel=0.01)
    assert f"{report.wire_bytes - 8:,} bytes at 1,024" in " ".join(TEXT.split()), "without the loss"
