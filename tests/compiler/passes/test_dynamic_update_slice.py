"""Rows are written into a state in place if nothing else reads it, into a copy otherwise."""

from __future__ import annotations

from dataclasses import replace

from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of, parameter
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Update
from wholestep.compiler.ir.types import int32
from wholestep.compiler.passes.lower.dynamic_update_slice import lower_dynamic_update_slices

ROWS, START = leaf("rows", (2, 3)), leaf("start", (), int32)


def update_of(state: Node, *outputs: Node) -> IRGraph:
    graph = graph_of(*outputs, b.neg(ROWS), b.neg(START))
    written = b.write_rows(state, ROWS, START)
    return replace(graph, updates=(Update("table", written),))


def test_a_state_that_nothing_else_reads_is_written_in_place() -> None:
    graph = update_of(parameter("table", (5, 3), "state"))
    assert lower_dynamic_update_slices(graph) is graph


def test_another_reader_of_the_state_needs_a_copy() -> None:
    state = parameter("table", (5, 3), "state")
    graph = update_of(state, b.unary("exp", state))
    after = lower_dynamic_update_slices(graph)
    assert "write_rows" not in ops_of(after)
    assert_same_values(graph, after)


def test_a_value_that_is_no_state_is_copied() -> None:
    graph = graph_of(b.write_rows(leaf("x", (5, 3)), ROWS, START))
    after = lower_dynamic_update_slices(graph)
    assert "write_rows" not in ops_of(after)
    assert_same_values(graph, after)
