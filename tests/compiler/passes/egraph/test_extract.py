"""Extraction against the optimum, and its habits: ties keep the program, no cycles, shared values paid once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import wholestep as ws
from tests.compiler.passes.common import graph_of, leaf
from tests.compiler.passes.egraph.support.common import BY_HAND, cross_entropy, example, gelu, saturated, softmax
from tests.compiler.passes.egraph.support.ilp import optimal_cost
from tests.compiler.passes.egraph.test_families import BCE, layer_norm, recorded
from tests.compiler.targets import COSTS
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.types import int32
from wholestep.compiler.passes.egraph.cost import Cost, CostModel
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.extract import extract
from wholestep.compiler.passes.egraph.rebuild import live_classes


def _several() -> dict[str, IRGraph]:
    x, y = leaf("x", (64, 5)), leaf("y", (64, 5))
    labels = leaf("labels", (64,), int32)
    s = softmax(x)
    shared = b.unary("exp", x)
    return {
        **{name: graph_of(example(name)) for name in ("gelu", "gelu-tanh", "log-of-softmax", "silu")},
        "cross-entropy and softmax": graph_of(cross_entropy(x, labels), s),
        "shared exponential": graph_of(b.mul(shared, y), b.add(shared, y), b.unary("sigmoid", x)),
        "two of a kind": graph_of(b.mul(gelu(x), gelu(y)), b.add(gelu(x), y)),
        "scaled sums": graph_of(b.sum_axes(b.scale(b.mul(x, y), 0.25), (1,)), b.scale(b.mul(x, y), 0.25)),
        "signs": graph_of(b.neg(b.sub(b.neg(x), b.mul(y, b.neg(x)))), b.sub(b.neg(y), x)),
        "quotients": graph_of(b.div(x, b.expand_to(b.sum_axes(b.unary("exp", y), (1,)), (64, 5), (0,))), b.div(x, y)),
    }


def _families() -> dict[str, IRGraph]:
    rows = ("n", 6)
    return {
        "sigmoid cross entropy": recorded(BCE["probabilities"], rows, rows),
        "logsumexp and log-softmax": recorded(lambda x: (ws.log(ws.exp(x).sum(-1)), ws.log(ws.softmax(x))), rows),
        "layer norm": recorded(layer_norm, ("n", 3, 6)),
        "gate": recorded(lambda a, c: (a * c * ws.sigmoid(a), c * (1 - ws.sigmoid(a))), rows, rows),
        "order of products": recorded(lambda x, u, v, w: x @ (u @ v) @ w, ("n", 40), (40, 2), (2, 50), (50, 3)),
        "slices": recorded(lambda x, y: (ws.concat([x, y], 1)[:, 2:8], ws.concat([x[:, :4], x[:, 4:]], 1)), rows, rows),
        "variance": recorded(lambda x: (x * x).mean(-1) - x.mean(-1) ** 2, rows),
    }


GRAPHS = {**_several(), **_families()}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_search_finds_the_optimum(name: str) -> None:
    encoded, egraph = saturated(GRAPHS[name])
    model = CostModel(encoded.tables, {"n": 64}, COSTS)
    found = extract(egraph, lambda node: model.cost(node, egraph))
    best = optimal_cost(egraph, lambda node: model.cost(node, egraph))
    print(f"{name}: modelled cost {found.before:.1f} -> {found.after:.1f}, optimum {best:.1f}")
    assert found.after <= found.before
    assert found.after == pytest.approx(best, rel=1e-6)


# -- small e-graphs by hand: class -> e-nodes ----------------------------------------------------------------------


def egraph_of(classes: list[list[tuple[str, tuple[int, ...]]]], original: list[int], roots: tuple[int, ...]) -> EGraph:
    members = [tuple(ENode(head, (), 0, children) for head, children in nodes) for nodes in classes]
    class_of = {n: c for c, nodes in enumerate(members) for n in nodes}
    own = tuple(members[c][i] for c, i in enumerate(original) if i >= 0)
    return EGraph(tuple(tuple(sorted(m)) for m in members), own, class_of, roots)


def costs(work: dict[str, float], stored: float = 0.0) -> Callable[[ENode], Cost]:
    return lambda node: Cost(work[node.head], stored if work[node.head] else 0.0)


def test_a_tie_keeps_the_program() -> None:
    egraph = egraph_of([[("x", ())], [("a", (0,)), ("b", (0,))]], [0, 1], (1,))
    chosen = extract(egraph, costs({"x": 0, "a": 1, "b": 1})).chosen
    assert chosen[1].head == "b"


def test_a_value_that_is_there_anyway_is_free() -> None:
    """Alone, c is cheaper by itself; where a is read too, it is cheaper through a."""
    classes = [[("x", ())], [("a", (0,))], [("c", (0,)), ("from-a", (1,))]]
    work = {"x": 0.0, "a": 5.0, "c": 3.0, "from-a": 1.0}
    assert extract(egraph_of(classes, [0, 0, 0], (2,)), costs(work)).chosen[2].head == "c"
    both = extract(egraph_of(classes, [0, 0, 0], (1, 2)), costs(work))
    assert both.chosen[2].head == "from-a"
    assert (both.before, both.after) == (8.0, 6.0)


def test_a_second_reader_sends_a_value_through_memory() -> None:
    classes = [[("x", ())], [("a", (0,))], [("b", (1,))], [("c", (1,)), ("again", (0,))]]
    work = {"x": 0.0, "a": 1.0, "b": 1.0, "c": 1.0, "again": 2.0}
    cheap = extract(egraph_of(classes, [0, 0, 0, 0], (2, 3)), costs(work))
    assert cheap.chosen[3].head == "c"
    dear = extract(egraph_of(classes, [0, 0, 0, 0], (2, 3)), costs(work, stored=10.0))
    assert dear.chosen[3].head == "again"


def test_no_choice_reads_itself() -> None:
    """add-zero puts x + 0 into the class of x: free here, and still not chosen."""
    classes = [[("x", ()), ("plus-zero", (0, 1))], [("zero", ())], [("f", (0,))]]
    egraph = egraph_of(classes, [0, 0, 0], (2,))
    chosen = extract(egraph, costs({"x": 5.0, "plus-zero": 0.0, "zero": 0.0, "f": 1.0})).chosen
    assert live_classes(egraph.roots, chosen) == [0, 2]


def test_a_banned_node_is_left_whatever_it_costs_and_kept_where_it_is_alone() -> None:
    classes = [[("x", ())], [("bad", (0,)), ("good", (0,))], [("lonely", (0,))]]
    egraph = egraph_of(classes, [0, 0, 0], (1, 2))
    banned = frozenset({ENode("bad", (), 0, (0,)), ENode("lonely", (), 0, (0,))})
    found = extract(egraph, costs({"x": 0.0, "bad": 1.0, "good": 100.0, "lonely": 1.0}), banned)
    assert [n.head for n in found.chosen] == ["x", "good", "lonely"]
    assert (found.before, found.after) == (2.0, 101.0)


def test_all_examples_get_cheaper_or_stay() -> None:
    for name in BY_HAND:
        encoded, egraph = saturated(graph_of(example(name)))
        model = CostModel(encoded.tables, {"n": 64}, COSTS)
        found = extract(egraph, lambda node, m=model, e=egraph: m.cost(node, e))
        assert found.after <= found.before, name
