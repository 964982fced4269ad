"""Images in NHWC layout: convolutions and pools read channels last, and the values are the same."""

from __future__ import annotations

import pytest

from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.lower.channels_last import channels_last

CONV = at.ConvAttrs((1, 1), (1, 1), (1, 1), (1, 1), 1, False)


def conv(x: Node, name: str, channels: int) -> Node:
    return b.make("conv2d", (x, leaf(name, (channels, x.type.shape[1], 3, 3))), CONV)


def test_the_layout_passes_through_elementwise_ops() -> None:
    x = leaf("x", ("batch", 2, 5, 5))
    graph = graph_of(conv(b.unary("tanh", conv(x, "u", 3)), "v", 4))
    after = channels_last(graph)
    assert all(n.attrs.last for n in after.nodes if n.op == "conv2d")  # type: ignore[attr-defined]
    assert ops_of(after).count("permute") == 4  # the image, both weights and the result
    assert_same_values(graph, after)


MIDDLE = {
    "slice": lambda y: b.slice_axes(y, (0, 0, 1, 0), (*y.type.shape[:2], 4, 5)),
    "pad": lambda y: b.pad(y, (0, 0, 1, 0), (0, 1, 0, 0)),
    "concat": lambda y: b.concat((y, b.neg(y)), 1),
    "a bias": lambda y: b.add(y, b.expand_to(leaf("bias", (3,)), y.type.shape, (1,))),
    "zeros between": lambda y: b.interleave_zeros(y, (1, 1, 2, 2)),
    "a sum": lambda y: b.sum_axes(y, (2, 3)),
    "another op": lambda y: b.reshape(y, (y.type.shape[0], 75)),
}


@pytest.mark.parametrize("what", MIDDLE)
def test_values_are_kept_through(what: str) -> None:
    graph = graph_of(MIDDLE[what](conv(leaf("x", ("batch", 2, 5, 5)), "u", 3)))
    assert_same_values(graph, channels_last(graph))


def test_a_program_without_images_stays() -> None:
    graph = graph_of(b.neg(leaf("x", (3, 4))))
    assert channels_last(graph) is graph
