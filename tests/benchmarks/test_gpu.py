"""What `python -m benchmarks cuda` says about its rounds, without a GPU."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import wholestep as ws
from benchmarks.contender import BenchmarkError
from benchmarks.frameworks import OURS
from benchmarks.gpu import run, with_wholestep
from benchmarks.gpu.cases import CASES, PARAMETERS, GpuCase
from tests.compiler.backends.cuda.emulation.fake_gpu import fake_gpu
from tests.compiler.backends.cuda.emulation.models import UNCHECKED
from tests.support.sessions import data, mlp
from wholestep.compiler.backends.cuda.driver import driver


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
    three = {OURS: [2.3, 2.2], "jax": [2.3, loss], "torch_graph": [2.3, 2.2]}
    assert list(run.check_same_work(CASES["mlp_b32_adam"], three)) == ["jax"]


def test_without_a_gpu_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BenchmarkError, match="needs an NVIDIA GPU"):
        run.run([CASES["mlp_b32_adam"]], run.Rounds(1))


@pytest.mark.parametrize("found", CASES.values(), ids=CASES)
def test_every_peer_has_a_form_of_the_network(found: GpuCase) -> None:
    assert {peer.partition("_")[0] for peer in found.peers} <= set(found.case.models)


class Small(with_wholestep.EpochStepper):
    """All that is measured of ours, of a network that is soon emulated."""

    def build(self, found: GpuCase) -> ws.Session:
        return ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=8, device="cuda", options=UNCHECKED)


def test_what_is_measured_of_our_own_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that follow others wait for nothing; epochs are measured while the host sleeps where it waits."""
    monkeypatch.setattr(with_wholestep, "ROWS", 24)
    monkeypatch.setattr(with_wholestep, "data", lambda: data(24))
    case = SimpleNamespace(weights=dict, batches=lambda cell: [data(8)])
    found: Any = SimpleNamespace(case=case, cell=SimpleNamespace(batch=8))
    with fake_gpu():
        small = Small(found, OURS)
        assert small.losses(2)[1] > 0
        waits, wait = list[int](), driver.CudaEvent.wait
        monkeypatch.setattr(driver.CudaEvent, "wait", lambda event: waits.append(1) or wait(event))  # type: ignore[func-returns-value]
        before = small.session._programs.state.step
        assert small.measure_host(10) > 0
        assert small.session._programs.state.step - before == 4 * 4, (
            "four rounds, each of as many steps as may be under way"
        )
        assert small.measure_host_after_wait(3) > small.measure_host_copy(3) > 0
        assert not waits, "a wait for everything is known to the steps behind it"
        assert small.measure_calls(2) > 0
        before = small.session._programs.state.step
        assert small.measure_host_in_epochs(9) > 0
        assert small.session._programs.state.step - before == 5 * 3, (
            "three epochs of three steps, and one before each run"
        )
        assert small.program._gpu.watch is None
        profile = small.profile()
        assert all(k["us"] > 5 * k["price_us"] and k["name"] for k in profile["slow_kernels"])
        times = [k["us"] for k in profile["kernels"]]
        assert times == sorted(times, reverse=True) != []


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_first_step_of_torch_which_compiles_is_undone(optimizer: str) -> None:
    from benchmarks.gpu.with_torch import Stepper

    found = CASES["mlp_b32_adam"]
    found = replace(found, cell=replace(found.cell, optimizer=optimizer, rate=1e-2))
    compiled, fresh = (Stepper(found, "torch_eager", device="cpu") for _ in range(2))
    assert compiled.compile() == []
    assert compiled.losses(3) == fresh.losses(3)


class Answering:
    """A contender that takes 10 us a step."""

    def __init__(self, name: str, case: str, *given: object, **more: object) -> None:
        self.name, self.case = name, case

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        return {
            "compile": {"first_step_s": 1.0, "import_s": 0.5 if self.name == OURS else None},
            "start": {"losses": [2.3] * given.get("steps", 0)},
            "measure": {"seconds": given.get("steps", 0) * 1e-5},
            "held": {"device_bytes": 2**30},
            "prepare": {},
            "profile": {"slow_kernels": [{"kernel": 7, "us": 500.0, "price_us": 5.0, "name": "conv"}]},
        }[do]

    def close(self) -> None:
        pass

    def kill(self) -> None:
        pass


def test_what_is_said_about_our_own_calls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = list[dict[str, Any]]()

    class Recording(Answering):
        def ask(self, do: str, **given: Any) -> dict[str, Any]:
            asked.append({"do": do, **given})
            return super().ask(do, **given)

    monkeypatch.setattr(run, "Contender", Recording)
    monkeypatch.setattr(run, "clocks", lambda: {"name": "a GPU"})
    cases = [CASES[name] for name in ("mlp_b32_adam", "mlp_b32_adam_epochs", "gpt2_adamw_update")]
    results = run.run(cases, run.Rounds(1, peers=()))
    said = [cell["ours_call_us"] for cell in results["cells"].values()]
    assert [list(each) for each in said] == [
        ["calls", "host", "host_after_wait", "host_copy"],
        ["host_in_epochs"],
        [],
    ]
    assert all(us == pytest.approx(10.0) for each in said for us in each.values())
    kinds = [a["kind"] for a in asked if "kind" in a]
    assert all(hasattr(with_wholestep.EpochStepper, f"measure_{kind}") for kind in kinds)
    run.show(results)
    printed = capsys.readouterr().out
    assert "host_after_wait 10.0" in printed
    assert "host_in_epochs 10.0" in printed
