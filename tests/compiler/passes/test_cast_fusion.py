"""Casts to half types move next to the producer, and routines read widened operands; the values are the same."""

from __future__ import annotations

from tests.compiler.passes.common import assert_same_values, graph_of, leaf
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.types import bfloat16, float32
from wholestep.compiler.passes.lower.cast_fusion import hoist_half_casts, widen_operands

X = leaf("x", (4, 6), float32)


def test_a_cast_is_hoisted_above_views() -> None:
    graph = graph_of(b.cast(b.reshape(b.transpose(b.unary("exp", X)), (2, 12)), bfloat16))
    after = hoist_half_casts(graph)
    (cast,) = (n for n in after.nodes if n.op == "cast")
    assert cast.inputs[0].op == "exp"
    assert_same_values(graph, after)


def test_a_slice_is_rounded_alone_unless_every_reader_rounds() -> None:
    rows = b.slice_axes(X, (0, 0), (2, 6))
    graph = graph_of(b.cast(rows, bfloat16), b.neg(X))
    (cast,) = (n for n in hoist_half_casts(graph).nodes if n.op == "cast")
    assert cast.inputs[0].op == "slice"


def test_convolutions_read_float32_values_of_the_half_type() -> None:
    images, weights = (b.cast(leaf(n, s, float32), bfloat16) for n, s in (("i", (2, 3, 5, 5)), ("w", (4, 3, 3, 3))))
    graph = graph_of(b.make("conv2d", (images, weights), at.ConvAttrs((1, 1), (1, 1), (1, 1), (1, 1), 1, False)))
    after = widen_operands(graph)
    (conv,) = (n for n in after.nodes if n.op == "conv2d")
    assert {i.type.dtype for i in conv.inputs} == {float32}
    assert_same_values(graph, after, rtol=1e-6)
