"""Products with looked-up rows become lookups in a projected table, if the table is smaller."""

from __future__ import annotations

from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.types import int32
from wholestep.compiler.passes.lower.embedding_projection import project_tables


def layer(words: int, bias: bool = False) -> IRGraph:
    table, index = leaf("table", (words, 4)), leaf("index", ("batch", 6), int32)
    rows = b.reshape(b.gather(table, index, 0), (b.gather(table, index, 0).type.shape[0] * 6, 4))
    y = b.matmul(rows, leaf("weight", (4, 3)))
    return graph_of(b.add(y, b.expand_to(leaf("bias", (3,)), y.type.shape, (1,))) if bias else y)


def test_the_table_is_multiplied_instead_of_its_rows() -> None:
    graph = layer(5)
    after = project_tables(graph)
    (product,) = (n for n in after.nodes if n.op == "matmul")
    assert product.type.shape == (5, 3)
    assert_same_values(graph, after)


def test_a_bias_is_added_to_the_projected_table() -> None:
    graph = layer(5, bias=True)
    after = project_tables(graph)
    (total,) = (n for n in after.nodes if n.op == "add")
    assert total.type.shape == (5, 3)
    assert_same_values(graph, after)


def test_a_large_table_stays() -> None:
    graph = layer(1000)
    assert ops_of(project_tables(graph)) == ops_of(graph)
    plain = graph_of(b.matmul(leaf("x", (2, 4)), leaf("weight", (4, 3))))
    assert project_tables(plain) is plain
