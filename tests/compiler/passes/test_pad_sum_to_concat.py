"""Sums of disjoint pads become concatenations, in the shape in which they are read."""

from __future__ import annotations

import numpy as np
import pytest

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import Dim, Extent, TensorType, float64
from wholestep.compiler.passes.simplify.pad_sum_to_concat import concat_pad_sums

BATCH = Dim.symbol("batch")


def leaf(name: str, *shape: Extent) -> Node:
    return Node("input", (), at.InputAttrs(name, TensorType(shape, float64)), name)


def padded(x: Node, low: int, high: int, value: float = 0.0) -> Node:
    last = x.type.rank - 1
    return b.pad(x, [0] * last + [low], [0] * last + [high], value)


X, Y, Z = leaf("x", BATCH, 3, 2), leaf("y", BATCH, 3, 4), leaf("z", BATCH, 3, 1)


def graph_of(*nodes: Node) -> IRGraph:
    outputs = tuple(Output(f"out{i}", n) for i, n in enumerate(nodes))
    return IRGraph(outputs, (), tuple(n for n in IRGraph(outputs).nodes if n.op == "input"))


def ops_of(graph: IRGraph) -> list[str]:
    return [n.op for n in graph.nodes if n.op != "input"]


def assert_same_values(before: IRGraph, after: IRGraph) -> None:
    rng = np.random.default_rng(0)
    inputs = {n: rng.normal(size=(5, *leaf.type.shape[1:])) for n, leaf in before.leaves("input").items()}
    expected, got = (interpret(g, inputs=inputs).outputs for g in (before, after))
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value)


def test_three_parts_in_any_order_are_one_concatenation() -> None:
    total = b.add(padded(Z, 6, 0), b.add(padded(Y, 2, 1), padded(X, 0, 5)))
    graph = graph_of(total)
    assert ops_of(concat_pad_sums(graph)) == ["concat"]
    assert_same_values(graph, concat_pad_sums(graph))


NO_CONCATENATION = {
    "a gap": b.add(padded(X, 0, 5), padded(Z, 6, 0)),
    "an overlap": b.add(padded(X, 0, 4), padded(Y, 1, 1)),
    "an end that is missing": b.add(padded(X, 0, 5), padded(Y, 2, 1)),
    "another value outside": b.add(padded(X, 0, 4, 1.0), padded(Y, 2, 0)),
    "two axes": b.add(b.pad(X, [0, 0, 0], [0, 3, 0]), padded(leaf("u", BATCH, 6, 1), 1, 0)),
    "no pad": b.add(padded(X, 0, 4), leaf("u", BATCH, 3, 6)),
}


@pytest.mark.parametrize("what", NO_CONCATENATION)
def test_other_sums_stay(what: str) -> None:
    graph = graph_of(NO_CONCATENATION[what])
    assert concat_pad_sums(graph) is graph


def test_a_sum_that_somebody_else_reads_stays() -> None:
    inside = b.add(padded(Y, 2, 1), padded(X, 0, 5))
    graph = graph_of(b.add(padded(Z, 6, 0), inside), inside)
    assert "concat" not in ops_of(concat_pad_sums(graph))


def test_a_reshape_in_front_of_the_axis_moves_into_the_parts() -> None:
    flat = b.reshape(b.concat([X, Y], 2), (3 * BATCH, 6))
    graph = graph_of(flat)
    assert ops_of(concat_pad_sums(graph)) == ["reshape", "reshape", "concat"]
    assert_same_values(graph, concat_pad_sums(graph))


def test_a_reshape_of_the_axis_itself_stays() -> None:
    graph = graph_of(b.reshape(b.concat([X, Y], 2), (BATCH, 18)))
    assert concat_pad_sums(graph) is graph
    both = b.concat([X, Y], 2)
    graph = graph_of(b.reshape(both, (3 * BATCH, 6)), both)  # read as it is, too
    assert concat_pad_sums(graph) is graph
