"""Lowering: composites, reductions, ratios."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from tests.compiler.ir.random_graphs import graphs
from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of
from tests.compiler.targets import HERE
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, SourceLine
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import float64, int32
from wholestep.compiler.passes.lower.decompose import DECOMPOSITIONS, decompose, lower_ratio, lower_reductions

COMPOSITES = {name for name, op in OPS.items() if op.family is Family.COMPOSITE}
FAR = np.array([[-1000.0, -40.0, -1.0, -1e-9], [0.0, 1e-9, 0.5, 800.0]])


def composite(name: str, x: Node) -> list[Node]:
    if name == "gelu":
        return [b.make(name, (x,), at.GeluAttrs(approximate)) for approximate in (False, True)]
    if name in ("softmax", "log_softmax", "logsumexp"):
        return [b.make(name, (x,), at.SoftmaxAttrs(axis)) for axis in (0, 1)]
    if name == "cross_entropy":
        return [b.make(name, (x, b.constant([3, 1], int32)))]
    if name == "bce_with_logits":
        return [b.make(name, (x, b.scale(x, 0.25)))]
    if name == "dropout":
        return [b.make(name, (x, b.constant(rate, float64)), at.DropoutAttrs("k")) for rate in (0.0, 0.3, 0.7, 1.0)]
    if name in LAYERS:
        return layer(name, x)
    return [b.unary(name, x)]


def layer(name: str, x: Node) -> list[Node]:
    """The layer with and without what may be left out; all of its results where it has several."""
    attrs, one, optional = LAYERS[name]
    more = [[b.constant([0.5, -1.0, 2.0, 1.0], float64)] * n for n in optional]
    inputs = [[x, *o, *[b.scale(x, 0.3)] * one] for o in more]
    if name == "attention_grad":
        inputs = [
            [*i, b.make("attention_lse", i, attrs), b.scale(x, 0.3), *given]
            for i in inputs
            for given in ([], [b.make("attention", i, attrs)])
        ]
    if name.endswith("_grad"):
        return [item for i in inputs for item in b.results(name, i, attrs)]
    return [b.make(name, i, attrs) for i in inputs]


# name: (attributes, further inputs of x's shape, numbers of weights and biases)
LAYERS = {
    "layer_norm": (at.NormAttrs(1e-5), 0, (0, 1, 2)),
    "layer_norm_grad": (at.NormAttrs(1e-5), 1, (0, 1)),
    "rms_norm": (at.NormAttrs(1e-5), 0, (0, 1)),
    "rms_norm_grad": (at.NormAttrs(1e-5), 1, (0, 1)),
    "group_norm": (at.GroupNormAttrs(2, 1e-5), 0, (0, 1, 2)),
    "group_norm_grad": (at.GroupNormAttrs(2, 1e-5), 1, (0, 1)),
    "batch_norm": (at.NormAttrs(1e-5), 0, (0, 1, 2)),
    "batch_norm_grad": (at.NormAttrs(1e-5), 1, (0, 1)),
    "attention": (at.AttentionAttrs(True, 0.5), 2, (0,)),  # with a mask: the random graphs below
    "attention_lse": (at.AttentionAttrs(True, 0.5), 2, (0,)),
    "attention_grad": (at.AttentionAttrs(True, 0.5), 2, (0,)),
}


def test_every_composite_has_a_row() -> None:
    assert set(DECOMPOSITIONS) == COMPOSITES


@pytest.mark.parametrize("name", sorted(COMPOSITES))
def test_decomposition_equals_the_composite_and_stays_finite(name: str) -> None:
    graph = graph_of(*composite(name, leaf("x", (2, 4))))
    lowered = decompose(graph)
    assert not COMPOSITES & set(ops_of(lowered))
    for x in (FAR, np.linspace(-3, 3, 8).reshape(2, 4)):
        expected, got = (interpret(g, inputs={"x": x}).outputs for g in (graph, lowered))
        for key in expected:
            assert np.isfinite(got[key]).all()
            np.testing.assert_allclose(got[key], expected[key], rtol=1e-12, atol=1e-14)


def test_infinite_logit_of_another_class_is_no_nan() -> None:
    graph = decompose(graph_of(b.make("cross_entropy", (leaf("x", (1, 2)), b.constant([0], int32)))))
    assert interpret(graph, inputs={"x": np.array([[1.0, -np.inf]])}).outputs["out0"] == 0


def test_kept_composites_stay_and_nested_ones_are_lowered() -> None:
    x = leaf("x", (2, 4))
    graph = graph_of(b.unary("silu", x), *composite("cross_entropy", x))
    assert set(ops_of(decompose(graph, frozenset({"sigmoid"})))) & COMPOSITES == {"sigmoid"}
    assert decompose(graph, frozenset(COMPOSITES)) is graph


def test_lowered_nodes_carry_name_and_line() -> None:
    x = leaf("x", (4,))
    node = decompose(graph_of(Node("relu", (x,), at.NONE, "h", SourceLine("user.py", 8)))).outputs[0].node
    assert (node.op, node.name, str(node.line)) == ("maximum", "h", "user.py:8")


@pytest.mark.parametrize("reduce", [b.sum_axes, b.max_axes])
def test_reductions_become_single_axis_last_first(reduce: object) -> None:
    graph = graph_of(reduce(leaf("x", (2, "batch", 3, 4)), (0, 1, 3)))  # type: ignore[operator]
    lowered = lower_reductions(graph, HERE)
    axes = [n.attrs.axes for n in lowered.nodes if n.op in ("sum", "max")]  # type: ignore[attr-defined]
    assert axes == [(3,), (1,), (0,)]
    assert_same_values(graph, lowered)


def test_sums_of_what_lies_in_panels_begin_with_their_columns() -> None:
    x, w = leaf("x", (6, 5)), leaf("w", (4, 5))
    gradient = b.matmul(x, w, transpose_b=True)
    graph = graph_of(b.sum_axes(b.mul(gradient, gradient), (0, 1)))
    lowered = lower_reductions(graph, HERE)
    assert [n.type.shape for n in lowered.nodes if n.op == "sum"] == [(4,), ()]
    assert_same_values(graph, lowered)
    in_rows = lower_reductions(graph, replace(HERE, blocks_columns=False))
    assert [n.type.shape for n in in_rows.nodes if n.op == "sum"] == [(6,), ()]
    beside_rows = graph_of(b.sum_axes(b.mul(gradient, x_like(gradient)), (0, 1)))
    assert [n.type.shape for n in lower_reductions(beside_rows, HERE).nodes if n.op == "sum"] == [(6,), ()]


def x_like(node: Node) -> Node:
    """An input, which lies in rows."""
    return leaf("rows", node.type.shape)


def test_ratio_becomes_a_division() -> None:
    x = leaf("x", ())
    graph = graph_of(b.make("ratio", (x, b.constant(4, float64))))
    lowered = lower_ratio(graph)
    assert "ratio" not in ops_of(lowered)
    assert_same_values(graph, lowered)


@given(graphs(dtype=float64))
def test_values_are_kept(graph: IRGraph) -> None:
    assert_same_values(graph, lower_ratio(lower_reductions(decompose(graph), HERE)), rtol=1e-8)
