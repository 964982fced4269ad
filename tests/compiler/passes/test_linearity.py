"""Gradients from which a factor can be moved out, and gradients from which it cannot."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.passes.common import leaf
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import float32, int32
from wholestep.compiler.passes.distribute.placement.rules import is_linear

U, V, X = leaf("u", (3, 4)), leaf("v", (3, 4)), leaf("x", (3, 4))
ROWS = b.constant([1, 0, 1], int32)
ZERO = b.zeros_like(X)

LINEAR: dict[str, Callable[[], Node]] = {
    "itself": lambda: U,
    "scaled": lambda: b.mul(b.unary("exp", X), U),
    "both": lambda: b.sub(b.neg(U), b.div(V, X)),
    "zero and one": lambda: b.add(ZERO, V),
    "nothing": lambda: ZERO,
    "chosen": lambda: b.where(b.less(X, ZERO), U, ZERO),
    "moved": lambda: b.expand_to(b.sum_axes(b.transpose(b.slice_axes(U, (0, 0), (2, 4))), (0, 1)), (3, 4), ()),
    "padded": lambda: b.pad(b.slice_axes(U, (1, 0), (3, 4)), (1, 0), (0, 0)),
    "side by side": lambda: b.concat([b.slice_axes(U, (0, 0), (1, 4)), b.slice_axes(V, (0, 0), (2, 4))], 0),
    "product": lambda: b.matmul(b.matmul(X, U, transpose_b=True), X),
    "looked up": lambda: b.scatter_add(b.gather(U, ROWS, 0), ROWS, 0, 3),
    "cast": lambda: b.cast(b.cast(U, float32), U.type.dtype),
}
BENT: dict[str, Callable[[], Node]] = {
    "constant": lambda: X,
    "shifted": lambda: b.add(U, X),
    "squared": lambda: b.mul(U, U),
    "product of both": lambda: b.mul(U, V),
    "clipped": lambda: b.maximum(U, ZERO),
    "divided by": lambda: b.div(X, U),
    "chosen by": lambda: b.where(b.less(U, ZERO), U, ZERO),
    "chosen or one": lambda: b.where(b.less(X, ZERO), U, b.full_like(X, 1)),
    "padded with one": lambda: b.pad(b.slice_axes(U, (1, 0), (3, 4)), (1, 0), (0, 0), 1.0),
    "to integers": lambda: b.cast(b.cast(U, int32), U.type.dtype),
    "softmax": lambda: b.softmax(U, 1),
}


def held(slope: Node) -> Node:
    graph = IRGraph((Output("y0", slope),), (), (U, V, X))
    return b.make("custom_gradient", (X, X, X), at.CustomGradientAttrs(graph, 2))


def slopes(slope: Node, factor: float) -> np.ndarray:
    rng = np.random.default_rng(2)
    u, v, x = (rng.normal(size=(3, 4)) for _ in range(3))
    graph = IRGraph((Output("y", slope),), (), (U, V, X))
    return interpret(graph, inputs={"u": factor * u, "v": factor * v, "x": x}).outputs["y"]


@pytest.mark.parametrize("name", [*LINEAR, *BENT])
def test_a_factor_comes_out_where_it_is_said_to(name: str) -> None:
    slope = {**LINEAR, **BENT}[name]()
    assert is_linear(held(slope)) == (name in LINEAR)
    equal = np.allclose(slopes(slope, -3.0), -3.0 * slopes(slope, 1.0))
    assert equal == (name in LINEAR)
