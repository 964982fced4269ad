"""What `python -m benchmarks zoo` says over all networks, without building one."""

from __future__ import annotations

from benchmarks import zoo
from benchmarks.cases.zoo import NETWORKS


def test_the_ratio_is_to_the_better_peer_over_all_that_ran() -> None:
    found = {"a": {"best_ratio": 2.0}, "b": {"best_ratio": 8.0}, "c": {"error": "no such op"}}
    assert zoo.overall(found) == {"geomean": 4.0, "least": ("a", 2.0), "target": 1.5}
    assert zoo.overall({"c": {"error": ""}})["geomean"] is None


def test_every_network_has_an_input() -> None:
    assert len(NETWORKS) == 12
    assert all(shape for _, shape in NETWORKS.values())
