"""Calls and stop_gradient."""

from __future__ import annotations

from hypothesis import given

from tests.compiler.ir.random_graphs import graphs
from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import float64
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients


def call(graph: IRGraph, *arguments: Node) -> list[Node]:
    node = Node("call", arguments, at.CallAttrs(graph))
    return [Node("item", (node,), at.ItemAttrs(i)) for i in range(len(graph.outputs))]


def function(*outputs: Node, inputs: tuple[Node, ...]) -> IRGraph:
    return IRGraph(tuple(Output(f"r{i}", n) for i, n in enumerate(outputs)), (), inputs)


def test_nested_calls_called_twice_with_swapped_arguments() -> None:
    a, c = leaf("a", (3,)), leaf("c", (3,))
    inner = function(b.sub(a, c), a, inputs=(a, c))
    # The outer function names its inputs like the inner one's and hands them over exchanged.
    difference, second = call(inner, c, a)
    outer = function(b.mul(difference, second), inputs=(a, c))
    x, y = leaf("x", (3,)), leaf("y", (3,))
    graph = graph_of(*call(outer, x, y), *call(outer, y, x))
    inlined = inline_calls(graph)
    assert not {"call", "item"} & set(ops_of(inlined))
    assert_same_values(graph, inlined)


def test_nothing_to_do_gives_the_same_graph() -> None:
    graph = graph_of(b.neg(leaf("x", (3,))))
    assert inline_calls(graph) is graph
    assert strip_stop_gradients(graph) is graph


@given(graphs(dtype=float64, control=True))
def test_values_are_kept(graph: IRGraph) -> None:
    lowered = strip_stop_gradients(inline_calls(graph))
    assert not {"call", "stop_gradient", "custom_gradient"} & set(ops_of(lowered))
    assert_same_values(graph, lowered)
