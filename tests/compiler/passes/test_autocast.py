"""Casts before products, and the gradients that follow from them; interpreted."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.targets import HERE
from wholestep.compiler.ir.graph import IRGraph, Node, body_of
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import DType, bfloat16, float16, float32
from wholestep.compiler.ir.verify import verify
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.lower.autocast import lower_precision, widen_half_arithmetic
from wholestep.compiler.passes.lower.scan import hoist_casts, hoist_projections, map_over_bodies, merge_scans
from wholestep.compiler.passes.simplify.cse import share_common_nodes
from wholestep.compiler.passes.simplify.fold import fold
from wholestep.compiler.pipeline import Compiler
from wholestep.options import CompileOptions
from wholestep.steps.train import train_graph

HALVES = (bfloat16, float16)
RNG = np.random.default_rng(0)


def products(graph: IRGraph) -> list[Node]:
    inner = [body_of(n) for n in graph.nodes]
    return [n for n in graph.nodes if n.op in ops_with(Trait.PRODUCT)] + [
        n for g in inner if g is not None for n in products(g)
    ]


def dtypes(graph: IRGraph) -> set[str]:
    return {n.inputs[0].type.dtype.name for n in products(graph)}


def mlp() -> ws.Graph:
    g = ws.Graph()
    x, y = g.input("x", ("batch", 6)), g.input("labels", ("batch",), "int32")
    w, v = g.parameter("w", (6, 8)), g.parameter("v", (8, 3))
    g.set_outputs([ws.losses.cross_entropy(ws.relu(x @ w) @ v, y)])
    return g


def lowered(graph: ws.Graph, half: DType, optimizer: ws.optim.Optimizer | None = None) -> IRGraph:
    return expand_gradients(lower_precision(train_graph(graph, optimizer or ws.SGD(lr=0.1)), half))


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_all_products_of_a_step_are_half_and_nothing_else_is(half: DType):
    graph = lowered(mlp(), half)
    verify(graph)
    assert len(products(graph)) == 5  # two forward, and the gradients of v, of the hidden layer and of w
    assert dtypes(graph) == {half.name}
    assert all(n.type.dtype == float32 for n in products(graph))
    for node in graph.nodes:
        if node.type.dtype == half:
            assert node.op == "cast" or node.op in ops_with(Trait.VIEW), node
    assert all(u.node.type.dtype == float32 for u in graph.updates)


def test_transposed_convolutions_are_half():
    g = ws.Graph()
    y = ws.nn.ConvTranspose2d(3, 4, 2, 2)(g.input("x", ("batch", 3, 5, 5)))
    g.set_outputs([(y * y).mean()])
    graph = lowered(g, bfloat16)
    verify(graph)
    assert [n.op for n in products(graph)] == ["conv2d_grad_input", "conv2d_grad_weight"]
    assert dtypes(graph) == {"bfloat16"}


def test_a_weight_is_cast_once():
    graph = share_common_nodes(fold(lowered(mlp(), bfloat16)))
    assert [n.op for n in graph.nodes if n.inputs and n.inputs[0].op == "parameter" and n.op == "cast"] == ["cast"] * 2


def test_products_of_an_update_stay_in_float32():
    g = mlp()
    graph = lowered(g, bfloat16, ws.Muon(lr=0.01))
    assert dtypes(graph) == {"bfloat16", "float32"}
    assert dtypes(lower_precision(train_graph(mlp(), ws.Muon(lr=0.01)), float16)) == {"float16", "float32"}


def test_layers_pinned_to_float32_stay():
    first, last = ws.nn.Linear(6, 8), ws.nn.in_float32(ws.nn.Linear(8, 3))
    model = ws.nn.Sequential(first, ws.nn.ReLU(), last)
    g = ws.Graph()
    g.set_outputs([ws.losses.mse_loss(model(g.input("x", ("batch", 6))), g.input("y", ("batch", 3)))])
    graph = fold(lowered(g, bfloat16))
    forward = [n for n in products(graph) if not n.name.startswith("gradient")]
    assert [n.inputs[0].type.dtype.name for n in forward] == ["bfloat16", "float32"]
    assert sorted(n.inputs[0].type.dtype.name for n in products(graph)) == ["bfloat16"] * 2 + ["float32"] * 3


def test_a_mean_over_windows_stays():
    g = ws.Graph()
    x = g.input("x", ("batch", 2, 6, 6))
    g.set_outputs([ws.avg_pool2d(x, 3), ws.conv2d(x, np.ones((3, 2, 3, 3), np.float32))])
    graph = lower_precision(g.to_ir(), bfloat16)
    assert [n.inputs[0].type.dtype.name for n in products(graph)] == ["float32", "bfloat16"]


def test_views_are_of_one_cast():
    g = ws.Graph()
    x = g.input("x", ("batch", 4, 6))
    q, k = x[:, :2], x[:, 2:]
    g.set_outputs([q @ k.transpose(1, 2), x.reshape(-1, 6) @ np.ones((6, 2), np.float32)])
    graph = lower_precision(g.to_ir(), float16)
    assert [n.inputs[0].op for n in graph.nodes if n.op == "cast"] == ["input", "constant"]


# -- loops -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_loops_cast_their_weights_outside(half: DType):
    model = ws.nn.LSTM(3, 4)
    g = ws.Graph()
    out, _ = model(g.input("x", ("batch", 5, 3)))
    g.set_outputs([(out * out).mean()])
    traced = lower_precision(train_graph(g, ws.SGD(lr=0.1)), half)
    before = [n for n in traced.nodes if n.op == "scan"]
    assert any(m.op == "cast" for n in before for m in body_of(n).nodes)
    moved = map_over_bodies(hoist_projections)(map_over_bodies(hoist_casts)(traced))
    verify(moved)
    for node in moved.nodes:
        if node.op == "scan":
            body = body_of(node)
            carries = set(body.inputs[: node.attrs.carries])
            assert not [n for n in body.nodes if n.op == "cast" and n.inputs[0] in set(body.inputs) - carries]
    graph = merge_scans(expand_gradients(moved))
    verify(graph)
    assert dtypes(graph) == {half.name}
    inputs = {"x": RNG.normal(size=(2, 5, 3))}
    state = {name: RNG.normal(size=[int(e) for e in n.type.shape]) for name, n in graph.states().items()}
    ours = interpret(graph, inputs=inputs, state=state)
    theirs = interpret(expand_gradients(traced), inputs=inputs, state=state)
    for name, value in theirs.state.items():
        np.testing.assert_allclose(ours.state[name], value, atol=2 * half.eps)


# -- the e-graph -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_saturation_keeps_accumulation_and_rounding(half: DType):
    """After both stages of the e-graph products still accumulate in float32, and every cast that rounds is there."""
    g = ws.Graph()
    x, y = g.input("x", ("batch", 6)), g.input("y", ("batch", 3))
    w, v, u = g.parameter("w", (6, 8)), g.parameter("v", (8, 3)), g.parameter("u", (3, 3))
    rounded = x.astype(half).astype("float32")  # not x
    hidden = (rounded @ w) @ v @ u * 0.5 * 2.0  # what associativity and scaling would love to change
    g.set_outputs([ws.losses.mse_loss(hidden, y)])
    graph = lower_precision(train_graph(g, ws.SGD(lr=0.1)), half)
    done = Compiler(CompileOptions(cache=False)).run_stages(graph, HERE, "optimize_full")
    assert dtypes(done) == {half.name}
    assert all(n.type.dtype == float32 and n.attrs.accumulate == float32 for n in products(done))
    inputs = {"x": RNG.normal(size=(4, 6)), "y": RNG.normal(size=(4, 3))}
    state = {n: RNG.normal(size=[int(e) for e in s.type.shape]) for n, s in done.states().items()}
    ours, theirs = (
        interpret(done, inputs=inputs, state=state),
        interpret(expand_gradients(graph), inputs=inputs, state=state),
    )
    plain = interpret(expand_gradients(train_graph(g, ws.SGD(lr=0.1))), inputs=inputs, state=state)
    for name, value in theirs.state.items():
        np.testing.assert_allclose(ours.state[name], value, rtol=1e-10, atol=1e-10)
        assert np.abs(plain.state[name] - value).max() > 0.01 * half.eps  # it does round


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_rules_that_name_layers_leave_half_tensors_alone(half: DType):
    """Reshapes of half images look like the groups of a norm, sums of half squares like a batch norm's."""
    g = ws.Graph()
    x = g.input("x", ("batch", 4, 6))
    squares = (x * x).astype(half)
    groups = squares.reshape(-1, 2, 2, 6) * 0.5
    g.set_outputs([groups.sum((0, 2, 3)), ws.softmax(squares), (squares * squares).sum((0, 2))])
    compiler = Compiler(CompileOptions(cache=False))
    compiler.run_stages(g.to_ir(), HERE)
    assert all(r.complete for r in compiler.egraph_reports), [str(r) for r in compiler.egraph_reports]


