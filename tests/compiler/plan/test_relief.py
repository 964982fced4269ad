"""Barriers that free bytes: a smaller arena, the same work, and bytes that change hands inside regions."""

from __future__ import annotations

from functools import cache

import pytest

import wholestep as ws
from tests.compiler.native import lower
from tests.compiler.ownership import violations
from tests.compiler.targets import make_plan
from tests.models.gpt2 import Config, gpt2
from wholestep.compiler.backends.cpu.cost_model import Settings
from wholestep.compiler.backends.cpu.kernel_schedule import schedule_of
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.plan.check.soundness import check_file as check
from wholestep.compiler.plan.model.kernel import Kind, Plan, Space
from wholestep.steps.train import train_graph

NEVER = 1 << 60


@cache
def step(layers: int) -> IRGraph:
    return lower(train_graph(gpt2(Config(layers, 32, 2, 17, 8)), ws.AdamW()))


@cache
def plan(worth: int, layers: int = 4, overwrite: bool = True) -> Plan:
    made = make_plan(step(layers), {"batch": 24}, settings=Settings(relief=worth, overwrite=overwrite))
    check(made)
    return made


def test_weight_gradients_run_between_the_layers_where_that_frees_bytes() -> None:
    late, early = plan(NEVER), plan(1 << 17)
    assert late.regions == 2
    all_bytes = sum(b.bytes for b in early.buffers if b.space is Space.ARENA)
    assert 3 <= early.regions <= 2 + all_bytes / (1 << 17)  # each barrier frees what it is worth
    assert early.arena_bytes < 0.8 * late.arena_bytes
    assert sorted(k.origin for k in early.kernels) == sorted(k.origin for k in late.kernels)
    assert (early.flops, early.bytes_moved) == (late.flops, late.bytes_moved)


def test_small_steps_have_no_barrier_more() -> None:
    assert plan(Settings.relief) == plan(NEVER)


@pytest.mark.parametrize("threads", [2, 3])
def test_every_byte_has_one_owner_between_barriers(threads: int) -> None:
    made = plan(1 << 15, layers=2)
    assert made.regions > 3
    for rows in (24, 9):
        assert violations(made, {"batch": rows}, threads) == []


def test_bytes_change_hands_inside_a_region_that_one_of_their_buffers_outlives() -> None:
    made = plan(NEVER)
    region = [schedule_of(k).region for k in made.kernels]
    arena = [b for b in made.buffers if b.space is Space.ARENA]
    handed = [
        (a, b)
        for a in arena
        for b in arena
        if a.offset == b.offset and a.last < b.first and region[a.last] == region[b.first] < region[b.last]
    ]
    assert handed
    assert violations(plan(NEVER, layers=2)) == []


def test_the_gradient_of_an_activation_is_written_over_its_derivative() -> None:
    """A product reads the derivative in its epilogue, element by element; what it stores has the same bytes."""
    made = plan(NEVER, layers=1)
    arena = [b for b in made.buffers if b.space is Space.ARENA and b.type.shape[-1] == 4 * 32]
    (pair,) = [(a, b) for a in arena for b in arena if a.last == b.first and a is not b]
    kernel = made.kernels[pair[0].last]
    assert kernel.kind is Kind.DOT
    assert pair[0].offset == pair[1].offset
    assert plan(NEVER, layers=1, overwrite=False).arena_bytes >= made.arena_bytes + pair[0].bytes
