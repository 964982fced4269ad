"""What a graph repeats enters the e-graph once, and every copy is rewritten as if it had entered itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings

import wholestep as ws
from tests.compiler.ir.random_graphs import graphs
from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of
from tests.compiler.passes.egraph.support.common import gelu, silu, softmax
from tests.compiler.targets import HERE, optimize
from tests.models.gpt2 import NAMED, PRIMITIVE, Config, Words, gpt2
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output, SourceLine, rewrite
from wholestep.compiler.ir.types import TensorType, float64
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.egraph.outline import outline
from wholestep.compiler.passes.egraph.report import EGraphReport
from wholestep.compiler.passes.lower.decompose import decompose
from wholestep.compiler.pipeline import Compiler
from wholestep.steps.train import train_graph

CAPACITY = {"n": 64, "batch": 4}
NEVER, ALWAYS = 10**9, 1


def optimized(graph: IRGraph, outline_from: int, before_autodiff: bool = False) -> tuple[IRGraph, EGraphReport]:
    sizes = {s: CAPACITY.get(s, 8) for s in graph.symbols}
    rewritten, report = optimize(graph, sizes, before_autodiff=before_autodiff, outline_from=outline_from)
    assert not report.failure, report.failure
    return rewritten, report


def transformer(words: Words, layers: int, until: str = "") -> IRGraph:
    config = Config(layers=layers, width=8, heads=2, vocabulary=11, context=5)
    graph = train_graph(gpt2(config, words), ws.AdamW())
    if not until:
        return graph
    return Compiler(ws.CompileOptions(egraph=False)).run_stages(graph, HERE, until=until)


def side_by_side(copies: int, part: Callable[[Node, int], Node]) -> IRGraph:
    """Equal parts over leaves of their own."""
    return graph_of(*(part(leaf(f"x{i}", ("n", 5)), i) for i in range(copies)))


# -- whole steps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "until"),
    [(NAMED, ""), (PRIMITIVE, ""), (NAMED, "simplify")],
    ids=["forward, named", "forward, primitive", "full"],  # the whole step has names: the first stage found them
)
def test_a_transformer_becomes_what_it_becomes_without(words: Words, until: str) -> None:
    graph = transformer(words, 4, until)
    (ours, told), (plain, expected) = (optimized(graph, n, before_autodiff=not until) for n in (ALWAYS, NEVER))
    without_constants = [Counter(op for op in ops_of(g) if op not in ("constant", "expand")) for g in (ours, plain)]
    assert without_constants[0] == without_constants[1]
    assert told.enodes < expected.enodes
    if not until:  # on the whole step equal costs may be reached by other rules
        assert told.applied == expected.applied


def test_its_values_are_kept_too() -> None:
    graph = transformer(PRIMITIVE, 2, "simplify")
    rewritten, _ = optimized(graph, ALWAYS)
    assert rewritten is not graph
    assert_same_values(decompose(graph), decompose(rewritten), {"batch": 2}, rtol=1e-6)


@pytest.mark.parametrize("until", ["", "simplify"], ids=["forward", "full"])
def test_more_layers_are_no_more_to_saturate(until: str) -> None:
    few, many = (outline(transformer(PRIMITIVE, layers, until)) for layers in (5, 9))
    assert few is not None
    assert many is not None
    assert len(many.graph.nodes) == len(few.graph.nodes)


def test_small_graphs_and_those_without_repetitions_enter_as_they_are() -> None:
    once = side_by_side(1, lambda x, i: gelu(softmax(x)))
    assert outline(once, fewest=ALWAYS) is None
    often = side_by_side(12, lambda x, i: gelu(softmax(x)))
    assert outline(often, fewest=ALWAYS) is not None
    assert outline(often) is None  # far below the size from which it pays


# -- copies --------------------------------------------------------------------------------------------------------


def copies_of(graph: IRGraph, count: int) -> IRGraph:
    """The graph several times, each over leaves with names of their own."""

    def renamed(copy: int) -> Callable[[Node], Node]:
        def rename(node: Node) -> Node:
            if node.op not in ("input", "parameter", "state"):
                return node
            name = f"{node.attrs.name}.{copy}"  # type: ignore[attr-defined]
            attrs = {**vars(node.attrs), "name": name}
            return Node(node.op, (), type(node.attrs)(**attrs), name, node.line)

        return rename

    parts = [rewrite(graph, renamed(i)) for i in range(count)]
    outputs = tuple(Output(f"{o.name}.{i}", o.node) for i, part in enumerate(parts) for o in part.outputs)
    return IRGraph(outputs, (), tuple(n for part in parts for n in part.inputs))


@given(graphs(max_nodes=8))
@settings(max_examples=20)
def test_copies_of_random_graphs_keep_their_values(graph: IRGraph) -> None:
    several = copies_of(graph, 3)
    rewritten, _ = optimized(several, ALWAYS)
    assert_same_values(decompose(several), decompose(rewritten), rtol=1e-9)


def test_every_copy_is_rewritten_and_counted() -> None:
    graph = side_by_side(7, lambda x, i: b.unary("exp", silu(gelu(x))))
    rewritten, report = optimized(graph, ALWAYS)
    assert Counter(ops_of(rewritten)) == {"input": 7, "gelu": 7, "silu": 7, "exp": 7}
    assert (report.applied["name-gelu"], report.applied["name-silu"]) == (7, 7)
    assert_same_values(graph, rewritten)


def test_copies_in_a_chain_meet_across_their_borders() -> None:
    """Each part ends with a sign and begins with one: whatever the border, no pair is left."""
    x = leaf("x", ("n", 5))
    for i in range(9):
        w = leaf(f"w{i}", ("n", 5))
        x = b.neg(b.unary("tanh", b.mul(b.unary("exp", b.neg(b.sub(x, w))), b.add(w, b.unary("sin", w)))))
    graph = graph_of(x)
    ours, plain = (optimized(graph, n)[0] for n in (ALWAYS, NEVER))
    assert outline(graph, fewest=ALWAYS) is not None
    assert Counter(ops_of(ours)) == Counter(ops_of(plain))
    assert_same_values(graph, ours)


def test_a_part_with_another_constant_is_no_copy() -> None:
    def part(x: Node, i: int) -> Node:
        return b.unary("exp", b.scale(gelu(softmax(x)), 3.0 if i == 4 else 2.0))

    graph = side_by_side(9, part)
    rewritten, _ = optimized(graph, ALWAYS)
    assert ops_of(rewritten).count("gelu") == 9
    assert_same_values(graph, rewritten)


def test_a_leaf_that_two_places_share_in_one_copy_alone_is_told_apart() -> None:
    """x - x is 0 and x - y is not: a copy is one only if it shares what the first one shares."""

    def part(x: Node, i: int) -> Node:
        y = x if i == 0 else leaf(f"y{i}", ("n", 5))
        return b.unary("exp", b.mul(b.add(b.unary("tanh", x), b.unary("tanh", y)), b.sub(b.neg(x), b.neg(y))))

    graph = side_by_side(6, part)
    assert_same_values(graph, optimized(graph, ALWAYS)[0])


def test_names_lines_and_random_keys_are_each_copys_own() -> None:
    def part(x: Node, i: int) -> Node:
        noise = Node("random", (), at.RandomAttrs(f"drop.{i}", TensorType(x.type.shape, float64)))
        gate = Node("sigmoid", (x,), at.NONE, f"gate{i}", SourceLine("user.py", 100 + i))
        hidden = Node("mul", (x, gate), at.NONE, f"hidden{i}", SourceLine("user.py", i))
        return b.unary("exp", b.mul(b.unary("tanh", b.add(hidden, noise)), b.unary("sin", x)))

    rewritten, _ = optimized(side_by_side(6, part), ALWAYS)
    found = [(n.name, n.line) for n in rewritten.nodes if n.op == "silu"]
    assert sorted(found) == [(f"hidden{i}", SourceLine("user.py", i)) for i in range(6)]
    assert sorted(n.attrs.key for n in rewritten.nodes if n.op == "random") == [f"drop.{i}" for i in range(6)]  # type: ignore[attr-defined]


def test_rewriting_does_not_go_around_what_gradients_are_taken_for() -> None:
    outputs = []
    for i in range(6):
        x = leaf(f"x{i}", ("n", 5))
        h = b.unary("sigmoid", b.unary("tanh", x))
        loss = b.sum_axes(b.mul(b.unary("sin", b.unary("tanh", x)), b.mul(b.unary("tanh", x), h)), (0, 1))
        outputs += [Node("item", (Node("gradient", (loss, h), at.NONE),), at.ItemAttrs(0)), loss]
    graph = graph_of(*outputs)
    assert outline(graph, fewest=ALWAYS) is not None
    rewritten, _ = optimized(graph, ALWAYS, before_autodiff=True)
    assert "silu" not in ops_of(rewritten)
    assert_same_values(expand_gradients(graph), expand_gradients(rewritten))


def test_a_graph_that_nothing_improves_is_given_back_as_it_is() -> None:
    graph = side_by_side(6, lambda x, i: b.unary("exp", b.unary("sin", b.unary("tanh", b.mul(x, b.unary("cos", x))))))
    assert outline(graph, fewest=ALWAYS) is not None
    assert optimized(graph, ALWAYS)[0] is graph
