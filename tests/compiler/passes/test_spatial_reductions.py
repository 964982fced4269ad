"""Sums over pixels: the same numbers, fewer passes over images."""

from __future__ import annotations

import numpy as np

from tests.compiler.passes.common import graph_of
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import Dim, TensorType, bfloat16, float32, float64
from wholestep.compiler.passes.layout.spatial_reductions import (
    merge_batch_spatial_sums,
    merge_spatial_sums,
    variances_in_one_pass,
)
from wholestep.compiler.passes.rematerialize.copies import Rematerialized

BATCH = Dim.symbol("batch")
IMAGES = TensorType((BATCH, 4, 5, 3), float64)


def leaf(name: str) -> Node:
    return b.make("input", (), at.InputAttrs(name, IMAGES))


def over_pixels(x: Node) -> Node:
    """As reductions are lowered: one axis each, the last one first."""
    return b.sum_axes(b.sum_axes(x, (2,)), (1,))


def mean(x: Node) -> Node:
    total = b.sum_axes(over_pixels(x), (0,))
    count = b.count(BATCH * 20, float64)
    return b.expand_to(b.div(total, b.expand_to(count, (3,), ())), x.type.shape, (3,))


def agrees(graph: IRGraph, other: IRGraph) -> None:
    inputs = {i.attrs.name: np.random.default_rng(3).normal(size=(2, 4, 5, 3)) for i in graph.inputs}  # type: ignore[attr-defined]
    expected, found = (interpret(g, inputs=inputs).outputs for g in (graph, other))
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)


def sums(graph: IRGraph) -> list[int]:
    """The ranks of what is summed, the largest first."""
    return sorted((n.inputs[0].type.rank for n in graph.nodes if n.op == "sum"), reverse=True)


def test_rows_and_columns_are_one_axis_where_the_image_is_computed() -> None:
    x = leaf("x")
    assert sums(merge_spatial_sums(graph_of(over_pixels(b.mul(x, x))))) == [4, 3]  # an input is read in its own layout
    stored = b.unary("sin", leaf("x"))
    both = graph_of(stored, over_pixels(b.mul(stored, stored)))
    merged = merge_spatial_sums(both)
    assert sums(merged) == [3]
    agrees(both, merged)


def test_numbers_of_a_channel_are_spread_over_the_merged_axis() -> None:
    stored = b.unary("sin", leaf("x"))
    graph = graph_of(stored, over_pixels(b.sub(stored, mean(stored))))
    merged = merge_spatial_sums(graph)
    assert sums(merged)[0] == 3
    agrees(graph, merged)


def test_what_varies_along_a_row_stays() -> None:
    stored = b.unary("sin", leaf("x"))
    columns = b.expand_to(b.sum_axes(stored, (2,)), IMAGES.shape, (0, 1, 3))
    graph = graph_of(stored, over_pixels(b.mul(stored, columns)))
    assert sums(merge_spatial_sums(graph))[0] == 4
    agrees(graph, merge_spatial_sums(graph))


def test_images_are_added_up_with_their_pixels_and_variances_take_one_pass() -> None:
    """Far from zero as well: the sums are of what is left beside the first pixel."""
    far = b.shift(b.unary("sin", leaf("x")), 1e6)
    centred = b.sub(far, mean(far))
    graph = graph_of(far, b.sum_axes(over_pixels(b.mul(centred, centred)), (0,)))
    merged = merge_batch_spatial_sums(graph)
    assert sums(merged) == [2, 2]
    one = variances_in_one_pass(merged)
    squares = [n for n in one.nodes if n.op == "sum"]
    assert len(squares) == 2
    assert not any(n is m for n in squares[1].inputs[0].inputs for m in squares)  # neither waits for the other
    agrees(graph, one)


def test_a_summand_of_few_half_images_is_computed_for_the_sum_and_again_for_its_other_readers() -> None:
    """The gradient before a batch norm: nothing stores it in float32."""
    for count, computed in ((2, 2), (4, 1)):
        images = [b.cast(b.cast(leaf(f"x{i}"), bfloat16), float32) for i in range(count)]
        value = b.unary("tanh", images[0])
        for image in images[1:]:
            value = b.mul(value, image)
        graph = graph_of(b.unary("sin", value), b.sum_axes(over_pixels(value), (0,)))
        merged = merge_batch_spatial_sums(graph)
        assert sums(merged) == [2]
        assert [n.op for n in merged.nodes].count("tanh") == computed
        assert any(isinstance(n, Rematerialized) for n in merged.nodes) == (count == 2)
        agrees(graph, merged)
