"""States that are stored as their transposes: the rewritten graph has the same meaning, and moves nothing for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.ir.random_graphs import example_values, graphs
from tests.compiler.native import lower
from tests.compiler.targets import make_plan
from wholestep.compiler.backends.cpu.layout import transposed_weights
from wholestep.compiler.backends.cpu.layout.stored_layout import is_stored_transposed
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update, rewrite
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import TensorType, float32
from wholestep.compiler.ir.verify import verify
from wholestep.compiler.plan.check.soundness import check_file
from wholestep.compiler.plan.model.kernel import Space
from wholestep.errors import PlanError

SIZES = {"batch": 5, "time": 3}
ZEROS = at.Initializer("constant", (0.0,))


def by_columns(graph: IRGraph) -> IRGraph:
    """The graph with every matrix among its states declared so."""

    def declared(node: Node) -> Node:
        if not isinstance(node.attrs, at.StateAttrs) or node.type.rank != 2:
            return node
        return Node(node.op, (), replace(node.attrs, by_columns=True), node.name, node.line)

    return rewrite(graph, declared)


@settings(max_examples=30)
@given(graphs(max_nodes=20), st.integers(0, 2**31))
def test_a_graph_with_transposed_weights_computes_the_same(graph: IRGraph, seed: int) -> None:
    lowered = by_columns(lower(graph))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transposed_weights, "is_stored_transposed", lambda type, by_columns: by_columns)
        stored, names = transposed_weights.transpose_states(lowered)
    verify(stored)
    inputs, state = example_values(graph, SIZES, np.random.default_rng(seed))
    moved = {name: value.T if name in names else value for name, value in state.items()}
    want = interpret(lowered, inputs=inputs, state=state, sizes=SIZES, seed=seed, step=3)
    got = interpret(stored, inputs=inputs, state=moved, sizes=SIZES, seed=seed, step=3)
    for name, value in want.outputs.items():
        np.testing.assert_allclose(got.outputs[name], value, rtol=1e-9, atol=1e-9)
    for name, value in want.state.items():
        found = got.state[name].T if name in names else got.state[name]
        np.testing.assert_allclose(found, value, rtol=1e-9, atol=1e-9)


def state(name: str, *shape: int, op: str = "parameter") -> Node:
    return Node(op, (), at.StateAttrs(name, TensorType(shape, float32), ZEROS, by_columns=True), name)


def test_a_layers_step_moves_nothing() -> None:
    """h = x wᵀ, w ← w - gᵀ x, and the sum of all squares of the gradient: no permute is left, nor a copy."""
    x = Node("input", (), at.InputAttrs("x", TensorType((24, 48), float32)))
    g = Node("input", (), at.InputAttrs("g", TensorType((24, 32), float32)))
    w = state("w", 32, 48)
    slope = b.matmul(g, x, transpose_a=True)
    squares = b.sum_axes(b.sum_axes(b.mul(slope, slope), (0,)), (0,))
    outputs = (Output("h", b.matmul(x, w, transpose_b=True)), Output("squares", squares))
    graph = IRGraph(outputs, (Update("w", b.sub(w, slope)),), (x, g))
    stored, names = transposed_weights.transpose_states(graph)
    assert names == {"w"}
    assert not [n for n in stored.nodes if n.op == "permute"]
    plan = make_plan(graph, {})
    (kept,) = [x for x in plan.buffers if x.space is Space.STATE]
    assert (kept.type.shape, kept.user_type.shape, kept.transposed) == ((48, 32), (32, 48), True)
    assert not [x for x in plan.buffers if x.space is Space.COPY]
    wrong = [replace(x, transposed=False) if x is kept else x for x in plan.buffers]
    with pytest.raises(PlanError, match="must be transposed if and only if"):
        check_file(replace(plan, buffers=tuple(wrong)))


def test_which_are_turned() -> None:
    def asked(*shape: int) -> bool:
        return is_stored_transposed(TensorType(shape, float32), True)

    assert all(asked(*shape) for shape in [(128, 784), (784, 128), (120, 400)])
    assert not any(asked(*shape) for shape in [(10, 128), (1, 128), (128,), (4, 8, 16)])  # 10 columns would take 16
    assert not is_stored_transposed(TensorType((128, 784), float32), False)
