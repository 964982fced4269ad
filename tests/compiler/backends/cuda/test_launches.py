"""Kernels that share a launch: which ones, that they may, and that no bit depends on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sessions import data, mlp

import wholestep as ws
from tests.compiler.backends.cuda.emulated import Emulated
from wholestep.compiler.backends.cuda import sharing
from wholestep.compiler.backends.cuda.render.source import render
from wholestep.compiler.backends.cuda.schedule import arena_end, scheduled_kernels
from wholestep.compiler.backends.cuda.scheduled import schedule_of
from wholestep.compiler.backends.host import Memory, prologue
from wholestep.compiler.plan import serialize
from wholestep.compiler.plan.kernel import Plan, Schedule, Space
from wholestep.errors import PlanError

PLAIN = ws.CompileOptions(verify=False, egraph=False)


def planned(graph: ws.Graph, rows: int = 8) -> Plan:
    session = ws.build_session(
        graph, optimizer=ws.Adam(lr=1e-2), batch_size=rows, device="null:cuda/sm_90", options=PLAIN
    )
    return session.plan


def alone(plan: Plan) -> Plan:
    """The same kernels, a launch each."""
    bare = replace(plan, kernels=tuple(replace(k, schedule=Schedule()) for k in plan.kernels))
    own = [[[k]] for k in scheduled_kernels(bare)]
    kernels = scheduled_kernels(replace(plan, kernels=sharing.renumbered(own)))
    scratch = max((schedule_of(k).scratch_at + schedule_of(k).scratch for k in kernels), default=0)
    return replace(plan, kernels=kernels, arena_bytes=arena_end(plan) + scratch)


def stepped(plan: Plan, orders: tuple[int, int]) -> dict[int, np.ndarray]:
    """All states and outputs after one step over arrays that are the same each time."""
    rng = np.random.default_rng(0)
    arrays = {}
    for b in plan.buffers:
        shape = [e if isinstance(e, int) else e.evaluate(plan.sizes) for e in b.type.shape] if b.type.shape else []
        arrays[b.id] = np.zeros(shape, b.type.dtype.numpy)
        if b.space is Space.STATE:
            arrays[b.id][...] = np.abs(rng.standard_normal(shape)) * 0.1
    given = data(plan.sizes["batch"])
    for name, id in plan.inputs:
        arrays[id][...] = given[name]
    slots = prologue(plan, plan.sizes, [1.0 if s.name == "step" else s.default for s in plan.scalars])
    Emulated(plan).run(Memory(plan, arrays, plan.sizes, slots, 1, 1), *orders)
    return {b.id: arrays[b.id] for b in plan.buffers if b.space in (Space.STATE, Space.OUTPUT)}


def test_a_step_has_fewer_launches_than_kernels_and_the_same_bits() -> None:
    plan = planned(mlp())
    launches = list(sharing.by_launch(plan.kernels))
    assert len(launches) == plan.regions < len(plan.kernels)
    last = launches[-1]
    written = {plan.buffers[load.buffer].name for k in last for load in k.body.stores()}
    assert {"w1", "b1", "w2", "b2", "loss"} <= written, "all updates and the loss are one launch"
    found = stepped(plan, (0, 0))
    for orders in ((1, 1), (2, 0)):
        for id, value in stepped(plan, orders).items():
            np.testing.assert_array_equal(value, found[id])
    for id, value in stepped(alone(plan), (0, 0)).items():
        np.testing.assert_array_equal(value, found[id], err_msg=plan.buffers[id].name)


def test_kernels_that_wait_for_each_other_cannot_share_a_launch() -> None:
    plan = planned(mlp())
    serialize.load(serialize.dump(plan))
    joined = tuple(replace(k, schedule=replace(schedule_of(k), launch=0)) for k in plan.kernels)
    with pytest.raises(PlanError, match="cannot share a launch"):
        sharing.check_launches(replace(plan, kernels=joined))
    swapped = (plan.kernels[-1], *plan.kernels[1:-1], plan.kernels[0])
    with pytest.raises(PlanError, match="not in order"):
        sharing.check_launches(replace(plan, kernels=swapped))


def test_equal_kernels_of_a_launch_are_one_function() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 6))
    weights = [g.parameter(f"w{i}", (6, 6)) for i in range(3)]
    g.set_outputs({"loss": sum(((x @ w) ** 2).mean() for w in weights)})
    plan = planned(g)
    source = render(plan)
    shared = [launch for launch in source.launches if launch.shares]
    functions = [
        sum(f" {launch.function}_{i}(const" in source.text for i in range(len(launch.kernels))) for launch in shared
    ]
    assert any(count < len(launch.kernels) for count, launch in zip(functions, shared, strict=True)), functions
    assert min(functions) > 0