def test_a_rounding_there_and_back_is_kept_and_one_that_changes_nothing_is_not():
    g = ws.Graph()
    x, h = g.input("x", (3,)), g.input("h", (3,), "bfloat16")
    g.set_outputs([x.astype("bfloat16").astype("float32"), h.astype("float32").astype("bfloat16")])
    done = Compiler(CompileOptions(cache=False)).run_stages(g.to_ir(), HERE)
    first, second = (o.node for o in done.outputs)
    assert [first.op, first.inputs[0].op] == ["cast", "cast"]
    assert second.op == "input"


# -- half arithmetic -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_after_widening_only_casts_round(half: DType):
    g = ws.Graph()
    x, y = g.input("x", (4, 6), half), g.input("y", (4, 6), half)
    w = g.input("w", (6,), half)
    outputs = [ws.exp(x) * y + 1.0, ws.layer_norm(x, w), ws.softmax(y), (x * y).sum(1), x.max(0), x @ y.T, x < y]
    g.set_outputs([o.astype("float32") for o in outputs])
    graph = g.to_ir()
    wide = widen_half_arithmetic(graph)
    verify(wide)
    for node in wide.nodes:
        if any(t.dtype.is_half for t in node.results):
            assert node.op in ("cast", "input", "constant", "expand", "permute"), node
    inputs = {"x": RNG.normal(size=(4, 6)), "y": RNG.normal(size=(4, 6)), "w": RNG.normal(size=6)}
    for name, value in interpret(graph, inputs=inputs).outputs.items():
        np.testing.assert_array_equal(interpret(wide, inputs=inputs).outputs[name], value)
