"""A rule as a function of graph nodes, for passes that apply laws greedily instead of saturating an e-graph.

Only rules whose right side is a tensor of the left side, or one op over such tensors: they shrink any program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import constant_value
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.passes.egraph.encode import type_code
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable
from wholestep.compiler.passes.egraph.terms import RANK, TERMS

COMMUTATIVE = ops_with(Trait.COMMUTES)


def rewrite_by(rule: Rule) -> Callable[[Node], Node | None]:
    """The function that rewrites a node by a rule; it returns None if the left side does not match.

    It is called for every node with the op of the left side, so it compares the operands' ops and constants first.
    """
    left, right = rule.left, rule.right
    assert isinstance(left, Apply), rule.law
    ops = [(i, c.op) for i, c in enumerate(left.children) if isinstance(c, Apply)]
    constants = [(i, c.value.literal) for i, c in enumerate(left.children) if isinstance(c, Number)]
    commutes = left.op in COMMUTATIVE

    def rewrite(node: Node) -> Node | None:
        inputs = node.inputs
        for operands in (inputs, inputs[::-1]) if commutes else (inputs,):
            for i, op in ops:
                if operands[i].op != op:
                    break
            else:
                for i, value in constants:
                    if constant_value(operands[i]) != value:
                        break
                else:
                    if (new := _apply(rule, left, right, node, operands)) is not None:
                        return new
        return None

    return rewrite


def _apply(rule: Rule, left: Apply, right: Tree, node: Node, operands: Sequence[Node]) -> Node | None:
    match = _Match()
    if not match.binds(left, node, operands) or (rule.guard and not rule.guard.evaluate(match.numbers)):
        return None
    new = match.build(right, node)
    return new if new.result == node.result else None


@dataclass
class _Match:
    """The bindings of a left side's variables."""

    tensors: dict[str, Node] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)  # packed attributes, and the codes of types

    def binds(self, tree: Tree, node: Node, operands: Sequence[Node]) -> bool:
        """Does the node, with its operands in this order, match the tree?  Binds the variables."""
        match tree:
            case Variable(name):
                return self.tensors.setdefault(name, node) is node
            case Number(value):
                return constant_value(node) == value.literal
        if node.op != tree.op or (tree.slots and node.type.rank > RANK):
            return False
        if tree.type:
            self.numbers[tree.type] = type_code(node.result)
        for slot, number in zip(tree.slots, TERMS[tree.op].write(node.attrs), strict=True):
            if number != (self.numbers.setdefault(slot.variable, number) if slot.variable else slot.evaluate({})):
                return False
        return all(self.binds(child, i, i.inputs) for child, i in zip(tree.children, operands, strict=True))

    def build(self, tree: Tree, root: Node) -> Node:
        """The right side, of the type of the node that it replaces."""
        if isinstance(tree, Variable):
            return self.tensors[tree.name]
        assert isinstance(tree, Apply), f"{tree}: a constant is not built"
        slots = tuple(int(s.evaluate(self.numbers)) for s in tree.slots)
        operands = [self.build(child, root) for child in tree.children]
        return b.make(tree.op, operands, TERMS[tree.op].read(slots, root.type))
