"""No chain of rewrites leaves the range of the dtype either: every class of a saturated e-graph holds a normal number.

What one law keeps, several after another may lose: each moves a factor past a tensor, and the factors multiply.  So
random programs of products, quotients and sums are saturated, and every value that could be chosen, not only what was
chosen, is computed at magnitudes from one end of the range to the other: where all values of the program lie within
`MARGIN_BELOW` and `MARGIN_ABOVE` of the ends, each of them is a normal number of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.compiler.passes.common import graph_of
from tests.compiler.targets import HERE
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.printer import print_graph
from wholestep.compiler.ir.semantics.values import VALUES, StepValues
from wholestep.compiler.ir.types import TensorType, float32
from wholestep.compiler.passes.egraph import optimize
from wholestep.compiler.passes.egraph.egraph import ENode
from wholestep.compiler.passes.egraph.encode import FULL
from wholestep.compiler.passes.egraph.optimize import Request, Rewriting, rewrite_by_equality
from wholestep.compiler.passes.egraph.rebuild import make_node
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.rules.rule_set import rules_for

TINY, LARGEST = (float(x) for x in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
MARGIN_BELOW, MARGIN_ABOVE = 4.0, 512.0  # within those of tests/fuzz/graphs.py
DRAWS = 1500  # of the inputs' magnitudes, for each program
WIDTH = 3
PROGRAMS = 60


# -- programs: every row of a tensor is a draw of its own ----------------------------------------------------------


def tensor(name: str, *shape: int) -> Node:
    return b.make("input", (), at.InputAttrs(name, TensorType((DRAWS, *shape), float32)))


def number(rng: Random) -> float:
    """Most are such as programs have; some are extreme."""
    return float(f"{rng.uniform(1, 9):.2f}e{rng.choice([rng.randint(-3, 3), rng.randint(-30, 30)])}")


def product(x: Node, w: Node) -> Node:
    row = b.reshape(x, (DRAWS, 1, WIDTH))
    return b.reshape(b.matmul(row, w), (DRAWS, WIDTH))


def along_rows(x: Node, mean: bool) -> Node:
    total = b.sum_axes(x, (1,))
    return b.restore_axes(b.scale(total, 1.0 / WIDTH) if mean else total, (1,), x.type.shape)


def drawn(rng: Random, length: int) -> IRGraph:
    """A chain that goes on with its last values more often than with others."""
    values = [tensor(n, WIDTH) for n in "xyz"[: rng.randint(1, 3)]]
    w = tensor("w", WIDTH, WIDTH)

    def one() -> Node:
        return rng.choice(values[-3:] if rng.random() < 0.7 else values)

    steps = {
        "times": lambda: b.scale(one(), number(rng)),
        "over": lambda: (lambda x: b.div(x, b.full_like(x, number(rng))))(one()),
        "under": lambda: (lambda x: b.div(b.full_like(x, number(rng)), x))(one()),
        "mul": lambda: b.mul(one(), one()),
        "div": lambda: b.div(one(), one()),
        "add": lambda: b.add(one(), one()),
        "recip": lambda: b.unary("recip", one()),
        "root": lambda: b.unary("sqrt", one()),
        "sum": lambda: along_rows(one(), mean=False),
        "mean": lambda: along_rows(one(), mean=True),
        "product": lambda: product(one(), w),
    }
    shares = {"times": 6, "over": 4, "mul": 8, "div": 2, "product": 2}
    for _ in range(length):
        name = rng.choices(list(steps), [shares.get(s, 1) for s in steps])[0]
        values.append(steps[name]())
    return graph_of(*values[-3:])


# -- values --------------------------------------------------------------------------------------------------------


def feed_of(graph: IRGraph, rng: np.random.Generator) -> dict[str, Any]:
    """Positive, so that nothing cancels; the rows of a tensor are of all magnitudes."""
    out = {}
    for node in graph.inputs:
        shape = tuple(int(e) for e in node.type.shape)
        exponent = rng.uniform(-37, 37, (DRAWS, *[1] * (len(shape) - 1)))
        moderate = rng.random(exponent.shape) < 0.4
        name = attrs_of(node, at.InputAttrs).name
        out[name] = 10.0 ** np.where(moderate, exponent / 20, exponent) * rng.uniform(1, 2, shape)
    return out


def computed(node: Node, inputs: list[Any], feed: dict[str, Any]) -> Any:
    """In float64, which has room for what float32 does not hold."""
    with np.errstate(all="ignore"):
        return np.asarray(VALUES[node.op](StepValues(feed, {}, {}, {}, 0, 0), node.attrs, *inputs), np.float64)


def rows_within(value: Any, below: float, above: float) -> Any:
    size = np.abs(value).reshape(DRAWS, -1)
    return ((size >= TINY * below) & (size <= LARGEST / above)).all(axis=1)


def is_judged(node: Node) -> bool:
    return node.op != "constant" and not (node.op == "expand" and node.inputs[0].op == "constant")


def rows_that_stand(graph: IRGraph, feed: dict[str, Any]) -> Any:
    """The draws where every value of the program is in range, with the margins."""
    values: dict[Node, Any] = {}
    stand = np.ones(DRAWS, bool)
    for node in graph.nodes:
        values[node] = computed(node, [values[i] for i in node.inputs], feed)
        if is_judged(node):
            stand &= rows_within(values[node], MARGIN_BELOW, MARGIN_ABOVE)
    return stand


def values_of_classes(found: Rewriting, feed: dict[str, Any]) -> Iterator[tuple[ENode, Any]]:
    """Each class that is no number, once: an e-node of it, and its value."""
    egraph, tables = found.egraph, found.encoded.tables
    values: dict[int, Any] = {}
    nodes: dict[int, Node] = {}
    waiting = list(range(len(egraph.classes)))
    while waiting:
        left = []
        for c in waiting:
            choice = next((n for n in egraph.classes[c] if all(k in values for k in n.children)), None)
            if choice is None:
                left.append(c)
                continue
            nodes[c] = make_node(choice, [nodes[k] for k in choice.children], tables, ("", None))
            if choice.head == FULL:
                values[c] = np.full(tuple(int(e) for e in nodes[c].type.shape), float(choice.slots[0]))
            else:
                values[c] = computed(nodes[c], [values[k] for k in choice.children], feed)
                yield choice, values[c]
        assert len(left) < len(waiting), "a class without a value"
        waiting = left


def lost_values(graph: IRGraph) -> tuple[int, int, list[str]]:
    """How many draws and classes were looked at, and the classes that are out of range."""
    feed = feed_of(graph, np.random.default_rng(0))
    stand = rows_that_stand(graph, feed)
    found = rewrite_by_equality(graph, Request({}, HERE.costs), {}) if stand.any() else None
    if found is None:
        return 0, 0, []
    classes, lost = 0, []
    for choice, value in values_of_classes(found, feed):
        classes += 1
        out = stand & ~rows_within(value, 1.0, 1.0)
        if out.any():
            first = value[int(np.argmax(out))].ravel()[0]
            lost.append(f"{choice.head} of class {found.egraph.class_of[choice]} is {first:.3g}")
    return int(stand.sum()), classes, lost


# -- tests ---------------------------------------------------------------------------------------------------------


def test_no_chain_of_laws_leaves_the_range() -> None:
    rows, made = 0, 0
    for seed in range(PROGRAMS):
        rng = Random(seed)
        graph = drawn(rng, rng.randint(3, 9))
        stood, classes, lost = lost_values(graph)
        assert not lost, f"program {seed}: {lost[0]}, and {len(lost) - 1} more\n{print_graph(graph)}"
        rows, made = rows + stood, made + classes
    assert rows > 300 * PROGRAMS
    assert made > 8 * PROGRAMS


def found_by_fuzzing() -> IRGraph:
    """c·x·(c·x·x): two factors of 565 moved, one after the other, and what was left became 0."""
    x, y = tensor("x", WIDTH), tensor("y", WIDTH)
    xy = b.mul(x, y)
    scaled = b.div(xy, b.full_like(xy, 0.00177))
    cube = b.mul(b.mul(scaled, x), scaled)
    other = b.div(cube, b.full_like(cube, 6.51e-21))
    return graph_of(b.mul(b.mul(scaled, x), y), cube, b.div(b.full_like(other, 6.34e8), other))


def many_factors() -> IRGraph:
    """Each factor may move past the others; all of them may not."""
    values = [b.scale(tensor(n, WIDTH), 0.02) for n in "xyzuv"]
    out = values[0]
    for value in values[1:]:
        out = b.mul(out, value)
    return graph_of(out)


@pytest.mark.parametrize("make", [found_by_fuzzing, many_factors])
def test_factors_that_several_laws_move_add_up(make: Callable[[], IRGraph]) -> None:
    stood, classes, lost = lost_values(make())
    assert not lost
    assert stood > 10
    assert classes > 5


def test_without_their_sum_the_range_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step alone is moderate still."""

    def unlimited(*given: Any) -> list[Rule]:
        return [replace(rule, scaled=None) if rule.scaled else rule for rule in rules_for(*given)]

    monkeypatch.setattr(optimize, "rules_for", unlimited)
    assert lost_values(many_factors())[2]
