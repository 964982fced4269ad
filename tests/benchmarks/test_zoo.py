"""What `python -m benchmarks zoo` says over all networks, without building one."""

from __future__ import annotations

import pytest

from benchmarks import zoo
from benchmarks.cases.zoo import NETWORKS


def test_the_ratio_is_to_the_better_peer_over_all_that_ran() -> None:
    found = {"a": {"best_ratio": 2.0}, "b": {"best_ratio": 8.0}, "c": {"error": "no such op"}}
    assert zoo.overall(found) == {"geomean": 4.0, "least": ("a", 2.0), "target": 1.5}
    assert zoo.overall({"c": {"error": ""}})["geomean"] is None


def test_every_network_has_an_input() -> None:
    assert len(NETWORKS) == 12
    assert all(shape for _, shape in NETWORKS.values())


def test_a_peer_that_trains_another_network_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "ours_us": 10.0,
        "peers_us": {"torch_eager": 20.0},
        "ratios": {"torch_eager": 2.0},
        "best_ratio": 2.0,
        "first_step_s": {"wholestep": 1.0},
        "left_out": {"torch_compile": "its gradients are zero"},
    }
    zoo.show({"networks": {"vgg11": row}, **zoo.overall({"vgg11": row})})
    said = capsys.readouterr().out
    assert "20 (2.00x)" in said
    assert "trains another" in said
