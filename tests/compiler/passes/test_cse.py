"""Common subexpressions."""

from __future__ import annotations

from hypothesis import given

from tests.compiler.ir.random_graphs import graphs
from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.types import TensorType, float64
from wholestep.compiler.passes.simplify.cse import share_common_nodes

X, Y = leaf("x", (3,)), leaf("y", (3,))


def test_equal_towers_become_one() -> None:
    towers = [b.unary("exp", b.add(b.scale(X, 2), Y)) for _ in range(2)]
    after = share_common_nodes(graph_of(*towers))
    assert after.outputs[0].node is after.outputs[1].node is towers[0]


def test_order_matters_only_where_it_does() -> None:
    after = share_common_nodes(graph_of(b.add(X, Y), b.add(Y, X), b.sub(X, Y), b.sub(Y, X)))
    assert [ops_of(after).count(op) for op in ("add", "sub")] == [1, 2]


def test_attributes_and_bits_are_told_apart() -> None:
    pads = [b.pad(X, (1,), (0,), value) for value in (0.0, -0.0, 0.0)]
    constants = [b.constant(value, float64) for value in (0.0, -0.0, 0.0)]
    after = share_common_nodes(graph_of(*pads, *constants))
    assert [ops_of(after).count(op) for op in ("pad", "constant")] == [2, 2]


def test_random_numbers_are_equal_by_key() -> None:
    def draw(key: str) -> Node:
        return Node("random", (), at.RandomAttrs(key, TensorType((3,), float64)))

    assert ops_of(share_common_nodes(graph_of(draw("a"), draw("a"), draw("b")))).count("random") == 2


@given(graphs(dtype=float64, control=True))
def test_values_are_kept(graph: IRGraph) -> None:
    after = share_common_nodes(graph)
    assert_same_values(graph, after)
    assert len(after.nodes) <= len(graph.nodes)
    assert share_common_nodes(after) is after


def test_results_of_equal_nodes_are_one() -> None:
    x, attrs = leaf("x", (2, 3)), at.NormAttrs(0.1)
    one, two, other = (b.results("rms_norm_grad", (x, x), a) for a in (attrs, attrs, at.NormAttrs(0.2)))
    shared = share_common_nodes(graph_of(one[0], two[0], other[0]))
    first, second, third = (o.node for o in shared.outputs)
    assert first is second
    assert first is not third
