"""Kernels that share a launch: which ones, that they may, and that no bit depends on it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import Emulated, emulated_device
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.models import MODELS, session_of
from tests.compiler.backends.cuda.emulation.targets import set_costs
from tests.support.sessions import data, mlp
from wholestep.compiler.backends.common.numpy_program import LaunchMemory, prologue
from wholestep.compiler.backends.cuda.runtime.program import CudaProgram
from wholestep.compiler.backends.gpu.arena import place_scratch
from wholestep.compiler.backends.gpu.cost_model import GemmCosts
from wholestep.compiler.backends.gpu.fusion import horizontal
from wholestep.compiler.backends.gpu.fusion.horizontal import reads_and_writes
from wholestep.compiler.backends.gpu.fusion.launches import by_launch, check_launches, renumber_by_launch
from wholestep.compiler.backends.gpu.grids.choose import choose_grid
from wholestep.compiler.backends.gpu.kernel_schedule import Form, schedule_of
from wholestep.compiler.backends.gpu.render.source import render
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.model.kernel import Plan, Schedule, Space
from wholestep.errors import PlanError

GOLDEN = Path(__file__).parents[3] / "golden" / "cuda_launches.json"
PLAIN = ws.CompileOptions(verify=False, egraph=False)
ANEW = ws.CompileOptions(verify=False, egraph=False, cache=False)


def planned(graph: ws.Graph, rows: int = 8) -> Plan:
    session = ws.build_session(
        graph, optimizer=ws.Adam(lr=1e-2), batch_size=rows, device="null:cuda/sm_90", options=PLAIN
    )
    return session.plan


def alone(plan: Plan) -> Plan:
    """The same kernels, a launch each."""
    bare = replace(plan, kernels=tuple(replace(k, schedule=Schedule()) for k in plan.kernels))
    own = [[[replace(k, schedule=choose_grid(bare, k))]] for k in bare.kernels]
    return place_scratch(replace(plan, kernels=renumber_by_launch(bare, own)))


def stepped(plan: Plan, orders: tuple[int, int], given: dict[str, np.ndarray] | None = None) -> dict[int, np.ndarray]:
    """All states and outputs after one step over arrays that are the same each time."""
    rng = np.random.default_rng(0)
    arrays = {}
    for b in plan.buffers:
        shape = [e if isinstance(e, int) else e.evaluate(plan.sizes) for e in b.type.shape] if b.type.shape else []
        arrays[b.id] = np.zeros(shape, b.type.dtype.numpy)
        if b.space is Space.STATE:
            arrays[b.id][...] = np.abs(rng.standard_normal(shape)) * 0.1
    given = given or data(plan.sizes["batch"])
    for name, id in plan.inputs:
        arrays[id][...] = given[name]
    slots = prologue(plan, plan.sizes, [1.0 if s.name == "step" else s.default for s in plan.scalars])
    Emulated(plan).run(LaunchMemory(plan, arrays, plan.sizes, slots, 1, 1), *orders)
    return {b.id: arrays[b.id] for b in plan.buffers if b.space in (Space.STATE, Space.OUTPUT)}


def test_a_step_has_fewer_launches_than_kernels_and_the_same_bits() -> None:
    plan = planned(mlp())
    launches = list(by_launch(plan.kernels))
    assert len(launches) == plan.regions < len(plan.kernels)
    assert f"{len(plan.kernels)} kernels in {plan.regions} launches: " in plan.notes[-1]
    assert "run one after the other in the same blocks, one row per block" in plan.notes[-1]
    last = launches[-1]
    written = {plan.buffers[load.buffer].name for k in last for load in k.body.stores()}
    assert {"w1", "b1", "w2", "b2", "loss"} <= written, "all updates and the loss are one launch"
    found = stepped(plan, (0, 0))
    for orders in ((1, 1), (2, 0)):
        for id, value in stepped(plan, orders).items():
            np.testing.assert_array_equal(value, found[id])
    for id, value in stepped(alone(plan), (0, 0)).items():
        np.testing.assert_array_equal(value, found[id], err_msg=plan.buffers[id].name)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_launches_of_a_long_step_stand_in_line(
    precision: str, gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step and in epochs, to the bits of one whose launches wait for what they need alone."""
    rows, states = MODELS["gpt"][1](7), []
    for few in (1000, 1):
        set_costs(monkeypatch, "run", branched_launches=few)
        session = session_of("gpt", "cuda", precision=precision)
        for count in (3, 2):
            session.step(**{name: array[:count] for name, array in rows.items()})
        assert gpu is None or is_line(gpu) == (few == 1)
        session.run(**rows, epochs=2)
        assert gpu is None or few > 1 or is_line(gpu)
        states.append({name: session.get(name).tobytes() for name in session.state.names})
    assert states[0] == states[1]


