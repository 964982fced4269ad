"""Gradients on random graphs: two ways to the same numbers, and the passes that follow keep them."""

from __future__ import annotations

from hypothesis import assume, given, settings

from tests.compiler.ir.random_graphs import graphs
from tests.compiler.passes.common import assert_same_values
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import float64
from wholestep.compiler.passes.autodiff.reverse import expand_gradients, find_unreached
from wholestep.compiler.passes.lower.decompose import decompose
from wholestep.compiler.passes.simplify.cse import share_common_nodes
from wholestep.compiler.passes.simplify.fold import fold
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients


def with_gradients(graph: IRGraph) -> IRGraph:
    """The graph with d(Σ of all float outputs, squashed)/d(every leaf it reaches) as further outputs."""
    graph = inline_calls(graph)
    parts = [b.unary("sin", o.node) for o in graph.outputs if o.node.type.dtype == float64]
    assume(bool(parts))
    loss = b.constant(0, float64)
    for part in parts:
        loss = b.add(loss, b.sum_axes(part, range(part.type.rank)))
    leaves = [n for n in graph.nodes if n.op in ("input", "parameter", "state") and n.type.dtype == float64]
    params = [n for n in leaves if n not in find_unreached(loss, leaves)]
    # A gradient at mod is an error, tested in test_autodiff; some ops are made by a pass, of gradients already taken.
    assume(bool(params) and all(n.op != "mod" or not n.type.dtype.is_float for n in graph.nodes))
    assume(not any(n.op.startswith("pooled_grad") for n in graph.nodes))
    gradient = Node("gradient", (loss, *params), at.NONE)
    items = [Output(f"d{i}", Node("item", (gradient,), at.ItemAttrs(i))) for i in range(len(params))]
    return IRGraph((*graph.outputs, *items), graph.updates, graph.inputs)


# relu and tanh have decompositions that are right in value and not differentiable at 0, where these graphs often are;
# decompositions are for graphs whose gradients have been taken.
UNLIKE_AT_ZERO = frozenset({"relu", "tanh"})


@settings(max_examples=60)
@given(graphs(dtype=float64, control=True))
def test_rules_of_composites_agree_with_their_decompositions(graph: IRGraph) -> None:
    step = with_gradients(graph)
    assert_same_values(expand_gradients(step), expand_gradients(decompose(step, UNLIKE_AT_ZERO)), rtol=1e-7)


@settings(max_examples=60)
@given(graphs(dtype=float64, control=True))
def test_passes_keep_gradients(graph: IRGraph) -> None:
    step = expand_gradients(with_gradients(graph))
    after = strip_stop_gradients(step)
    for one_pass in (fold, share_common_nodes, decompose, fold, share_common_nodes):
        after = one_pass(after)
        assert_same_values(step, after, rtol=1e-7)
