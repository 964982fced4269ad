"""The arithmetic of the comparison, and its refusals, without starting a framework."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.__main__ import contenders
from benchmarks.cases import CASES
from benchmarks.contender import BenchmarkError, environment
from benchmarks.frameworks import OURS, OURS_FLOAT32, PEERS
from benchmarks.harness import Measurements, Prepared, apart, check_same_work, ratios, rotated, summary, warm_up


def contender(name: str, **more: Any) -> Any:
    return SimpleNamespace(name=name, **more)


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The machine was slow in round 2; both suffered, so the ratio does not see it.
    peer, ours = {"a": [20.0, 400.0, 30.0]}, {"a": [10.0, 100.0, 10.0]}
    assert ratios(peer, ours) == {"a": 3.0, "geomean": 3.0}


def test_geomean_is_over_cells() -> None:
    assert ratios({"a": [2.0], "b": [8.0]}, {"a": [1.0], "b": [1.0]})["geomean"] == 4.0


def test_summary_has_exactly_the_documented_keys() -> None:
    measured = Measurements(
        "mlp",
        {OURS: {"a": [1.0, 3.0, 2.0]}, "jax": {"a": [4.0, 4.0, 4.0]}},
        {OURS: 0.5, "jax": 1.0},
        {"a": 64},
        {OURS: {"a": 60}, "torch_eager": {"a": 70}},
    )
    assert summary(measured) == {
        "case": "mlp",
        "ours_us": {"a": 2.0},
        "peers_us": {"jax": {"a": 4.0}},
        "ratios": {"jax": {"a": 2.0, "geomean": 2.0}},
        "first_step_s": {OURS: 0.5, "jax": 1.0},
        "peak_bytes": {"a": 64},
        "tensor_bytes": {OURS: {"a": 60}, "torch_eager": {"a": 70}},
    }


def test_in_a_half_precision_our_own_float32_stands_beside_the_peers() -> None:
    times = {OURS: {"a": [1.0, 2.0]}, OURS_FLOAT32: {"a": [2.0, 4.0]}, "torch_eager": {"a": [3.0, 6.0]}}
    found = summary(Measurements("gpt", times, {}, {}, {}))
    assert found["float32_us"] == {"a": 3.0}
    assert list(found["peers_us"]) == ["torch_eager"]
    assert {name: row["a"] for name, row in found["ratios"].items()} == {"torch_eager": 3.0, OURS_FLOAT32: 2.0}


def test_contenders_of_a_half_precision_are_those_that_have_it() -> None:
    assert contenders(CASES["gpt"], "bfloat16", None, False) == [OURS, OURS_FLOAT32, "torch_eager", "torch_compile"]
    assert contenders(CASES["gpt"], "float32", ["jax"], False) == [OURS, "jax"]
    assert "torch_channels_last" in contenders(CASES["resnet"], "bfloat16", None, True)
    with pytest.raises(BenchmarkError, match="jax does not support bfloat16; expected torch_eager"):
        contenders(CASES["gpt"], "bfloat16", ["jax"], False)


def test_nobody_always_follows_the_same_neighbour() -> None:
    everyone: Any = ["a", "b", "c"]
    assert [rotated(everyone, number) for number in (0, 1, 4)] == [["a", "b", "c"], ["b", "c", "a"], ["b", "c", "a"]]


@pytest.mark.parametrize("loss", [2.4, float("nan")])
def test_a_contender_that_trains_another_network_is_refused(loss: float) -> None:
    case = CASES["mlp"]
    prepared = {
        "jax": {cell.name: Prepared(10, [2.3]) for cell in case.cells},
        "sklearn": {cell.name: Prepared(10, [loss]) for cell in case.cells},
    }
    with pytest.raises(BenchmarkError, match=r"b32_sgd, step 0: the loss of sklearn .* not train the same network"):
        check_same_work(case, [contender("jax"), contender("sklearn")], prepared)
    assert [*apart(case, [contender("jax"), contender("sklearn")], prepared, within=0.05)] == ["sklearn"]


def test_warm_up_ends_when_three_rounds_agree_and_fills_a_quarter_second() -> None:
    seconds_a_step = iter([9e-4, 5e-4, 3e-4, 2.5e-4, 2.5e-4, 2.5e-4, 1.0])

    def ask(do: str, cell: str, steps: int) -> dict[str, float]:
        return {"seconds": next(seconds_a_step) * steps}

    assert warm_up(contender("jax", ask=ask), "a") == 1000
    assert next(seconds_a_step) == 1.0


def test_the_mlp_case_is_the_one_the_project_promises() -> None:
    case = CASES["mlp"]
    assert [(cell.name, cell.batch, cell.optimizer) for cell in case.cells] == [
        ("b32_sgd", 32, "sgd"),
        ("b32_adam", 32, "adam"),
        ("b128_sgd", 128, "sgd"),
        ("b128_adam", 128, "adam"),
    ]
    assert PEERS == ("torch_eager", "torch_compile", "torch_channels_last", "jax", "sklearn")
    assert {name: w.shape for name, w in case.weights().items()} == {
        "w1": (784, 128),
        "b1": (128,),
        "w2": (128, 10),
        "b2": (10,),
    }


def test_workers_start_with_empty_caches_whatever_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variables = ("WHOLESTEP_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")
    for name in variables:
        monkeypatch.setenv(name, "/elsewhere")
    given = environment(threads=2, cache=tmp_path)
    assert all(Path(given[name]).is_relative_to(tmp_path) for name in variables)
    assert given["OMP_NUM_THREADS"] == given["OPENBLAS_NUM_THREADS"] == "2"
