"""The estimated cost of a step on many ranks, before anything runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

import wholestep as ws
from tests.distributed.support.ranks import SCRIPTS, launch
from tests.distributed.support.small import ABOUT, LOSS, PARAMETERS, network
from tests.support.compilers import quick
from wholestep.compiler.backends.gpu.grids.choose import EXCHANGE_ROOM
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.plan.model.bodies import Exchange as Body
from wholestep.compiler.runtime.process_group import rows_of_rank
from wholestep.distributed.network import MESSAGES, NETWORKS, CollectiveCost
from wholestep.errors import OptionError, UsageError


@pytest.fixture(scope="module")
def by_workers() -> dict[int, ws.Any]:
    return {n: ws.estimate(network(), workers=n, **ABOUT) for n in (1, 2, 4)}


def sent(rank: int, size: int, elements: int) -> int:
    """What a rank sends of an all-reduce, counted part by part: the others' parts, then its own sum to each of them."""
    parts = [rows_of_rank(elements, r, size)[1] for r in range(size)]
    return 4 * (sum(parts) - parts[rank] + (size - 1) * parts[rank])


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_on_the_wire_are_those_of_the_gradients_to_the_byte(by_workers: dict, ranks: int) -> None:
    report = by_workers[ranks]
    assert report.gradient_bytes == 4 * PARAMETERS
    assert [(e.collective, e.bytes) for e in report.exchanges] == [("all_reduce", 4 * PARAMETERS + LOSS)]
    assert report.wire_bytes_of_all == 2 * (ranks - 1) * (4 * PARAMETERS + LOSS)
    assert report.wire_bytes == 4 * PARAMETERS * 2 * (ranks - 1) // ranks + LOSS * 2 * (ranks - 1) // ranks


def test_a_session_reports_what_was_estimated(by_workers: dict) -> None:
    report = ws.build_session(network(), **ABOUT, shards=4, device="null").report()
    told = by_workers[4]
    assert (report.wire_bytes, report.flops, report.peak_bytes) == (told.wire_bytes, told.flops, told.peak_bytes)
    assert report.collectives == tuple((e.collective, e.bytes) for e in told.exchanges)


def test_a_session_of_a_grid_counts_what_one_of_its_ranks_sends() -> None:
    """Along the model axis that is as many rows as a rank has, not those of the whole batch."""
    told = ws.estimate(network(split=True), workers=ws.Workers(data=2, model=2), **ABOUT)
    report = ws.build_session(network(split=True), **ABOUT, shards=(2, 2), options=quick()).report()
    assert report.collectives == told.collectives
    assert report.wire_bytes_along("model") == told.wire_bytes_along("model") > 0


def test_ranks_on_gpus_are_told_the_same_bytes(by_workers: dict) -> None:
    told = ws.estimate(network(), workers=4, device="null:cuda/sm_90", **ABOUT)
    assert (told.wire_bytes, told.exchanges) == (by_workers[4].wire_bytes, by_workers[4].exchanges)
    report = ws.build_session(network(), **ABOUT, shards=4, device="null:cuda/sm_90").report()
    assert (report.wire_bytes, report.peak_bytes) == (told.wire_bytes, told.peak_bytes)
    room = [schedule_of(k).workspace for k in told.plan.kernels if isinstance(k.body, Body)]
    assert room == [told.exchanges[0].bytes + EXCHANGE_ROOM]


@pytest.mark.parametrize("divided", [(4, "optimizer"), ((2, 2), None), ((2, 2), "optimizer")], ids=str)
def test_divided_states_and_layers_on_gpus_are_known_before(divided: tuple[Any, str | None]) -> None:
    """A rank sends what one on a CPU sends, and needs less than one that holds all of it; a session says the same."""
    shards, shard = divided
    workers = ws.Workers(shards) if isinstance(shards, int) else ws.Workers(data=shards[0], model=shards[1])
    gpu, cpu = (
        ws.estimate(network(split=True), workers=workers, shard=shard, device=f"null:{target}", **ABOUT)
        for target in ("cuda/sm_90", "cpu/portable")
    )
    order = ("collective", "axis", "bytes")
    found, wanted = (sorted(tuple(getattr(e, n) for n in order) for e in r.exchanges) for r in (gpu, cpu))
    assert found == wanted
    assert gpu.wire_bytes == cpu.wire_bytes > 0
    session = ws.build_session(network(split=True), **ABOUT, shards=shards, shard=shard, device="null:cuda/sm_90")
    assert (session.report().wire_bytes, session.peak_bytes) == (gpu.wire_bytes, gpu.peak_bytes)
    whole = ws.estimate(
        network(split=True), workers=4 if isinstance(shards, int) else shards[0], device="null:cuda/sm_90", **ABOUT
    )
    assert gpu.peak_bytes < whole.peak_bytes


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_send_what_was_estimated(by_workers: dict, ranks: int) -> None:
    done = launch("-n", str(ranks), str(SCRIPTS / "counted.py"))
    assert done.returncode == 0, done.stderr
    counted = sorted(int(n) for n in re.findall(r"sent (\d+)", done.stdout))
    assert counted == sorted(sent(r, ranks, PARAMETERS + 1) for r in range(ranks))
    assert sum(counted) == by_workers[ranks].wire_bytes_of_all


