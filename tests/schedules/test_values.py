"""Section F of the conformance page: schedules."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.support.sessions import data, mlp
from wholestep import schedules as S
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter

VALUES = {
    "F01": (S.Constant(0.01), {0: 0.01, 10**6: 0.01}),
    "F02": (S.Linear(1e-3, 1e-4, 100), {0: 1e-3, 50: 5.5e-4, 100: 1e-4, 150: 1e-4}),
    "F03": (S.Cosine(1e-3, 100, 1e-6), {0: 1e-3, 25: 8.5369984e-4, 50: 5.005e-4, 100: 1e-6}),
    "F03 eta_min": (S.Cosine(1e-3, 100), {100: 0.0, 101: 0.0, 5000: 0.0}),
    "F04": (S.Warmup(1e-3, 100), {0: 1e-5, 49: 5e-4, 99: 1e-3, 1000: 1e-3}),  # type: ignore[arg-type]
    "F05": (S.Warmup(S.Cosine(1e-3, 90), 10), {4: 5e-4, 9: 1e-3, 10: 1e-3, 55: 5e-4, 100: 0.0}),
    "F06": (S.StepDecay(0.1, 10, 0.1), {0: 0.1, 9: 0.1, 10: 0.01, 19: 0.01, 20: 0.001}),
    "F07": (S.Exponential(0.1, 0.95), {10: 0.05987369}),
}


@pytest.mark.parametrize("row", VALUES)
def test_values(row: str) -> None:
    schedule, expected = VALUES[row]
    for n, value in expected.items():
        assert schedule(n) == pytest.approx(value, rel=1e-7, abs=1e-18)


def test_f01_the_first_update_uses_the_value_at_0() -> None:
    scheduled = ws.build_session(mlp(), optimizer=ws.SGD(lr=9.0), schedule=S.Exponential(0.05, 0.5), batch_size=8)
    plain = ws.build_session(mlp(), optimizer=ws.SGD(lr=0.05), batch_size=8)
    for session in (scheduled, plain):
        session.step(**data(8))
    assert scheduled.get("w1").tobytes() == plain.get("w1").tobytes()


@pytest.mark.parametrize("n", [0, 1, 37, 100])
def test_f08_get_lr_and_torch_names(n: int) -> None:
    schedule = S.Cosine(0.1, 100)
    assert schedule.get_lr(n) == schedule(n)
    optimizer = ws.SGD(lr=0.1)
    bound = S.CosineAnnealingLR(optimizer, T_max=100)
    for _ in range(n):
        bound.step()
    assert optimizer.get_lr() == pytest.approx(schedule(n), abs=1e-18)


def test_f09_a_hundred_steps_compile_nothing() -> None:
    session = ws.build_session(mlp(), schedule=S.Warmup(S.WarmRestarts(0.1, 20, 2), 10), batch_size=8)
    session.step(**data(8))
    compiles, seen = compile_counter.value, set()
    for _ in range(100):
        seen.add(session.optimizer.lr)
        session.step(**data(8))
    assert compile_counter.value == compiles
    assert len(seen) > 60
    assert np.isfinite(session.read_loss())
