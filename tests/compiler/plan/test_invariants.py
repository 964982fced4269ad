"""What holds of every plan: memory, order, counts, determinism."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wholestep as ws
from tests.compiler.ir.random_graphs import graphs
from tests.compiler.native import lower
from tests.compiler.ownership import Walk
from tests.compiler.step_graphs import clipped_step, mlp_step
from tests.compiler.targets import make_plan
from wholestep.compiler.backends.cpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.cpu.layout.operand_layout import CpuOperands
from wholestep.compiler.backends.cpu.partition.threads import ThreadPartitioner
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.types import Dim, TensorType, evaluate, float32, int32
from wholestep.compiler.plan.check.soundness import check_file as check
from wholestep.compiler.plan.io.serialize import dump
from wholestep.compiler.plan.io.traffic import loads, stores
from wholestep.compiler.plan.lower.materialize import materialize_copies
from wholestep.compiler.plan.lower.routine_ops import Assembled, assemble, is_call
from wholestep.compiler.plan.model.bodies import Call, Dot, Scatter, Window
from wholestep.compiler.plan.model.kernel import Kernel, Kind, Load, Plan, Space
from wholestep.errors import GraphError

CAPACITY = {"batch": 20, "time": 5}
GRAPHS = graphs(max_nodes=16)


def touched(kernel: Kernel) -> Iterator[tuple[int, bool]]:
    """(buffer, is it written) of every load and store."""
    body = kernel.body
    for level in kernel.levels:
        yield from ((i.load.buffer, False) for i in (*level.row, *level.body) if i.load)
        yield from ((s.load.buffer, True) for s in (*level.row_stores, *level.stores))
    if isinstance(body, Dot):
        yield from ((load.buffer, False) for load in (body.a, body.b))
    if isinstance(body, Scatter):
        yield from ((load.buffer, False) for load in (body.updates, body.index))
        yield body.target.buffer, True
    if isinstance(body, Call | Window):
        yield from ((o.load.buffer, False) for o in body.operands)
        yield from ((o.load.buffer, True) for o in body.results)


# -- memory and order ------------------------------------------------------------------------------------------------


def written_over(kernel: Kernel, old: int, new: int) -> bool:
    """Is each old element read where the new one is stored, and nowhere else, before that?"""
    (store,) = (x for x in stores(kernel) if x.buffer == new)
    read = [x for x in loads(kernel) if x.buffer == old]
    level = next(n for n, at in enumerate(kernel.levels) if any(s.load == store for s in at.stores))
    bodies = [i.load for at in kernel.levels[: level + 1] for i in at.body if i.load in read]
    return len(bodies) == len(read) and all((x.shape, x.index) == (store.shape, store.index) for x in read)


@settings(max_examples=60)
@given(GRAPHS, st.booleans())
def test_live_buffers_never_overlap(graph: IRGraph, fused: bool) -> None:
    plan = make_plan(lower(graph, egraph=False), CAPACITY, fused=fused)
    check(plan)
    touching: dict[int, list[Kernel]] = {}
    for k in plan.kernels:
        for b, _ in touched(k):
            touching.setdefault(b, []).append(k)
    arena = [b for b in plan.buffers if b.space is Space.ARENA and b.id in touching]
    for a, b in combinations(arena, 2):
        if a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset:
            continue
        before, after = sorted((touching[a.id], touching[b.id]), key=lambda kernels: kernels[0].id)
        if before[-1] is after[0]:
            assert written_over(after[0], *((a.id, b.id) if before is touching[a.id] else (b.id, a.id)))
        else:
            assert before[-1].id < after[0].id, f"buffers {a.id} and {b.id}"
        if (
            schedule_of(before[-1]).region == schedule_of(after[0]).region
        ):  # the same bytes, owner by owner: ownership.py checks who touches them
            assert (a.offset, a.bytes) == (b.offset, b.bytes)
    for b in arena:
        assert b.offset % 64 == 0
        assert b.offset + b.bytes <= plan.arena_bytes


@settings(max_examples=60)
@given(GRAPHS, st.booleans())
def test_reads_follow_writes_and_splits_are_legal(graph: IRGraph, fused: bool) -> None:
    plan = make_plan(lower(graph, egraph=False), CAPACITY, fused=fused)
    written: set[int] = set()
    for k in plan.kernels:
        own = {b for b, write in touched(k) if write}
        for b, write in touched(k):
            computed = plan.buffers[b].space in (Space.ARENA, Space.OUTPUT)
            assert write or not computed or b in written or b in own, f"kernel {k.id} reads buffer {b} too early"
        written |= own
        split = schedule_of(k).split
        summed = {getattr(k.body, "reduced", None), getattr(k.body, "k", None), *getattr(k.body, "over", ())} - {None}
        assert split not in summed, f"kernel {k.id} is split along an axis that it sums over"
        if k.kind is Kind.NEST and any(level.reduces for level in k.levels):
            assert split is None or split != k.vector
    assert [k.id for k in plan.kernels] == list(range(len(plan.kernels)))
    regions = [schedule_of(k).region for k in plan.kernels]
    assert regions == sorted(regions)


def test_the_arena_is_reused_across_regions() -> None:
    plan = make_plan(mlp_step(64, 96, 96, 96, 96, 10), {"batch": 32})
    assert plan.arena_bytes < sum(b.bytes for b in plan.buffers if b.space is Space.ARENA)


def test_a_missing_capacity_is_an_error() -> None:
    with pytest.raises(GraphError, match=r"the dimension 'batch' has no capacity; pass capacity=\{'batch': 32\}"):
        make_plan(mlp_step(4, 8, 2), {})


def test_a_dimension_that_the_capacity_does_not_bound_is_an_error() -> None:
    """batch - time has 10 elements at the capacity and 19 at batch=20, time=1."""
    rest = Dim.symbol("batch") - Dim.symbol("time")
    y = Node("input", (), at.InputAttrs("y", TensorType((rest,), float32)))
    with pytest.raises(GraphError, match=r"grows when a symbol shrinks.*Give the difference a symbol of its own"):
        make_plan(IRGraph((Output("out", Node("sin", (y,), at.NONE)),), (), (y,)), {"batch": 20, "time": 10})


# -- counts ----------------------------------------------------------------------------------------------------------


def arithmetic(node: Node) -> int:
    """Operations of a node that is computed on its own, by its definition."""
    family, sizes = OPS[node.op].family, CAPACITY
    elements = evaluate(node.type.elements, sizes)
    if node.op == "matmul":
        depth = node.inputs[0].type.shape[-2 if node.attrs.transpose_a else -1]  # type: ignore[attr-defined]
        return 2 * elements * evaluate(depth, sizes)
    if family is Family.REDUCE or node.op == "scatter_add":
        return evaluate(node.inputs[0].type.elements, sizes)
    computes = family in (Family.POINTWISE, Family.COMPOSITE) and node.op != "cast"
    return elements if computes and not node.host else 0


@settings(max_examples=60)
@given(GRAPHS)
def test_flops_are_those_of_the_graph(graph: IRGraph) -> None:
    lowered = lower(graph, egraph=False)
    if any(n.op == "random" for n in lowered.nodes):  # drawn again by each reader
        return
    plan = make_plan(lowered, CAPACITY, fused=False)
    routines = sum(k.flops for k in plan.kernels if k.kind is Kind.CALL)  # counted by hand in test_attention.py
    routines += sum(k.body.work for k in plan.kernels if k.kind is Kind.WINDOW)  # by the formula of their op
    prepared = materialize_copies(assemble(lowered), CpuOperands())
    counted = [n for n in prepared.nodes if not (is_call(n) or isinstance(n, Assembled))]
    assert plan.flops - routines == sum(arithmetic(n) for n in counted)


def is_lookup(load: Load) -> bool:
    return any(i.value is not None for i in load.index)


def enumerated_bytes(plan: Plan, kernel: Kernel) -> tuple[int, bool]:
    """Bytes of the distinct elements read plus those written, and whether no buffer is accessed in two ways."""
    events = Walk(plan, kernel, plan.sizes, [range(evaluate(e, plan.sizes)) for e in kernel.axes]).events
    cells: dict[tuple[int, bool], list[np.ndarray]] = {}
    for e in events:
        if plan.buffers[e.buffer].space is not Space.WORK:
            cells.setdefault((e.buffer, e.write), []).append(e.cells)
    size = {b.id: b.type.dtype.size for b in plan.buffers}
    picked = {
        i.load.buffer: i.load
        for level in kernel.levels
        for i in (*level.row, *level.body)
        if i.load and is_lookup(i.load)
    }
    total = 0
    for (b, write), parts in cells.items():
        count = len(np.unique(np.concatenate(parts)))
        if b in picked and not write:  # any row of the table may be touched, but no more of them than there are indices
            ((rows, load),) = (
                (evaluate(e, plan.sizes), picked[b])
                for i, e in zip(picked[b].index, picked[b].shape, strict=True)
                if i.value is not None
            )
            elsewhere = {a for i in load.index for a, _ in i.terms}
            indices = prod(evaluate(e, plan.sizes) for a, e in enumerate(kernel.axes) if a not in elsewhere)
            count = count // max(1, rows) * min(rows, indices)
        total += count * size[b]
    return total, all(len(parts) == 1 for parts in cells.values())


@settings(max_examples=60)
@given(GRAPHS, st.booleans())
def test_bytes_are_those_of_the_elements_touched(graph: IRGraph, fused: bool) -> None:
    plan = make_plan(lower(graph, egraph=False), CAPACITY, fused=fused)
    for k in plan.kernels:
        expected, exact = enumerated_bytes(plan, k)
        assert type(k.bytes) is int
        assert type(k.flops) is int
        assert k.bytes == expected if exact else k.bytes >= expected, f"kernel {k.id}"


def test_a_lookup_reads_the_rows_that_it_has_indices_for() -> None:
    table = Node(
        "state", (), at.StateAttrs("table", TensorType((1000, 16), float32), at.Initializer("constant", (0.0,)))
    )
    index = Node("input", (), at.InputAttrs("i", TensorType((5,), int32)))
    plan = make_plan(IRGraph((Output("rows", Node("gather", (table, index), at.GatherAttrs(0))),), inputs=(index,)), {})
    assert [k.bytes for k in plan.kernels] == [5 * 4 + 2 * 5 * 16 * 4]


@pytest.mark.parametrize("batch", [32, 128])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_the_benchmark_step_by_hand(name: str, batch: int) -> None:
    """784-128-10: eight kernels, three regions, as many operations and bytes as a person counts."""
    B, D, H, C, float_ = batch, 784, 128, 10, 4
    optimizer, per_weight, states = {"sgd": (ws.SGD(lr=0.01), 2, 1), "adam": (ws.Adam(lr=1e-3), 13, 3)}[name]
    weights = D * H + H * C + H + C
    flops = sum(
        (
            2 * B * D * H + 2 * B * H,  # hidden layer; bias and relu
            2 * B * H * C + B * C,  # logits and bias
            (1 + 3 + 9) * B * C + 2 * B,  # maximum; exponentials; losses and their gradient
            B + 1,  # the mean
            2 * B * C * H + 2 * B * H,  # gradient of the hidden layer; comparison and selection
            2 * B * D * H + 2 * B * H * C + B * H + B * C,  # gradients of weights and biases
            weights * per_weight,
        )
    )
    moved = float_ * sum(
        (
            B * D + D * H + H + B * H,
            B * H + H * C + C + B * C,
            B * C + B + B * C + B,  # logits, labels; their gradient, the losses
            B + 1,
            B * C + H * C + B * H + B * H,
            B * D + B * H,  # operands of the first weight's gradient, whose kernel sums the columns of the second one
            B * H + B * C + B * C,  # of the second weight's and its bias's
            weights * states * 2 + H * C,  # read and written; the stored transpose of the second weight
        )
    )
    plan = make_plan(mlp_step(D, H, C, optimizer=optimizer), {"batch": B})
    assert (len(plan.kernels), plan.regions) == (8, 3)
    assert plan.bytes_moved == moved
    assert plan.flops == flops
    assert plan.copy_bytes == H * C * float_  # 128 is a multiple of 16: no padding


# -- determinism -----------------------------------------------------------------------------------------------------

PRINT_PLANS = """
import hashlib
from tests.compiler.step_graphs import clipped_step, mlp_step
from tests.compiler.targets import make_plan
from wholestep.compiler.plan.io.serialize import dump
for graph in (mlp_step(20, 24, 5), clipped_step(20, 24, 17, 5)):
    print(hashlib.sha256(dump(make_plan(graph, {"batch": 16}))).hexdigest())
