"""Workers train to the bits of `shards=n` in one process, whatever carries their sums."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.distributed.support import training
from tests.distributed.support.ranks import launch
from tests.distributed.support.training import CASES, Numbers, trained

SCRIPT = os.fspath(Path(training.__file__))


def launched(count: int, *cases: str, model: int = 0, **environment: str) -> list[dict[str, Numbers]]:
    """What each worker says has become of the runs."""
    more = [str(model)] if model else []
    done = launch("-n", str(count), SCRIPT, ",".join(cases), *more, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.removeprefix(f"[{rank}] ") for rank in range(1, count) for line in done.stdout.splitlines()]
    return [json.loads(line) for line in dict.fromkeys(lines) if line.startswith("{")]


TCP = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}  # every rank takes itself for alone on its machine


@pytest.mark.parametrize(
    ("count", "cases", "over"),
    [
        (3, ["digits", "batch_norm", "accumulate"], TCP),
        (4, ["digits"], {}),
        pytest.param(2, [*CASES], TCP, marks=pytest.mark.long),
        pytest.param(3, [*CASES], {}, marks=pytest.mark.long),
        pytest.param(4, [*CASES], {}, marks=pytest.mark.long),
    ],
)
def test_workers_train_to_the_bits_of_shards(count: int, cases: list[str], over: dict[str, str]) -> None:
    (found,) = launched(count, *cases, **over)  # all workers say the same
    assert found == {case: trained(case, shards=count) for case in cases}


@pytest.mark.long  # the cases of test_split_training.py divide layers, too
@pytest.mark.parametrize(
    ("grid", "cases", "over"), [((2, 2), ["digits", "accumulate", "read_rows"], {}), ((1, 2), ["batch_norm"], TCP)]
)
def test_so_do_workers_in_a_grid(grid: tuple[int, int], cases: list[str], over: dict[str, str]) -> None:
    """To the bits of as many as there are along the data axis, too, since no layer is divided."""
    (found,) = launched(grid[0] * grid[1], *cases, model=grid[1], **over)
    assert found == {case: trained(case, shards=grid) for case in cases}
    assert found == {case: trained(case, shards=grid[0]) for case in cases}


def test_so_do_two_and_all_stop_where_one_of_them_does() -> None:
    (found,) = launched(2, *CASES, "stopped")
    assert found.pop("stopped")["stopped"] == "worker 1 is tired"
    assert found == {case: trained(case, shards=2) for case in CASES}
