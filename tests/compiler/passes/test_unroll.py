"""Unrolled loops compute what the loops compute; an inner loop without a fixed length is refused."""

from __future__ import annotations

import pytest

from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import Dim, Extent
from wholestep.compiler.passes.simplify.inline import unroll_inner_loops, unroll_loops
from wholestep.errors import GraphError


def running_product(rows: Node, first: Node, length: Extent, reverse: bool = False) -> tuple[Node, ...]:
    """All carries, and all values, of carry * row + 1."""
    carry, row = leaf("carry", (3,)), leaf("row", (3,))
    value = b.shift(b.mul(carry, row), 1.0)
    body = IRGraph((Output("carry", value), Output("value", value)), (), (carry, row))
    return b.results("scan", (first, rows), at.ScanAttrs(body, 1, 1, length, reverse))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_becomes_one_copy_of_its_body_per_step(reverse: bool) -> None:
    graph = graph_of(*running_product(leaf("rows", (4, 3)), leaf("first", (3,)), 4, reverse))
    after = unroll_loops(graph)
    assert ops_of(after).count("mul") == 4
    assert "scan" not in ops_of(after)
    assert_same_values(graph, after)


def nested(length: Extent, symbol: Extent) -> IRGraph:
    """A loop whose body holds a loop of `length` steps."""
    carry, rows = leaf("outer", (3,)), leaf("inner_rows", (length, 3))
    _, values = running_product(rows, carry, length)
    body = IRGraph((Output("carry", b.sum_axes(values, (0,))),), (), (carry, rows))
    first, all_rows = leaf("first", (3,)), leaf("all_rows", (symbol, length, 3))
    return graph_of(*b.results("scan", (first, all_rows), at.ScanAttrs(body, 1, 1, symbol, reverse=False)))


def test_only_inner_loops_are_unrolled_by_the_pass() -> None:
    graph = nested(2, Dim.symbol("steps"))
    after = unroll_inner_loops(graph)
    (loop,) = (n for n in after.nodes if n.op == "scan")
    assert ops_of(loop.attrs.graph).count("mul") == 2  # type: ignore[attr-defined]
    assert_same_values(graph, after)
    plain = graph_of(leaf("x", (3,)))
    assert unroll_inner_loops(plain) is plain


def test_an_inner_loop_of_unknown_length_is_refused() -> None:
    with pytest.raises(GraphError, match="needs a fixed number of steps"):
        unroll_inner_loops(nested(Dim.symbol("width"), 2))
