"""The profile of a plan: clocks are where they belong, and its arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from benchmarks import kernels
from benchmarks.case import Arrays, Case, Cell
from benchmarks.contender import BenchmarkError
from benchmarks.frameworks.with_wholestep import WholestepTrainer
from benchmarks.limits import Limits

CELL = Cell("b8_sgd", 8, "sgd")
MACHINE = Limits(gflops_core=100.0, gb_s=50.0)


def graph() -> ws.Graph:
    g = ws.Graph()
    x, y = g.input("x", ("batch", 6)), g.input("y", ("batch", 20))
    g.set_outputs([ws.losses.mse_loss(x @ g.parameter("w", (6, 20)), y)])
    return g


def batches(cell: Cell) -> list[Arrays]:
    return [{"x": np.ones((cell.batch, 6), np.float32), "y": np.zeros((cell.batch, 20), np.float32)}]


CASE = Case("tiny", (CELL,), lambda: {"w": np.ones((6, 20), np.float32)}, batches, {"wholestep": graph})


def test_every_kernel_is_timed() -> None:
    trainer = WholestepTrainer(CASE, CELL, 2)
    spent = kernels.measure(trainer, 2, steps=4)
    assert spent.shape == (2, len(trainer.session.plan.kernels))
    assert (spent.max(axis=0) > 0).all()
    assert spent.max() < 1e9  # nanoseconds


def test_rows_put_equal_kernels_together_and_the_longest_first() -> None:
    found = WholestepTrainer(CASE, CELL, 2).session.plan.kernels
    twice = [*found, found[0]]
    spent = np.full((2, len(twice)), 1000)
    spent[:, 0] = 9000
    first, *rest = kernels.rows(twice, spent, MACHINE)
    assert first.count == 2
    assert all(row.count == 1 for row in rest)
    assert first.us == 10.0  # 9 + 1 us on each thread
    assert first.gflops_core == pytest.approx(2 * found[0].flops / 20_000)
    assert first.of_flops == pytest.approx(first.gflops_core / 100)
    assert first.gb_s == pytest.approx(2 * found[0].bytes / 10_000)
    assert first.of_memory == pytest.approx(first.gb_s / 50)


def test_an_unknown_case_is_named() -> None:
    with pytest.raises(BenchmarkError, match="there is no case mpl; expected some of mlp"):
        kernels.run_all(["mpl"], 1)
