"""Column sums in the kernel of a contraction or of another sum: fewer kernels and bytes, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.native import Loaded, lower
from tests.compiler.ownership import violations
from tests.compiler.step_graphs import clipped_step, mlp_step
from tests.compiler.targets import HERE, make_plan
from tests.support.oracles import assert_close
from wholestep.compiler.backends.cpu.kernel_schedule import schedule_of
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Kernel, Kind, Plan
from wholestep.steps.train import train_graph

Array = np.ndarray[Any, Any]
CAPACITY = {"batch": 40}


def normed_step(width: int = 70, hidden: int = 80) -> IRGraph:
    """A linear layer after a layer norm: two gradients of the norm, a weight's and a bias's."""
    g = ws.Graph()
    x, y = g.input("x", ("batch", 33)), g.input("y", ("batch", hidden))
    h = x @ g.parameter("w0", (33, width)) + g.parameter("b0", (width,))
    h = ws.layer_norm(h, g.parameter("gain", (width,), init=1.0), g.parameter("shift", (width,)), eps=1e-5)
    h = h @ g.parameter("w1", (width, hidden)) + g.parameter("b1", (hidden,))
    g.set_outputs({"loss": ((h - y) ** 2).mean()})
    return lower(train_graph(g, ws.AdamW(lr=1e-2)))


STEPS: dict[str, Callable[[], IRGraph]] = {
    "bias": lambda: mlp_step(36, 72, 10),
    "several layers": lambda: mlp_step(20, 100, 64, 65, 5, optimizer=ws.SGD(lr=0.1, momentum=0.9)),
    "norm": normed_step,
    "gradients kept for clipping": lambda: clipped_step(36, 72, 10),
}


def apart(graph: IRGraph) -> Plan:
    """The plan in which every column sum has a kernel of its own."""
    fusion = replace(HERE.fusion, sums_in_dots=False, most_sums=1)
    return make_plan(graph, CAPACITY, target=replace(HERE, fusion=fusion))


def with_sums(plan: Plan) -> list[Kernel]:
    return [k for k in plan.kernels if k.kind is Kind.DOT and len(k.levels) > 1]


def values(graph: IRGraph, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs and states, away from their start so that every term counts."""
    rng = np.random.default_rng(5)
    inputs = {}
    for node in graph.inputs:
        shape = [evaluate(e, {"batch": rows}) for e in node.type.shape]
        is_float = node.type.dtype.is_float
        inputs[node.attrs.name] = (  # type: ignore[attr-defined]
            rng.normal(size=shape).astype(np.float32) if is_float else rng.integers(0, 3, shape).astype(np.int32)
        )
    states = {n: rng.uniform(0.1, 1.0, s.type.shape).astype(np.float32) for n, s in graph.states().items()}
    return inputs, states


@pytest.mark.parametrize("name", STEPS)
def test_the_same_bits_together_and_apart(name: str) -> None:
    graph = STEPS[name]()
    together, alone = make_plan(graph, CAPACITY), apart(graph)
    assert len(together.kernels) < len(alone.kernels)
    assert together.bytes_moved < alone.bytes_moved
    assert together.flops == alone.flops
    loaded, reference = Loaded(together), Loaded(alone)
    for rows, threads in ((40, 1), (40, 3), (13, 2)):
        inputs, states = values(graph, rows)
        expected = reference.run(inputs, states, {"batch": rows}, threads=1)
        ran = loaded.run(inputs, states, {"batch": rows}, threads=threads)
        for key, value in (expected.outputs | expected.state).items():
            np.testing.assert_array_equal((ran.outputs | ran.state)[key], value, err_msg=key)
        true = interpret(graph, inputs=inputs, state=states, sizes={"batch": rows})
        for key, value in true.state.items():
            assert_close(ran.state[key], value)


@pytest.mark.parametrize("name", STEPS)
def test_no_thread_touches_what_another_writes(name: str) -> None:
    plan = make_plan(STEPS[name](), CAPACITY)
    for rows, threads in ((40, 2), (13, 3), (1, 7)):
        assert violations(plan, {"batch": rows}, threads) == []


def test_the_columns_of_a_wide_product_are_dealt_out() -> None:
    """A sum belongs to whoever owns its column: no other axis of such a kernel can be split."""
    plan = make_plan(mlp_step(36, 72, 10), CAPACITY)
    (kernel,) = with_sums(plan)
    assert isinstance(kernel.body, Dot)
    assert (schedule_of(kernel).split, kernel.axes[kernel.body.n]) == (kernel.body.n, 72)


def test_narrow_products_keep_to_themselves() -> None:
    """Ten columns are one granule: dealt out by columns, one thread would do all the work."""
    assert with_sums(make_plan(mlp_step(36, 40, 10), CAPACITY)) == []


def test_the_gradients_of_a_norm_share_one_loop() -> None:
    sums = [k for k in make_plan(normed_step(), CAPACITY).kernels if k.kind is Kind.COLUMNS]
    assert [len(k.levels[0].reduces) for k in sums] == [2]


def test_a_loop_has_room_for_a_few_sums() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 24))
    g.set_outputs({f"s{i}": ws.sin(x * float(i + 2)).sum(0) for i in range(HERE.fusion.most_sums + 3)})
    plan = make_plan(lower(g.to_ir()), CAPACITY)
    assert [len(k.levels[0].reduces) for k in plan.kernels] == [HERE.fusion.most_sums, 3]


def test_a_sum_that_needs_another_does_not_join_it() -> None:
    """The second sum adds what the first one made of the same columns."""
    g = ws.Graph()
    x = g.input("x", ("batch", 24))
    total = x.sum(0)
    g.set_outputs({"total": total, "centred": (x * total).sum(0)})
    graph = lower(g.to_ir())
    plan = make_plan(graph, CAPACITY)
    assert len(plan.kernels) == 2
    inputs, _ = values(graph, 40)
    expected = interpret(graph, inputs=inputs, state={}, sizes=CAPACITY)
    ran = Loaded(plan).run(inputs, {}, CAPACITY)
    for key, value in expected.outputs.items():
        assert_close(ran.outputs[key], value)


def test_a_state_is_not_overwritten_while_another_sum_reads_it() -> None:
    """Both sums read x; the second also reads the state that the first one updates."""
    g = ws.Graph()
    x, w = g.input("x", ("batch", 24)), g.parameter("w", (24,), init=1.0)
    g.update(w, x.sum(0))
    g.set_outputs({"seen": (x * w).sum(0)})
    graph = lower(g.to_ir())
    plan = make_plan(graph, CAPACITY)
    inputs, states = values(graph, 40)
    expected = interpret(graph, inputs=inputs, state=states, sizes=CAPACITY)
    ran = Loaded(plan).run(inputs, states, CAPACITY, threads=2)
    assert_close(ran.outputs["seen"], expected.outputs["seen"])
    assert_close(ran.state["w"], expected.state["w"])
    assert len(plan.kernels) == 2