def is_line(gpu: FakeDriver) -> bool:
    """Does each node of the longest graph since the last call wait for the one before it alone?"""
    waits = max(gpu.waits, key=len)
    gpu.waits.clear()
    return waits == [(i - 1,) if i else () for i in range(len(waits))]


def test_kernels_that_wait_for_each_other_cannot_share_a_launch() -> None:
    plan = planned(mlp())
    serialize.load(serialize.dump(plan))
    joined = tuple(replace(k, schedule=replace(schedule_of(k), launch=0)) for k in plan.kernels)
    with pytest.raises(PlanError, match="cannot share a launch"):
        check_launches(replace(plan, kernels=joined))
    swapped = (plan.kernels[-1], *plan.kernels[1:-1], plan.kernels[0])
    with pytest.raises(PlanError, match="out of order"):
        check_launches(replace(plan, kernels=swapped))


def test_gradients_of_weights_of_a_middle_size_share_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone has too few tiles for a GPU; together they have the same bits."""
    set_costs(monkeypatch, "gemm", medium_flops=1, fewest_medium_blocks=1)
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 36)), g.input("labels", ("batch",), "int32")
    hidden = ws.relu(x @ g.parameter("w1", (36, 40)))
    logits = hidden @ g.parameter("w2", (40, 32))
    g.set_outputs({"loss": ws.losses.cross_entropy(logits, labels)})
    plan = planned(g, 40)
    updates = [k for k in plan.kernels if schedule_of(k).form == Form.MEDIUM and horizontal.is_late_product(plan, k)]
    assert len(updates) == 2
    assert len({schedule_of(k).launch for k in updates}) == 1
    given = {"x": np.random.default_rng(1).standard_normal((40, 36)), "labels": np.arange(40) % 32}
    found = stepped(plan, (0, 0), given)
    for other in (stepped(alone(plan), (0, 0), given), stepped(plan, (1, 1), given)):
        for id, value in other.items():
            np.testing.assert_array_equal(value, found[id], err_msg=plan.buffers[id].name)


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


def test_the_rows_of_the_next_step_are_gathered_in_a_launch_of_this_one(
    gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps have the same bits, however many a graph has, and whoever gathers their rows."""
    rows = data(43)

    def trained() -> tuple[np.ndarray, dict[str, np.ndarray]]:
        session = ws.build_session(
            mlp(), optimizer=ws.Adam(lr=1e-2), batch_size=8, device="cuda", options=PLAIN, seed=3
        )
        losses = np.asarray(session.run(rows, epochs=2)).ravel()
        return losses, {name: session.get(name) for name in session.state.names}

    found, states = trained()
    with monkeypatch.context() as patch:
        set_costs(patch, "run", graph_steps=1)
        others = [trained()]
    with monkeypatch.context() as patch:
        patch.setattr(CudaProgram, "gather_launch", lambda self, blocks: None)
        others.append(trained())
    for losses, values in others:
        np.testing.assert_array_equal(losses, found)
        for name, value in values.items():
            np.testing.assert_array_equal(value, states[name], err_msg=name)


NETWORKS = {
    "mlp 784-128-10": (
        lambda: ws.nn.Sequential(ws.nn.Linear(784, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10)),
        (784,),
        32,
    ),
    "lenet5": (ws.models.lenet5, (1, 28, 28), 64),
    "gpt 4x128": (lambda: ws.models.gpt2(layers=4, width=128, heads=4, vocabulary=65, context=64), (64,), 16),
}


def test_launches_of_small_networks_are_known(request: pytest.FixtureRequest) -> None:
    """Plan integers: how many kernels a step has, and how many launches; fewer are better."""
    found = {}
    for name, (network, shape, batch) in NETWORKS.items():
        g = ws.Graph()
        tokens = len(shape) == 1 and shape[0] < 784
        x = g.input("x", ("batch", *shape), "int32" if tokens else "float32")
        labels = g.input("labels", ("batch", *(shape if tokens else ())), "int32")
        made = network()(x)
        g.set_outputs({"loss": ws.losses.cross_entropy(made[0] if isinstance(made, tuple) else made, labels)})
        plan = planned(g, batch)
        found[name] = {"kernels": len(plan.kernels), "launches": plan.regions}
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(json.dumps(found, indent=2) + "\n")
    assert found == json.loads(GOLDEN.read_text()), "if that is intended: --update-golden"


