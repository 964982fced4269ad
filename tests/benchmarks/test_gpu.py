"""What `python -m benchmarks cuda` says about its rounds, without a GPU."""

from __future__ import annotations

import json

import pytest

from benchmarks.contender import BenchmarkError
from benchmarks.frameworks import OURS
from benchmarks.gpu import run
from benchmarks.gpu.cases import CASES, PARAMETERS, GpuCase


def test_parameters_of_the_update_are_those_of_the_network() -> None:
    assert sum(w.size for w in CASES["gpt2_adamw_update"].case.weights().values()) == PARAMETERS


@pytest.mark.parametrize(
    ("name", "ours", "peer", "verdict"),
    [
        ("mlp_b32_adam", 11.0, 80.0, "target"),
        ("mlp_b32_adam", 20.0, 80.0, "done"),
        ("mlp_b32_adam", 26.0, 80.0, "not done"),
        ("gpt2_b4", 10.0, 12.0, "target"),
        ("gpt2_b4", 10.0, 11.5, "done"),
        ("gpt2_b4", 10.0, 10.5, "not done"),
    ],
)
def test_a_verdict_is_by_time_or_by_ratio(name: str, ours: float, peer: float, verdict: str) -> None:
    found = run.summary(CASES[name], {OURS: [ours] * 3, "a": [peer] * 3, "b": [9 * peer] * 3})
    assert found["verdict"] == verdict
    assert found["best_ratio"] == pytest.approx(peer / ours, abs=1e-3)
    json.dumps(found)


def test_nothing_is_said_about_peers_that_were_not_asked() -> None:
    assert run.summary(CASES["gpt2_b4"], {OURS: [1.0]})["verdict"] == "not compared"


@pytest.mark.parametrize("loss", [2.4, float("nan")])
def test_a_contender_that_trains_another_network_is_refused(loss: float) -> None:
    with pytest.raises(BenchmarkError, match=r"step 1: the loss of jax .* do not train the same network"):
        run.check_same_work(CASES["mlp_b32_adam"], {OURS: [2.3, 2.2], "jax": [2.3, loss]})


def test_without_a_gpu_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BenchmarkError, match="needs an NVIDIA GPU"):
        run.run(["mlp_b32_adam"], 1)


@pytest.mark.parametrize("found", CASES.values(), ids=CASES)
def test_every_peer_has_a_form_of_the_network(found: GpuCase) -> None:
    assert {peer.partition("_")[0] for peer in found.peers} <= set(found.case.models)
