"""The bytes of tensors in a step: torch's by its profiler, ours from the plan, on networks small enough to count."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wholestep as ws
from benchmarks.case import Arrays, Case, Cell
from benchmarks.frameworks import OURS
from benchmarks.frameworks.torch_memory import bytes_of, peak_above_start, step_bytes
from benchmarks.frameworks.with_wholestep import WholestepTrainer
from benchmarks.harness import Measurements, summary
from benchmarks.tables import show_case


def test_the_peak_is_the_largest_sum_of_what_lives_at_a_time() -> None:
    def work() -> None:
        first, second = torch.empty(1000), torch.empty(500)  # 6000 bytes
        del first
        third = torch.empty(700)  # 4800
        del second, third

    assert peak_above_start(work) == 6000


def test_views_of_one_storage_count_once() -> None:
    x = torch.zeros(8, 8)
    assert bytes_of([x, x[0], x.T, torch.zeros(4)]) == 256 + 16


def test_a_step_counts_parameters_state_gradients_and_activations() -> None:
    weight = torch.nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    x = torch.ones(1000)

    def step(index: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        (weight * x).sum().backward()
        optimizer.step()

    step(0)
    # Weight and momentum; then the product, and after its release the gradient, each with a few bytes of scalars.
    assert 12_000 < step_bytes(step, optimizer) <= 12_000 + 64


def test_ours_are_all_that_is_mapped_but_for_given_inputs_and_whole_pages() -> None:
    def graph() -> ws.Graph:
        g = ws.Graph()
        x = g.input("x", ("batch", 6))
        g.set_outputs([((x @ g.parameter("w", (6, 16))) ** 2).mean()])
        return g

    def batches(cell: Cell) -> list[Arrays]:
        return [{"x": np.ones((cell.batch, 6), np.float32)}]

    cell = Cell("b8_sgd", 8, "sgd")
    case = Case("tiny", (cell,), lambda: {"w": np.ones((6, 16), np.float32)}, batches, {"wholestep": graph})
    trainer = WholestepTrainer(case, cell, 1)
    held = trainer.session.report().footprint
    assert held.staging == 8 * 6 * 4
    rounding = dict(held.rows())["page rounding"]
    assert trainer.tensor_bytes() == trainer.peak_bytes - held.staging - rounding
    assert trainer.tensor_bytes() >= held.state == 6 * 16 * 4


def test_both_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    measured = Measurements(
        "tiny",
        {OURS: {"a": [1.0]}, "torch_eager": {"a": [2.0]}, "jax": {"a": [3.0]}},
        {OURS: 0.5, "torch_eager": 1.0, "jax": 1.0},
        {"a": 4096},
        {OURS: {"a": 2000}, "torch_eager": {"a": 3000}},
    )
    show_case(summary(measured))
    shown = capsys.readouterr().out
    assert "2,000" in shown
    assert "3,000 (1.50x)" in shown
    assert "4,096 bytes" in shown
