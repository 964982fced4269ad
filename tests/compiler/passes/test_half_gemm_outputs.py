"""Products of half operands leave half results."""

from __future__ import annotations

import wholestep as ws
from tests.compiler.passes.common import assert_same_values, graph_of, leaf
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.types import bfloat16, float32
from wholestep.compiler.passes.lower.autocast import lower_precision
from wholestep.compiler.passes.lower.half_gemm_outputs import round_products
from wholestep.compiler.passes.rematerialize.copies import Rematerialized


def half(name: str, *shape: int | str) -> Node:
    return b.cast(leaf(name, shape, float32), bfloat16)


def product(x: Node, y: Node, transpose_a: bool = False) -> Node:
    return b.matmul(x, y, transpose_a, False, float32)


def spread(x: Node, like: Node) -> Node:
    return b.expand_to(x, like.type.shape, (like.type.rank - 1,))


def products(graph: IRGraph) -> list[Node]:
    return [n for n in graph.nodes if n.op == "matmul"]


def test_a_result_is_rounded_unless_it_is_a_sum_over_rows_or_an_output() -> None:
    x, w, v = half("x", "batch", 8), half("w", 8, 16), half("v", 16, 4)
    hidden = product(x, w)
    out = product(b.cast(b.unary("tanh", hidden), bfloat16), v)  # shown outside as it is
    gradient = product(x, b.cast(hidden, bfloat16), transpose_a=True)
    before = graph_of(out, b.unary("abs", gradient))
    after = round_products(before)
    readers = after.consumers()
    rounded = [
        n for n in products(after) if [r.op for r in readers[n]] == ["cast"] and readers[n][0].type.dtype == bfloat16
    ]
    assert len(products(after)) == 3
    assert [n.type.shape[-1] for n in rounded] == [16]
    assert_same_values(before, after, rtol=2e-2)
    whole = graph_of(b.unary("abs", product(leaf("p", (3, 4), float32), leaf("q", (4, 5), float32))))
    assert round_products(whole) is whole


def test_a_bias_that_only_products_read_is_added_by_the_product() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 8))
    g.set_outputs({"y": ws.relu(ws.nn.Sequential(ws.nn.Linear(8, 16), ws.nn.Linear(16, 8))(x))})
    before = lower_precision(g.to_ir(), bfloat16)
    after = round_products(before)
    added = [n for n in after.nodes if n.op == "add"]
    whole = [n for n in added if any(i.op == "matmul" for i in n.inputs)]
    assert (len(added), len(whole)) == (2, 1)  # the second bias is read by a relu: it is added where that is
    assert sum(isinstance(n, Rematerialized) for n in after.nodes) == 1
    assert_same_values(before, after, rtol=2e-2)