def test_a_rank_computes_its_rows_alone(by_workers: dict) -> None:
    one, two, four = (by_workers[n] for n in (1, 2, 4))
    assert [r.plan.sizes["batch"] for r in (one, two, four)] == [64, 32, 16]
    assert one.flops > two.flops > four.flops
    assert one.peak_bytes == ws.estimate(network(), **ABOUT).peak_bytes > four.peak_bytes
    assert (one.wire_bytes, one.exchange_seconds, one.efficiency) == (0, 0, 1)
    assert four.step_seconds == four.compute_seconds + four.exchange_seconds
    assert one.compute_seconds > two.compute_seconds > four.compute_seconds > 0


def test_seconds_follow_from_latency_and_bandwidth() -> None:
    bucket, link = CollectiveCost("all_reduce", 8_000_000), ws.Network(latency_us=10, gigabytes_per_second=2)
    assert bucket.seconds(2, link) == pytest.approx(2 * 10e-6 + 8e6 / 2e9)
    assert bucket.seconds(4, link) == pytest.approx(6 * 10e-6 + 1.5 * 8e6 / 2e9)
    halves = [CollectiveCost(name, 8_000_000).seconds(4, link) for name in ("reduce_scatter", "all_gather")]
    assert sum(halves) == pytest.approx(bucket.seconds(4, link))
    assert CollectiveCost("broadcast", 8_000_000).seconds(8, link) == pytest.approx(3 * (10e-6 + 8e6 / 2e9))
    assert all(CollectiveCost(name, 100).seconds(1, link) == 0 for name in MESSAGES)


def test_a_faster_network_and_a_smaller_group_take_less() -> None:
    bucket = CollectiveCost("all_reduce", 100_000_000)
    times = [bucket.seconds(1024, NETWORKS[name]) for name in ("10Gb", "25Gb", "100Gb", "400Gb")]
    assert times == sorted(times, reverse=True)
    grown = [bucket.seconds(n, NETWORKS["100Gb"]) for n in (2, 16, 128, 1024)]
    assert grown == sorted(grown)


def test_the_report_shows_it() -> None:
    report = ws.estimate(network(), workers=64, network=ws.Network(12, 3.1), **ABOUT)
    text = str(report)
    assert "64 workers, 12 us, 3.1 GB/s" in text
    assert f"{report.wire_bytes:,}  bytes a step" in text
    assert f"{report.peak_bytes:,}" in text


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            {"workers": 2, "network": "56k"},
            OptionError,
            r"network='56k' is not known: expected one of 10Gb.*ws.Network",
        ),
        ({"workers": 0}, OptionError, r"workers must be an integer of at least 1, or ws.Workers\(...\); received 0"),
        ({"workers": 65}, OptionError, "64 is the whole batch, and 65 workers .* at least batch_size=65"),
        ({"network": "10Gb"}, UsageError, "network='10Gb' is for several workers: give workers=64"),
    ],
)
def test_what_cannot_be_estimated_is_refused(given: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ws.estimate(network(), **given, **ABOUT)


def test_a_network_has_a_bandwidth_and_a_batch_can_be_divided() -> None:
    with pytest.raises(OptionError, match="a bandwidth above 0 GB/s; received 3 us and 0 GB/s"):
        ws.Network(3, 0)
    fixed = {**ABOUT, "inputs": ws.Spec((8, 12)), "targets": ws.Spec((8,), "int32"), "batch_size": None}
    with pytest.raises(UsageError, match=r"workers= divides the batch.*Received a first axis of 8"):
        ws.estimate(network(), workers=2, **fixed)


def test_workers_in_a_grid_send_along_its_axes(by_workers: dict) -> None:
    """No layer of this network is divided: those along the model axis tell each other nothing."""
    report = ws.estimate(network(), workers=ws.Workers(data=2, model=2), **ABOUT)
    assert (report.workers, report.plan.sizes["batch"]) == (4, 32)
    assert (report.wire_bytes, report.wire_bytes_along("model")) == (by_workers[2].wire_bytes, 0)
    assert report.wire_bytes_of_all == 2 * by_workers[2].wire_bytes_of_all
    assert report.exchange_seconds == by_workers[2].exchange_seconds
    assert "2 x 2 workers, 5 us, 12.5 GB/s" in str(report)
    session = ws.build_session(network(), **ABOUT, shards=(2, 2), device="null").report()
    assert (session.wire_bytes, session.peak_bytes) == (report.wire_bytes, report.peak_bytes)
    assert "2 x 2 ranks, each with 32 rows or one more" in str(session)
    assert "along the data axis and 0 along the model axis" in str(session)
    with pytest.raises(OptionError, match=r"has to know how many workers there are: ws.Workers\(data=4, model=2\)"):
        ws.estimate(network(), workers=ws.Workers(model=2), **ABOUT)


def test_ranks_that_divide_layers_send_what_was_estimated() -> None:
    """Along the model axis one sum, of what the ranks have of the last layer's results."""
    report = ws.estimate(network(split=True), workers=ws.Workers(data=2, model=2), **ABOUT)
    along = [(e.collective, e.bytes) for e in report.exchanges if e.axis == "model"]
    assert along == [("all_reduce", 4 * 32 * 4)]  # of the last layer's results; the first layer's input has no gradient
    gradients = 4 * (12 * 32 + 32 + 32 * 4 + 4)
    assert sum(e.bytes for e in report.exchanges if e.axis == "data") == gradients + LOSS
    assert report.wire_bytes == gradients + LOSS + along[0][1]
    done = launch("-n", "2", str(SCRIPTS / "counted.py"), "2")
    assert done.returncode == 0, done.stderr
    two = ws.estimate(network(split=True), workers=ws.Workers(2, model=2), **ABOUT)
    assert sum(int(n) for n in re.findall(r"sent (\d+)", done.stdout)) == two.wire_bytes_of_all == 2 * 4 * 64 * 4
