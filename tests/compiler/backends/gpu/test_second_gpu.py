"""A GPU is a kind of device: a second one needs a target and a driver, and nothing of NVIDIA's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiler.backends.cuda.emulation.emulated import emulated_device
from tests.compiler.backends.gpu.second_gpu import NETWORKS, ROWS, TARGET, batch, session_of
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu.cost_model import GemmCosts
from wholestep.compiler.backends.gpu.grids.convolution import Shape, best_tile
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.plan.io.serialize import dump, load

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def planned() -> dict[str, Any]:
    """What a process that never runs CUDA plans and renders."""
    command = [sys.executable, "-m", "tests.compiler.backends.gpu.second_gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_plans_and_sources_need_nothing_of_cuda(planned: dict[str, Any]) -> None:
    assert any(name.startswith("wholestep.compiler.backends.gpu.render") for name in planned["modules"])
    assert [name for name in planned["modules"] if ".cuda" in name] == []


@pytest.mark.parametrize("name", NETWORKS)
def test_every_kernel_is_generated(name: str, planned: dict[str, Any]) -> None:
    """There is no library: the report says so of convolutions and attention, and every launch has a function."""
    one = planned[name]
    assert one["target"] == TARGET.name
    assert 0 < one["functions"] <= one["launches"]
    assert not {"library", "cudnn", "nccl"} & set(one["forms"])
    expected = {"lenet": "convolutions", "gpt": "attention"}.get(name, "")
    assert any(expected in note and "this GPU has no library" in note for note in one["notes"]) == bool(expected)


@pytest.fixture
def emulated() -> Iterator[None]:
    with emulated_device("other", TARGET):
        yield


@pytest.mark.parametrize("name", NETWORKS)
def test_training_agrees_with_the_reference(name: str, emulated: None) -> None:
    ours, reference = session_of(name, "other"), session_of(name, "reference")
    for rows in (ROWS, 5, ROWS):
        losses = [float(session.step(**batch(name, rows))) for session in (ours, reference)]
        np.testing.assert_allclose(*losses, rtol=1e-5)
    for key, value in reference.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
    assert load(dump(ours.plan)) == ours.plan, "a file of the plan is sound"


def test_a_cost_model_is_part_of_the_target() -> None:
    """It changes the key under which plans are kept, and the plan."""
    changed = replace(TARGET, cost_model=replace(TARGET.cost_model, gemm=GemmCosts(full_gpu_blocks=4)))
    assert changed.key != TARGET.key
    with emulated_device("other", TARGET):
        first = session_of("mlp", "other").plan
    with emulated_device("other", replace(TARGET, cost_model=replace(TARGET.cost_model, gemm=SINGLE_BLOCKS))):
        second = session_of("mlp", "other").plan
    tiles = [{schedule_of(k).tile for k in plan.kernels} for plan in (first, second)]
    assert tiles[0] != tiles[1]


SINGLE_BLOCKS = GemmCosts(tiny_blocks=0, whole_depth=0)  # tiles of 32 x 32, however few


def test_tiles_and_registers_depend_on_the_number_of_multiprocessors() -> None:
    """Of GPUs that differ in nothing else: the tile of a convolution, and for how many blocks registers are limited."""
    large = TARGETS["cuda/sm_90"]
    few = replace(large, limits=replace(large.limits, threads=8))
    shapes = [Shape(5, 5, (1, 1), (1, 1), 6, 16, 14, 14, (2, 2)), Shape(3, 3, (1, 1), (1, 1), 16, 16, 32, 32, (1, 1))]
    assert [best_tile(s, 64, 4, large) for s in shapes] != [best_tile(s, 64, 4, few) for s in shapes]
    bounds = []
    for target in (TARGET, replace(TARGET, limits=replace(TARGET.limits, threads=10_000))):
        with emulated_device("other", target):
            bounds.append(session_of("mlp", "other").source.count("__launch_bounds__(256, 2)"))
    assert bounds[0] > bounds[1]