@pytest.mark.parametrize(
    ("batch", "inner", "outer", "turned"), [(20, 292, 64, False), (9, 290, 66, False), (20, 292, 66, True)]
)
def test_products_that_copy_ahead_are_as_exact_as_others(
    batch: int, inner: int, outer: int, turned: bool, gpu: FakeDriver | None
) -> None:
    """Sizes that are whole fours and that are not; weights either way; tiles behind the end of a smaller batch."""

    def build(device: str) -> ws.Session:
        g = ws.Graph()
        x = g.input("x", ("batch", inner))
        w, b = g.parameter("w", (outer, inner) if turned else (inner, outer)), g.parameter("b", (outer,))
        g.set_outputs({"loss": ((x @ (w.T if turned else w) + b) ** 2).mean()})
        return ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=batch, device=device, options=PLAIN, seed=1)

    ours, other = build("cuda"), build("reference")
    assert set(GemmCosts().whole_tiles) & {schedule_of(k).tile for k in ours.plan.kernels}
    x = np.random.default_rng(0).standard_normal((batch, inner)).astype(np.float32)
    for rows in (batch, batch - 3):
        assert float(ours.step(x=x[:rows])) == pytest.approx(float(other.step(x=x[:rows])), rel=1e-5)
    for name in other.state.names:
        np.testing.assert_allclose(ours.get(name), other.get(name), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["lenet", "gpt"])
def test_large_plans_share_scratch_memory_and_update_more_often(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one launch lie apart; gradients of the last layers are gone before those of the first ones come."""
    plain = session_of(name, "null:cuda/sm_90").plan
    set_costs(monkeypatch, "memory", large_arena=0)
    once = session_of(name, "null:cuda/sm_90", options=ANEW).plan
    set_costs(monkeypatch, "memory", update_gain=1.0)
    with emulated_device():
        session, batch = session_of(name, "emulated", options=ANEW), MODELS[name][1](3)
        reference = session_of(name, "reference")
        for _ in range(3):
            losses = [float(s.step(**batch).loss) for s in (session, reference)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    plan = session.plan
    check_launches(plan)
    assert plan.arena_bytes <= once.arena_bytes
    updated = {b.id for b in plan.buffers if b.space is Space.STATE}

    def updates(plan: Plan) -> set[int]:
        """Launches that write states."""
        return {schedule_of(k).launch for k in plan.kernels if updated & reads_and_writes(k)[1]}

    assert len(updates(plan)) > len(updates(once))
    assert scratch_end(plan) <= scratch_end(plain)
    for launch in by_launch(plan.kernels):
        used = sorted((s.scratch_at, s.scratch_at + s.scratch) for s in map(schedule_of, launch) if s.scratch)
        assert all(end <= start for (_, end), (start, _) in pairwise(used))


def test_launches_of_large_plans_use_the_same_scratch_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of two long products lie side by side in a small plan, in one place in a large one; results are equal."""

    def plan() -> Plan:
        g = ws.Graph()
        made = []
        for name in ("a", "b"):
            x = g.input(name, ("batch", 2000))
            made.append(ws.tanh(x @ g.parameter(f"w{name}", (2000, 16))).mean())
        g.set_outputs({"loss": made[0] + made[1]})
        where = {"device": "null:cuda/sm_90", "options": ANEW}
        return ws.build_session(g, optimizer=ws.SGD(lr=1e-2), batch_size=8, **where).plan

    given = {n: np.random.default_rng(i).standard_normal((8, 2000)).astype(np.float32) for i, n in enumerate("ab")}
    small = plan()
    set_costs(monkeypatch, "memory", large_arena=0)
    large = plan()
    assert 0 < scratch_end(large) < scratch_end(small)
    found, other = (stepped(p, (0, 0), given) for p in (small, large))
    names = [{b.name: b.id for b in p.buffers if b.space is Space.STATE} for p in (small, large)]
    assert names[0].keys() == names[1].keys()
    for name, id in names[0].items():
        np.testing.assert_allclose(found[id], other[names[1][name]], rtol=1e-6, err_msg=name)


def scratch_end(plan: Plan) -> int:
    return max(schedule_of(k).scratch_at + schedule_of(k).scratch for k in plan.kernels)
