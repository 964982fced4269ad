"""Optimizer states and layers divided among GPUs: processes with one each, and all of them on one (`shards=`).

GPUs and NCCL are none: what kernels compute is emulated, and what they send goes between processes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation import emulated
from tests.compiler.backends.cuda.emulation.fake_gpu import fake_gpu
from tests.distributed.scripts import divided_on_gpus as script
from tests.distributed.scripts import split
from tests.distributed.scripts.on_gpus import OPTIONS
from tests.distributed.support.ranks import launch
from wholestep.compiler.backends.cuda.runtime.collectives import LITTLE
from wholestep.compiler.runtime.state.partitioned_state import Parts
from wholestep.train.checkpoint import load_checkpoint
from wholestep.train.checkpoint.folder import checkpoints_in

Grid = tuple[int, int]
GRIDS = [pytest.param((2, 1), marks=pytest.mark.long), (3, 1), (2, 2)]  # two divide batches in test_gpus.py


@pytest.fixture(scope="module", autouse=True)
def gpu() -> Iterator[None]:
    with fake_gpu():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Grid], Path]:
    """What ranks of a grid have left, each with a GPU of its own."""
    found: dict[Grid, Path] = {}

    def of(grid: Grid) -> Path:
        if grid not in found:
            emulated.header()  # ranks would each compile it
            folder = found[grid] = tmp_path_factory.mktemp("gpus")
            given = emulated.folder(), folder, grid[1]
            done = launch("-n", str(grid[0] * grid[1]), script.__file__, *map(str, given))
            assert done.returncode == 0, done.stdout + done.stderr
        return found[grid]

    return of


def shards_of(grid: Grid) -> Any:
    return grid[0] if grid[1] == 1 else grid


def same_bits(one: dict[str, Any], other: dict[str, Any], where: str) -> None:
    assert one.keys() == other.keys(), where
    for name, array in one.items():
        assert np.asarray(array).tobytes() == np.asarray(other[name]).tobytes(), f"{where}: {name}"


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_ranks_have_the_bits_of_one_gpu_that_makes_their_steps(run: Callable[[Grid], Path], grid: Grid) -> None:
    """Uneven last batches, clipping, metrics, batch norm, dropout, micro-batches, a GPT; all ranks agree."""
    folder = run(grid)
    for case, settings in script.CASES[grid]:
        alone = script.fitted(case, device="cuda", shards=shards_of(grid), **settings)
        for rank in range(grid[0] * grid[1]):
            found = dict(np.load(folder / script.file_of(case, settings, rank)))
            same_bits(alone, found, f"{script.file_of(case, settings)}, rank {rank}")


@pytest.mark.parametrize("grid", [(3, 1), (2, 2)], ids=str)
def test_they_train_as_cpus_do(run: Callable[[Grid], Path], grid: Grid) -> None:
    """To 2e-5: kernels of a GPU add in another order."""
    folder = run(grid)
    for case, settings in script.CASES[grid]:
        alone = script.fitted(case, device="cpu", shards=shards_of(grid), threads=1, **settings)
        for name, array in np.load(folder / script.file_of(case, settings, 0)).items():
            np.testing.assert_allclose(array, alone[name], rtol=2e-5, atol=2e-6, err_msg=f"{case}, {name}")


def test_divided_moments_change_no_bit(run: Callable[[Grid], Path]) -> None:
    """But where a norm is added up over parts, in another order."""

    def both(case: str) -> list[dict[str, Any]]:
        return [dict(np.load(run((3, 1)) / script.file_of(case, settings, 0))) for settings in ({}, script.PARTS)]

    same_bits(*both("micro-batches"), "micro-batches")
    whole, divided = both("epochs")
    for name, array in whole.items():
        np.testing.assert_allclose(divided[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_bytes_sent_and_held_are_those_of_the_plan(run: Callable[[Grid], Path], grid: Grid) -> None:
    told = [json.loads((run(grid) / f"counted-{rank}.json").read_text()) for rank in range(grid[0] * grid[1])]
    assert all(each["held"] == each["told"] for each in told)
    wire = 0
    plan = ws.estimate(
        split.perceptron(), inputs=ws.Spec(("batch", 16)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy",
        optimizer="adam", batch_size=8, workers=ws.Workers(data=grid[0], model=grid[1]), shard="optimizer",
        device="null:cuda/sm_90", options=OPTIONS,
    )  # fmt: skip
    assert [list(pair) for pair in plan.collectives] == told[0]["exchanged"]
    assert {"reduce_scatter", "all_gather"} < {e.collective for e in plan.exchanges}
    for each in plan.exchanges:
        along = plan.grid.axis_size(each.axis)
        little = each.collective == "all_reduce" and each.bytes <= LITTLE  # everybody is sent all of it, at once
        wire += plan.workers * ((along - 1) * each.bytes if little else each.bytes_sent(along))
    assert sum(each["sent"] for each in told) == wire
    if grid[0] == 2:
        assert wire == plan.wire_bytes_of_all


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_states_are_read_whole_by_every_rank(run: Callable[[Grid], Path], grid: Grid) -> None:
    session = script.built(device="cuda", shards=shards_of(grid), shard="optimizer")
    losses = script.stepped(session, script.STEPS)
    held = session.state.slot("0.weight.adam.m").newest
    assert isinstance(held, Parts)
    assert len({part.read().tobytes() for part in held.of.values()}) == grid[0] * grid[1], "each has its own part"
    script.stepped(session, [script.FULL])
    alone = {**session.state_dict(), **{f"got {name}": session.get(name) for name in script.STATES}}
    for rank in range(grid[0] * grid[1]):
        assert json.loads((run(grid) / f"counted-{rank}.json").read_text())["losses"] == losses
        same_bits(alone, dict(np.load(run(grid) / f"states-{rank}.npz")), f"rank {rank}")


@pytest.mark.parametrize("grid", [(3, 1), (2, 2)], ids=str)
def test_a_checkpoint_is_written_by_owners_and_goes_on_elsewhere(
    run: Callable[[Grid], Path], grid: Grid, tmp_path: Path
) -> None:
    ranks = grid[0] * grid[1]
    written = run(grid) / "run"
    newest = checkpoints_in(written)[-1].path
    assert len(list(newest.glob(f"training-*-of-0000{ranks}.safetensors"))) == ranks
    assert load_checkpoint(newest).arrays["0.weight.adam.m"].shape == (64, 16)

    def gone_on(name: str, **where: Any) -> dict[str, Any]:
        folder = shutil.copytree(written, tmp_path / name)
        return script.kept(Path(folder), 3, resume=True, **where)

    unbroken = script.kept(tmp_path / "unbroken", 3, device="cuda", shards=shards_of(grid), shard="optimizer")
    same_bits(unbroken, gone_on("same", device="cuda", shards=shards_of(grid), shard="optimizer"), "the same grid")
    others: dict[str, dict[str, Any]] = {
        "two": {"device": "cuda", "shards": 2, "shard": "optimizer"},
        "one": {"device": "cuda"},
        "cpu": {"device": "cpu", "shards": (1, 2), "threads": 1},
    }
    for name, where in others.items():
        for weight, array in gone_on(name, **where).items():
            np.testing.assert_allclose(array, unbroken[weight], rtol=2e-5, atol=2e-6, err_msg=f"{name}, {weight}")
