"""Large values of the self-check in pieces, on several threads: the values of the whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.semantics.values import value_of
from wholestep.compiler.ir.types import TensorType, bfloat16, float32, int32
from wholestep.session.verify.pieces import Pieces

Array = np.ndarray[Any, Any]


def large_nodes() -> dict[str, tuple[Node, list[Array]]]:
    """Nodes over large arrays, with their operands."""
    rng = np.random.default_rng(5)

    def given(name: str, *shape: int) -> tuple[Node, Array]:
        return b.make("input", (), at.InputAttrs(name, TensorType(shape, float32))), rng.standard_normal(shape)

    (x, x_is), (y, y_is) = given("x", 1, 600, 1000), given("y", 1, 600, 1000)
    (q, q_is), (k, k_is), (v, v_is) = (given(name, 2, 9, 200, 160) for name in "qkv")
    labels = b.make("input", (), at.InputAttrs("labels", TensorType((1, 600), int32)))
    indices, attention = rng.integers(0, 1000, (1, 600)), at.AttentionAttrs(True, 0.1)
    lse = b.make("attention_lse", (q, k, v), attention)
    (lse_is,) = [value_of(lse, None, [q_is, k_is, v_is])]  # type: ignore[arg-type]
    gradient = b.make("attention_grad", (q, k, v, lse, v), attention)
    return {
        "add": (b.add(x, y), [x_is, y_is]),
        "cast": (b.cast(x, bfloat16), [x_is]),
        "of a view": (b.mul(x, y), [np.broadcast_to(x_is[:, :1], x_is.shape), y_is]),
        "softmax": (b.softmax(x, 2), [x_is]),
        "cross_entropy": (b.make("cross_entropy", (x, labels)), [x_is, indices]),
        "attention": (b.make("attention", (q, k, v), attention), [q_is, k_is, v_is]),
        "attention_lse": (lse, [q_is, k_is, v_is]),
        "attention_grad": (gradient, [q_is, k_is, v_is, lse_is, v_is]),
    }


@pytest.mark.parametrize("name", large_nodes())
def test_pieces_are_those_of_the_whole(name: str) -> None:
    node, operands = large_nodes()[name]
    with Pieces(3) as pieces:
        axis = pieces.axis(node, operands)
        assert axis is not None
        whole = value_of(node, None, operands)  # type: ignore[arg-type]
        value = pieces.evaluate(node, axis, operands, lambda part: value_of(node, None, list(part)))  # type: ignore[arg-type]
    several = isinstance(value, tuple)
    for ours, theirs in zip(value if several else [value], whole if several else [whole], strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-12, 1e-12)


def test_values_that_are_small_or_depend_on_all_axes_are_whole() -> None:
    node, operands = large_nodes()["softmax"]
    with Pieces(3) as pieces:
        assert pieces.axis(node, [operands[0][:, :10]]) is None
        assert pieces.axis(b.softmax(node.inputs[0], 1), operands) is None
        assert pieces.axis(b.sum_axes(node.inputs[0], (2,)), operands) is None
