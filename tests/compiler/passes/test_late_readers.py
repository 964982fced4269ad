"""Late readers recompute a value from a stored one that is narrower; the bits are the same."""

from __future__ import annotations

from tests.compiler.passes.common import assert_same_values, graph_of, leaf
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import bfloat16, float32
from wholestep.compiler.passes.rematerialize.copies import Rematerialized, is_late
from wholestep.compiler.passes.rematerialize.late_readers import rematerialize_late_reads


def half(name: str, *shape: int | str) -> Node:
    return b.cast(leaf(name, shape, float32), bfloat16)


def product(x: Node, y: Node) -> Node:
    return b.matmul(x, y, accumulate=float32)


def test_the_derivative_of_a_tanh_is_computed_from_the_narrow_argument() -> None:
    u, w = product(half("x", "batch", 8), half("w", 8, 16)), half("v", 16, 8)
    rounded = b.cast(b.cast(u, bfloat16), float32)
    t = b.unary("tanh", rounded)
    y = product(b.cast(t, bfloat16), w)
    slope = b.sub(b.full_like(t, 1.0), b.mul(t, t))
    back = b.mul(product(b.cast(y, bfloat16), half("z", 8, 16)), slope)
    before = graph_of(back, b.unary("abs", y))
    after = rematerialize_late_reads(before)
    copies = [n for n in after.nodes if isinstance(n, Rematerialized)]
    assert [n.op for n in copies].count("tanh") == 1  # in addition to the tanh of the forward pass
    assert not any(map(is_late, copies))  # they save traffic, because they are in their reader's kernel
    assert [n.op for n in after.nodes].count("tanh") == 2
    assert_same_values(before, after, rtol=0)


def test_a_reader_that_is_not_late_shares_the_value() -> None:
    t = b.unary("tanh", b.cast(half("x", "batch", 8), float32))
    graph = rematerialize_late_reads(graph_of(b.mul(t, t)))
    assert [n.op for n in graph.nodes if isinstance(n, Rematerialized)] in ([], ["cast"])


def backward(name: str, slope: Node, y: Node) -> Node:
    """A product that depends on y, times a slope of the forward pass."""
    return b.mul(product(b.cast(y, bfloat16), half(name, 8, 16)), slope)


def test_a_mask_is_computed_again_from_a_half_tensor() -> None:
    """A byte to store and a byte to load are the bytes of the argument, which the reader often loads anyway."""
    u, w = product(half("x", "batch", 8), half("w", 8, 16)), half("v", 16, 8)
    rounded = b.cast(b.cast(u, bfloat16), float32)
    zeros = b.full_like(rounded, 0.0)
    mask = b.less(zeros, rounded)
    y = product(b.cast(b.where(mask, rounded, zeros), bfloat16), w)
    before = graph_of(b.where(mask, backward("z", b.full_like(u, 1.0), y), zeros), b.unary("abs", y))
    after = rematerialize_late_reads(before)
    assert [n.op for n in after.nodes if n.op == "less" and isinstance(n, Rematerialized)] == ["less"]
    assert_same_values(before, after, rtol=0)


def test_a_value_of_two_half_tensors_is_computed_again_and_of_three_is_stored() -> None:
    for count, copied in ((2, 1), (3, 0)):
        halves = [b.cast(product(half(f"x{i}", "batch", 8), half(f"w{i}", 8, 16)), bfloat16) for i in range(count)]
        value = b.cast(halves[0], float32)
        for h in halves[1:]:
            value = b.mul(b.unary("tanh", value), b.cast(h, float32))
        y = product(b.cast(value, bfloat16), half("v", 16, 8))
        before = graph_of(backward("z", b.unary("sin", value), y), b.unary("abs", y))
        after = rematerialize_late_reads(before)
        assert [n.op for n in after.nodes if isinstance(n, Rematerialized)].count("sin") == copied
        assert_same_values(before, after, rtol=0)
