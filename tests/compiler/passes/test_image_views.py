"""Norms of groups, signals and upsampled images after a convolution compute with channels last, with equal values."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of
from tests.compiler.passes.test_channels_last import MIDDLE, conv
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.lower.image_views import channels_last_views


def centred(rows: Node) -> Node:
    """Rows minus their sums, and each sum times a row: broadcasts of a reduction."""
    total = b.sum_axes(rows, (2,))
    return b.mul(b.sub(rows, b.expand_to(total, rows.type.shape, (0, 1))), rows)


def grouped(groups: int) -> Callable[[Node], Node]:
    def norm(y: Node) -> Node:
        n, c, h, w = y.type.shape
        rows = b.reshape(y, (n, groups, c // groups * h * w))  # type: ignore[operator]
        return b.reshape(centred(rows), y.type.shape)

    return norm


def signal(y: Node) -> Node:
    """Values per channel of (batch, channels, length), and their sums over the batch."""
    n, c, h, w = y.type.shape
    rows = b.reshape(y, (n, c, h * w))  # type: ignore[operator]
    scaled = b.mul(rows, b.expand_to(leaf("gain", (c,)), rows.type.shape, (1,)))
    sums = b.sum_axes(scaled, (0, 2))
    return b.reshape(b.add(scaled, b.expand_to(sums, rows.type.shape, (1,))), y.type.shape)


def repeated(y: Node) -> Node:
    """Every pixel as a block of 2 x 3, and the sums of blocks, as in the gradient."""
    n, c, h, w = y.type.shape
    blocks = b.expand_to(y, (n, c, h, 2, w, 3), (0, 1, 2, 4))
    larger = b.unary("tanh", b.reshape(blocks, (n, c, 2 * h, 3 * w)))  # type: ignore[operator]
    return b.sum_axes(b.reshape(larger, (n, c, h, 2, w, 3)), (3, 5))


def own_layout(y: Node) -> Node:
    """A norm over channels that a user wrote with permutes."""
    last = b.permute(y, (0, 2, 3, 1))
    total = b.expand_to(b.sum_axes(last, (3,)), last.type.shape, (0, 1, 2))
    return b.permute(b.sub(last, total), (0, 3, 1, 2))


def tokens(y: Node) -> Node:
    """Pixels as tokens, and back."""
    n, c, h, w = y.type.shape
    rows = b.permute(b.reshape(y, (n, c, h * w)), (0, 2, 1))  # type: ignore[operator]
    return b.reshape(b.permute(b.unary("tanh", rows), (0, 2, 1)), y.type.shape)


VIEWS = {
    "groups of channels": grouped(3),
    "a group per channel": grouped(6),
    "a signal": signal,
    "repeated pixels": repeated,
    "a permuted norm": own_layout,
    "tokens": tokens,
}


@pytest.mark.parametrize("what", VIEWS)
def test_a_view_between_convolutions_costs_no_permute(what: str) -> None:
    graph = graph_of(conv(VIEWS[what](conv(leaf("x", ("batch", 2, 4, 4)), "u", 6)), "v", 4))
    after = channels_last_views(graph)
    assert ops_of(after).count("permute") == 4, "the image, both weights and the result"
    assert_same_values(graph, after)


@pytest.mark.parametrize("what", VIEWS)
def test_a_view_is_read_in_its_own_shape_too(what: str) -> None:
    y = conv(leaf("x", ("batch", 2, 4, 4)), "u", 6)
    graph = graph_of(VIEWS[what](y), b.neg(y), b.reshape(y, (y.type.shape[0], 96)))
    assert_same_values(graph, channels_last_views(graph))


@pytest.mark.parametrize("what", MIDDLE)
def test_values_are_kept_through(what: str) -> None:
    graph = graph_of(MIDDLE[what](conv(leaf("x", ("batch", 2, 5, 5)), "u", 3)))
    assert_same_values(graph, channels_last_views(graph))


def test_rows_of_one_pixel_are_summed_in_any_order() -> None:
    y = conv(leaf("x", ("batch", 2, 1, 5)), "u", 3)
    graph = graph_of(b.sum_axes(y, (0, 3)))
    after = channels_last_views(graph)
    assert_same_values(graph, after)
    assert ops_of(after).count("permute") == 2, "the image and the weight"
