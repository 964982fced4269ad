"""A graph is unchanged by its conversion into terms and back."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.ir.random_graphs import graphs
from tests.compiler.passes.common import assert_same_values, graph_of, leaf
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.types import TensorType, float32, int64
from wholestep.compiler.passes.egraph.egraph import EGraph, SaturatedTables, canonical
from wholestep.compiler.passes.egraph.encode import CUT, FULL, Encoded, encode, full_value
from wholestep.compiler.passes.egraph.rebuild import rebuild
from wholestep.compiler.passes.egraph.terms import (
    IDENTITY,
    TERMS,
    pack_axes,
    pack_order,
    pack_set,
    unpack_axes,
    unpack_order,
    unpack_set,
)


def unsaturated(encoded: Encoded) -> EGraph:
    """The e-graph of the terms alone: each its own class."""
    nodes = {term: i for i, term in enumerate(encoded.terms)}
    return canonical(encoded.terms, encoded.program, encoded.roots, (), SaturatedTables(nodes, ()))


def there_and_back(graph: IRGraph) -> IRGraph:
    encoded = encode(graph)
    egraph = unsaturated(encoded)
    chosen = [nodes[0] for nodes in egraph.classes]
    return rebuild(graph, encoded, egraph, chosen)


@given(graphs(max_nodes=10, control=True))
@settings(max_examples=60)
def test_random_graphs_come_back(graph: IRGraph) -> None:
    assert_same_values(graph, there_and_back(graph))


def test_equal_nodes_are_one_term() -> None:
    x = leaf("x", (2, 3))
    graph = graph_of(b.add(b.unary("exp", x), b.unary("exp", x)))
    assert [t.head for t in encode(graph).terms] == ["opaque_0", "exp", "add"]
    assert [n.op for n in there_and_back(graph).nodes] == ["input", "exp", "add"]


def test_a_graph_without_duplicates_comes_back_as_itself() -> None:
    graph = graph_of(b.unary("exp", leaf("x", (2, 3))))
    assert there_and_back(graph) is graph


def test_constants_are_numbers_where_float64_tells_them() -> None:
    t = TensorType((2, 3), float32)
    assert full_value(b.full(0.5, t)) == 0.5
    assert full_value(b.constant(3, int64)) == 3.0
    for value, dtype in ((-0.0, float32), (np.nan, float32), (2**53 + 1, int64)):
        assert full_value(b.constant(value, dtype)) is None
    assert encode(graph_of(b.full(0.5, t))).terms[-1].head == FULL


def test_integer_arithmetic_is_opaque_and_movement_is_not() -> None:
    i = leaf("i", (2, 3), int64)
    heads = [t.head for t in encode(graph_of(b.permute(b.add(i, i), (1, 0)))).terms]
    assert heads == ["opaque_0", "opaque_2", "permute"]


def test_what_a_gradient_is_taken_for_stays_in_the_way() -> None:
    x = leaf("x", (3,))
    h = b.neg(x)
    loss = b.sum_axes(b.neg(h), (0,))
    gradient = Node("gradient", (loss, h), at.NONE)
    graph = graph_of(Node("item", (gradient,), at.ItemAttrs(0)))
    encoded = encode(graph)
    assert [encoded.tables.attributes[t.slots[0]][0] for t in encoded.terms if t.head == "opaque_1"] == [
        f"{CUT} 0",
        "item",
    ]
    outer = next(t for t in encoded.terms if t.head == "neg" and t.children != (0,))
    assert encoded.terms[outer.children[0]].head == "opaque_1"


@given(st.permutations(range(5)), st.lists(st.integers(0, 7), unique=True))
def test_axes_are_packed_without_loss(order: list[int], axes: list[int]) -> None:
    assert unpack_order(pack_order(order), 5) == tuple(order)
    assert unpack_axes(pack_axes(sorted(axes))) == tuple(sorted(axes))
    assert unpack_set(pack_set(axes)) == tuple(sorted(axes))
    assert pack_order(range(5)) == IDENTITY


def test_every_row_reads_what_it_writes() -> None:
    t = TensorType((2, 3), float32)
    examples: dict[str, at.Attrs] = {
        "cast": at.CastAttrs(float32),
        "sum": at.SumAttrs((0, 2), float32),
        "max": at.MaxAttrs((1,)),
        "argmax": at.ArgmaxAttrs(1),
        "reshape": at.ReshapeAttrs((2, 3)),
        "permute": at.PermuteAttrs((1, 0)),
        "expand": at.ExpandAttrs((2, 3), (1,)),
        "concat": at.ConcatAttrs(1),
        "gather": at.GatherAttrs(1),
        "matmul": at.MatmulAttrs(True, False, float32),
        "softmax": at.SoftmaxAttrs(1),
        "log_softmax": at.SoftmaxAttrs(0),
        "logsumexp": at.SoftmaxAttrs(1),
        "gelu": at.GeluAttrs(True),
        "iota": at.IotaAttrs(t, 1),
    }
    for op, row in TERMS.items():
        attrs = examples.get(op, at.NONE)
        assert row.read(row.write(attrs), t) == attrs, op
        assert len(row.write(attrs)) == len(row.slots)
