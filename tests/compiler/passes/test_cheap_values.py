"""Centered values: every reader computes its own; the numbers are the same."""

from __future__ import annotations

from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.rematerialize.cheap_values import duplicate_centered_values

SHAPE = ("batch", 4, 5, 3)


def mean(x: Node) -> Node:
    """Over all axes but the last, the last one first."""
    total = b.sum_axes(b.sum_axes(b.sum_axes(x, (2,)), (1,)), (0,))
    return b.expand_to(total, x.type.shape, (3,))


def test_every_reader_of_a_centered_image_has_its_own() -> None:
    x = b.unary("sin", leaf("x", SHAPE))
    centered = b.sub(x, mean(x))
    graph = graph_of(b.sum_axes(b.mul(centered, centered), (0,)), b.unary("exp", centered), b.neg(centered))
    after = duplicate_centered_values(graph)
    assert ops_of(graph).count("sub") == 1
    assert ops_of(after).count("sub") == 3  # a square reads one twice
    assert_same_values(graph, after)


def test_a_value_that_is_not_centered_by_its_own_columns_is_shared() -> None:
    x, other = b.unary("sin", leaf("x", SHAPE)), b.unary("cos", leaf("x", SHAPE))
    shifted = b.sub(x, mean(other))  # x itself need not be in memory
    rows = b.sub(x, b.expand_to(b.sum_axes(x, (3,)), x.type.shape, (0, 1, 2)))  # a row is at hand
    graph = graph_of(b.unary("exp", shifted), b.neg(shifted), b.unary("exp", rows), b.neg(rows))
    assert duplicate_centered_values(graph) is graph
