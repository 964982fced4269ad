"""The arithmetic and the refusals of `python -m benchmarks optimizers`, without starting a framework."""

from __future__ import annotations

import pytest

import wholestep as ws
from benchmarks.cases.optimizers import UPDATES
from benchmarks.contender import BenchmarkError
from benchmarks.optimizers import check_same_work, summary


def test_ratios_are_taken_within_rounds_and_bandwidth_of_the_least_traffic() -> None:
    times = {"wholestep": [0.001, 0.010, 0.002], "torch": [0.002, 0.020, 0.004]}
    row = summary(UPDATES["sgd"], times, {"wholestep": "compiled step", "torch": "fused"})
    assert row["ratios"] == {"torch": 2.0}
    assert row["ms"] == {"wholestep": 2.0, "torch": 4.0}
    assert row["gb_s"] == 60.0  # 10 M weights read and written, gradients read, in 2 ms
    assert row["target"] == 1.0
    assert row["forms"] == {"torch": "fused"}


@pytest.mark.parametrize("theirs", [1.001, float("nan")])
def test_a_contender_with_other_numbers_is_refused(theirs: float) -> None:
    started = {"wholestep": {"checks": [1.0]}, "torch": {"checks": [theirs]}}
    with pytest.raises(BenchmarkError, match=r"sgd, step 0: torch has .* they do not agree"):
        check_same_work("sgd", UPDATES["sgd"], started)
    check_same_work("muon", UPDATES["muon"], started)  # torch's runs in bfloat16


def test_every_optimizer_is_measured() -> None:
    measured = {type(update.ours(ws)).__name__ for update in UPDATES.values()}
    exported = {name: getattr(ws, name) for name in ws.__all__}
    ours = {name for name, cls in exported.items() if isinstance(cls, type) and issubclass(cls, ws.Optimizer)}
    assert measured == ours - {"Optimizer", "LBFGS", "SophiaG"}  # their updates need the loss


def test_the_counted_passes_are_those_of_the_plan() -> None:
    """Where an update is one kernel: each state is read and written once, the gradient read."""
    for name in ("sgd", "momentum", "adam", "amsgrad", "adagrad", "radam", "rmsprop", "rmsprop_centered", "lion"):
        update = UPDATES[name]

        @ws.step
        def step(g: ws.Graph) -> ws.Tensor:
            w = g.parameter("w", (64,))
            update.ours(ws).update(g, w, g.input("d", (64,)))  # noqa: B023
            return g.step + 1.0

        plan, _ = ws.compile_training_graph(step)
        assert sum(k.bytes for k in plan.kernels if k.bytes > 8) == update.passes * 64 * 4, name