"""


def test_a_plan_is_the_same_in_every_process() -> None:
    root = str(Path(__file__).resolve().parents[3])
    expected = [
        hashlib.sha256(dump(make_plan(g, {"batch": 16}))).hexdigest()
        for g in (mlp_step(20, 24, 5), clipped_step(20, 24, 17, 5))
    ]
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
        done = subprocess.run([sys.executable, "-c", PRINT_PLANS], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == expected


@settings(max_examples=30)
@given(GRAPHS, st.booleans())
def test_a_plan_is_the_same_every_time(graph: IRGraph, fused: bool) -> None:
    once, again = (make_plan(lower(graph, egraph=False), CAPACITY, fused=fused) for _ in range(2))
    assert once == again


# -- effort ----------------------------------------------------------------------------------------------------------


def test_the_search_stays_in_proportion_to_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that went one way only took a sweep per layer: 52 s for 80 layers."""
    tried = []
    original = ThreadPartitioner.regions_after
    monkeypatch.setattr(
        ThreadPartitioner, "regions_after", lambda self, i, *rest: tried.append(i) or original(self, i, *rest)
    )
    kernels = {depth: len(make_plan(mlp_step(*[32] * depth, 10), CAPACITY).kernels) for depth in (12, 48)}
    assert len(tried) < 12 * sum(kernels.values())
