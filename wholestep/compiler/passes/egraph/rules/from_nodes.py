"""Rules from pairs of graph nodes: two equal computations over the same leaves, written with the builder.

For laws over attributes that are not numbers (slices, tuples of types, sizes): they are instantiated for
the attributes that occur in a program.  The leaves are the rule's tensor variables.  An exact rule holds only for the
types of its nodes; otherwise types are variables, equal if the nodes' types are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output, leaf_name, toposort
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.egraph.encode import Tables, full_value, is_opaque, slots_of
from wholestep.compiler.passes.egraph.rules.expression import constant
from wholestep.compiler.passes.egraph.rules.rule import Exactness, Rule, RuleScope
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable, subtrees
from wholestep.compiler.passes.simplify.fold import fold

Pair = tuple[Node, Node]


@dataclass(frozen=True)
class InstanceLaw:
    """A law as text, and a generator of its instances (pairs of nodes) in a program; `sample`: a program for tests."""

    name: str
    family: str
    law: str
    reason: str
    exactness: Exactness
    pairs: Callable[[IRGraph], Iterable[Pair]]
    sample: Callable[[], IRGraph]
    scope: RuleScope = RuleScope.STEP
    replaces: bool = False

    def rules(self, graph: IRGraph, tables: Tables) -> Iterator[Rule]:
        """One exact rule per distinct pair; pairs of equal trees are skipped."""
        emitted: dict[tuple[Tree, Tree], None] = {}
        for left, right in self.pairs(graph):
            rule = self.rule(left, right, len(emitted), tables)
            if (rule.left, rule.right) not in emitted and rule.left != rule.right:
                emitted[rule.left, rule.right] = None
                yield rule

    def rule(self, left: Node, right: Node, number: int, tables: Tables) -> Rule:
        trees = side(left, tables, LOOSE), side(right, tables)
        return Rule(
            f"{self.name}@{number}",
            self.family,
            *trees,
            self.reason,
            self.exactness,
            scope=self.scope,
            replaces=self.replaces,
            types=exact_types((left, right), tables),
        )


LOOSE = 4 * 1.2e-7  # relative tolerance of constants, four times float32's epsilon: users may round 1/√2 differently


def leaf(name: str, type: TensorType) -> Node:
    """A tensor variable of a law."""
    return b.make("input", (), at.InputAttrs(name, type))


def fold_sizes(node: Node) -> Node:
    """The node with known sizes folded to constants."""
    return fold(IRGraph((Output("y", node),))).outputs[0].node


def side(root: Node, tables: Tables, tolerance: float = 0.0) -> Tree:
    """The tree of a node over its leaves."""
    trees: dict[Node, Tree] = {}
    for node in toposort([root]):
        trees[node] = _tree(node, trees, tables, tolerance)
    return trees[root]


def _tree(node: Node, trees: dict[Node, Tree], tables: Tables, tolerance: float) -> Tree:
    if node.op == "input":
        return Variable(leaf_name(node))
    type = type_name(node, tables)
    value = full_value(node)
    if value is not None:
        is_exact = math.isinf(value) or float(value * 8).is_integer()  # 0.5, 1, 2 are exact, and need no tolerance
        return Number(constant(value), 0.0 if is_exact else tolerance, type)
    opaque = is_opaque(node)
    numbers = (tables.attribute_id(node.op, node.attrs),) if opaque else slots_of(node.op, node.attrs, tables)
    slots = tuple(map(constant, numbers))
    return Apply(node.op, tuple(trees[i] for i in node.inputs), slots, type, opaque)


def type_name(node: Node, tables: Tables) -> str:
    return f"T{tables.type_id(node.result)}"


def exact_types(roots: tuple[Node, ...], tables: Tables) -> tuple[tuple[str, int], ...]:
    """The type ids of all named types and tensors of a rule."""
    pinned: dict[str, int] = {}
    for node in toposort(roots):
        name = type_name(node, tables) if node.op != "input" else leaf_name(node)
        pinned[name] = tables.type_id(node.result)
    used = {t.type for root in roots for t in subtrees(side(root, tables)) if not isinstance(t, Variable)}
    return tuple(sorted((n, i) for n, i in pinned.items() if n[0].islower() or n in used))
