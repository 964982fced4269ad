"""The pass as a whole: programs stay equal, what is written by hand reaches its name, nothing else is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests.compiler.ir.random_graphs import example_values, graphs
from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of, parameter
from tests.compiler.passes.egraph.support.common import BY_HAND, DTYPES, cross_entropy, example, silu, softmax
from tests.compiler.passes.egraph.support.rule_cases import run_in_own_dtype
from tests.compiler.targets import HERE, optimize
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output, SourceLine, Update
from wholestep.compiler.ir.printer import print_graph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import DType, TensorType, float32, float64, int32
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.egraph.rules.rule import Exactness
from wholestep.compiler.passes.lower.decompose import decompose
from wholestep.compiler.pipeline import STAGES

CAPACITY = {"n": 64, "batch": 32, "time": 16}


def optimized(graph: IRGraph, exactness: str = "reassociating", before_autodiff: bool = False) -> IRGraph:
    sizes = {s: CAPACITY.get(s, 8) for s in graph.symbols}
    level = Exactness(exactness)
    rewritten, report = optimize(graph, sizes, exactness=level, before_autodiff=before_autodiff)
    assert not report.failure, report.failure
    assert report.cost_after <= report.cost_before or before_autodiff or report.fired
    return rewritten


def lowered(graph: IRGraph) -> IRGraph:
    for rewrite in STAGES[-1].passes_for(HERE):
        graph = rewrite(graph)
    return graph


def assert_same_programs(before: IRGraph, after: IRGraph) -> None:
    """Equal values to 1e-9 once composites are written out on both sides.

    The interpreter has a composite's constants in float64, its decomposition has them in the graph's float32: 4e-9
    apart for gelu, whichever form the e-graph chose.
    """
    assert_same_values(decompose(before), decompose(after), rtol=1e-9)


@given(graphs(max_nodes=12))
@settings(max_examples=60)
def test_random_graphs_keep_their_values(graph: IRGraph) -> None:
    assert_same_programs(graph, optimized(graph))


@given(graphs(max_nodes=10, control=True))
@settings(max_examples=15)
def test_so_do_graphs_before_autodiff(graph: IRGraph) -> None:
    assert_same_programs(graph, optimized(graph, before_autodiff=True))


@pytest.mark.long
@given(graphs(max_nodes=20))
@settings(max_examples=500)
def test_many_random_graphs_keep_their_values(graph: IRGraph) -> None:
    assert_same_programs(graph, optimized(graph))


@given(graphs(max_nodes=12, symbolic=False))
@settings(max_examples=30)
def test_bitwise_keeps_bits(graph: IRGraph) -> None:
    """What is computed in the end: composites are what they are lowered to."""
    graph, rewritten = lowered(graph), lowered(optimized(graph, "bitwise"))
    inputs, state = example_values(graph, {}, np.random.default_rng(0))
    for ours, theirs in zip(rewritten.outputs, graph.outputs, strict=True):
        got, expected = (run_in_own_dtype(o.node, inputs, state) for o in (ours, theirs))
        assert got.tobytes() == expected.tobytes()


# -- recognition ---------------------------------------------------------------------------------------------------


# max(x, 0) has another gradient at 0 than relu: see below.
PLACES = [(name, before) for name in BY_HAND for before in (False, True) if (name, before) != ("relu", True)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "before_autodiff"), PLACES)
def test_what_is_written_by_hand_reaches_its_name(name: str, before_autodiff: bool, dtype: DType) -> None:
    graph = graph_of(example(name, dtype))
    rewritten = optimized(graph, before_autodiff=before_autodiff)
    assert ops_of(rewritten) == ["input", BY_HAND[name][1]]
    # The constants of the definition are rounded to float32 there; the interpreter's own are not.
    assert_same_values(graph, rewritten, rtol=1e-10 if dtype == float64 else 1e-6)


def test_cross_entropy_by_hand_reaches_its_name() -> None:
    x, labels = leaf("x", ("n", 5), float32), leaf("labels", ("n",), int32)
    for before_autodiff in (True, False):
        rewritten = optimized(graph_of(cross_entropy(x, labels)), before_autodiff=before_autodiff)
        assert ops_of(rewritten) == ["input", "input", "cross_entropy"]


def test_relu_keeps_the_gradient_that_was_written() -> None:
    graph = graph_of(example("relu"))
    assert "maximum" in ops_of(optimized(graph, before_autodiff=True))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_along_any_axis(axis: int) -> None:
    graph = graph_of(softmax(leaf("x", (2, 3, 4)), axis))
    (node,) = (n for n in optimized(graph).nodes if n.op == "softmax")
    assert node.attrs == at.SoftmaxAttrs(axis)


def test_another_axis_is_no_softmax() -> None:
    x = leaf("x", (4, 4))
    e = b.unary("exp", x)
    wrong = b.div(e, b.restore_axes(b.sum_axes(e, (1,)), (0,), x.type.shape))
    graph = graph_of(wrong)
    rewritten = optimized(graph)
    assert "softmax" not in ops_of(rewritten)
    assert_same_values(graph, rewritten)


def test_another_constant_is_no_gelu() -> None:
    x = leaf("x", ("n", 5))
    almost = b.mul(b.scale(x, 0.5), b.shift(b.unary("erf", b.scale(x, 0.7)), 1))
    assert "gelu" not in ops_of(optimized(graph_of(almost)))


def test_stability_is_not_a_matter_of_cost() -> None:
    x = leaf("x", (3,))
    unsteady = graph_of(b.unary("log", b.shift(b.unary("exp", x), 1)))
    values = {"x": np.array([-800.0, 0.5, 800.0])}
    assert np.isinf(interpret(unsteady, inputs=values).outputs["out0"][2])
    steady = interpret(optimized(unsteady, before_autodiff=True), inputs=values).outputs["out0"]
    np.testing.assert_allclose(steady, [0.0, np.log1p(np.exp(0.5)), 800.0])


# -- what must survive ---------------------------------------------------------------------------------------------


def test_a_program_that_nothing_improves_is_given_back_as_it_is() -> None:
    x, y = leaf("x", ("n", 5)), leaf("y", ("n", 5))
    graph = graph_of(b.add(b.mul(x, y), b.unary("exp", y)))
    assert optimized(graph) is graph


def test_names_and_lines_are_kept() -> None:
    line = SourceLine("user.py", 7)
    x = leaf("x", ("n", 5))
    s = Node("sigmoid", (x,), at.NONE, "gate", SourceLine("user.py", 6))
    graph = graph_of(b.unary("exp", Node("mul", (x, s), at.NONE, "hidden", line)))
    silu_node = next(n for n in optimized(graph).nodes if n.op == "silu")
    assert (silu_node.name, silu_node.line) == ("hidden", line)


def test_new_nodes_carry_the_origin_of_their_reader() -> None:
    line = SourceLine("user.py", 3)
    x = leaf("x", ("n", 5))
    graph = graph_of(Node("log", (b.unary("sigmoid", x),), at.NONE, "gate", line))
    made = [n for n in optimized(graph).nodes if n.op != "input"]
    assert [n.op for n in made] == ["neg", "softplus", "neg"]
    assert all(n.line == line for n in made)


def test_random_keys_updates_and_unused_inputs_survive() -> None:
    x, unused, w = leaf("x", (2, 3)), leaf("unused", (4,)), parameter("w", (2, 3))
    noise = Node("random", (), at.RandomAttrs("drop.0", TensorType((2, 3), x.type.dtype)))
    other = Node("random", (), at.RandomAttrs("drop.1", TensorType((2, 3), x.type.dtype)))
    step = b.add(b.mul(noise, silu(x)), b.mul(other, w))
    graph = IRGraph((Output("y", step),), (Update("w", b.sub(w, step)),), (x, unused))
    rewritten = optimized(graph)
    assert rewritten.inputs == graph.inputs
    assert sorted(n.attrs.key for n in rewritten.nodes if n.op == "random") == ["drop.0", "drop.1"]
    assert [u.name for u in rewritten.updates] == ["w"]
    assert_same_values(graph, rewritten)


def test_rewriting_does_not_go_around_what_a_gradient_is_taken_for() -> None:
    x = leaf("x", ("n", 5))
    h = b.unary("sigmoid", x)
    loss = b.sum_axes(b.mul(x, h), (0, 1))
    gradient = Node("gradient", (loss, h), at.NONE)
    graph = graph_of(Node("item", (gradient,), at.ItemAttrs(0)), loss)
    rewritten = optimized(graph, before_autodiff=True)
    assert "silu" not in ops_of(rewritten)
    assert_same_values(expand_gradients(graph), expand_gradients(rewritten))


def test_the_same_graph_gives_the_same_program() -> None:
    graph = graph_of(*(example(name) for name in ("gelu", "softmax", "silu")))
    texts = {print_graph(optimized(graph)) for _ in range(2)}
    assert len(texts) == 1


def test_the_report_says_what_happened() -> None:
    _, report = optimize(graph_of(example("silu")), CAPACITY)
    assert report.fired["name-silu"] == 1
    assert report.applied == {"name-silu": 1}
    assert report.stopped == "saturated"
    assert report.nodes_after == 2
    assert "name-silu 1" in str(report)
    assert "reassociating" in str(report)
