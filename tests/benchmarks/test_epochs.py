"""`python -m benchmarks epoch`: its arithmetic, its refusals, and that its loops train the same network."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks.cases.epoch import CELLS, EpochCell, data
from benchmarks.contender import BenchmarkError
from benchmarks.epochs import check_same_work, filling, summary
from benchmarks.frameworks.loops_torch import InMemory, Loaded, TorchLoop
from benchmarks.frameworks.loops_wholestep import Fit
from benchmarks.tables import show_epochs
from benchmarks.terminal import terminal_as_stderr

CELL = EpochCell("b64", 64, {"torch_loop": 2.5, "torch_loader": 8.0})
ARRAYS = data(rows=200)  # the last batch has eight rows


def test_the_faster_loader_is_held_against_the_target() -> None:
    times = {
        "wholestep": [1.0, 10.0, 2.0],
        "torch_loop": [3.0, 30.0, 6.0],
        "torch_loader": [9.0, 90.0, 18.0],
        "torch_loader_2": [7.0, 70.0, 14.0],
    }
    found = summary(CELL, times, {"wholestep": "fit"})
    assert found["ratios"] == {"torch_loop": 3.0, "torch_loader": 9.0, "torch_loader_2": 7.0}
    assert found["reached"] == {"torch_loop": 3.0, "torch_loader": 7.0}
    assert found["seconds"]["wholestep"] == 2.0
    assert set(found) == {"batch", "seconds", "ratios", "reached", "targets", "forms"}


def test_targets_are_those_that_the_project_promises() -> None:
    assert {c.batch: tuple(c.targets.values()) for c in CELLS.values()} == {
        128: (2.5, 8.0, 2.0, 1.6),
        32: (3.0, 12.0, 2.5, 1.6),
    }


@pytest.mark.parametrize("loss", [2.31, float("nan")])
def test_a_loop_that_trains_another_network_is_refused(loss: float) -> None:
    with pytest.raises(BenchmarkError, match=r"b64: the mean loss of jax_loop .* do not train the same network"):
        check_same_work(CELL, {"wholestep": 2.3, "jax_loop": loss})


def test_a_round_has_at_least_one_epoch() -> None:
    assert [filling(s) for s in (0.125, 0.5, 3.0)] == [4, 1, 1]


def test_loops_train_the_same_network_and_shuffle() -> None:
    loops: list[Fit | TorchLoop] = [
        Fit(CELL, ARRAYS, 2, progress=True),
        InMemory(CELL, ARRAYS, 2, permute=True),
        InMemory(CELL, ARRAYS, 2, permute=False),
        Loaded(CELL, ARRAYS, 2, workers=0),
    ]
    first = [loop.epochs(1, shuffled=False) for loop in loops]
    assert first == pytest.approx([first[0]] * 4, abs=1e-5)
    with terminal_as_stderr():
        later = [loop.epochs(2) for loop in loops]
    assert later == pytest.approx([later[0]] * 4, abs=1e-2)  # each epoch has another order
    assert max(later) < min(first)


def test_meanwhile_standard_error_is_a_terminal() -> None:
    before = sys.stderr
    with terminal_as_stderr():
        assert sys.stderr.isatty()
        print("x" * 200_000, file=sys.stderr, flush=True)  # somebody reads it: no write blocks for ever
        assert os.environ["COLUMNS"] == "100"
    assert sys.stderr is before


def test_the_table_has_the_target_beside_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    times = {"wholestep": [1.0], "torch_loop": [3.0]}
    cell = summary(CELL, times, {"wholestep": "fit", "torch_loop": "rows of each batch gathered"})
    show_epochs({"case": "epoch", "cells": {"b64": cell}})
    row = next(line for line in capsys.readouterr().out.splitlines() if "torch_loop" in line)
    assert "3.00x" in row
    assert "2.5x" in row
