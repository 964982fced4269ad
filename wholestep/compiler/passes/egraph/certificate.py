"""Proof certificates: a rule firing, reconstructed as the two e-nodes that it made equal in the saturated e-graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode, Firing, Slot
from wholestep.compiler.passes.egraph.encode import FULL, op_of
from wholestep.compiler.passes.egraph.rebuild import live_classes
from wholestep.compiler.passes.egraph.rules.compile import compile_rule
from wholestep.compiler.passes.egraph.rules.query import CompiledRule
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable

Compiled = Mapping[str, CompiledRule]  # rule name -> its query


@dataclass(frozen=True)
class ProofStep:
    """One equality: in the e-class `root`, `rule` made `right` equal to `left`."""

    rule: Rule
    root: int
    left: ENode
    right: ENode | None  # None: the right side is one of the left side's tensors
    inside: tuple[int, ...]  # the e-classes of the ops below the root of the right side
    needs: tuple[ENode, ...] = ()  # the e-nodes that the left side matched, its root last
    makes: tuple[ENode, ...] = ()  # the e-nodes of the right side, its root last

    @property
    def is_cyclic(self) -> bool:
        """Does the right side contain its own e-class?  Such a step proves an equality but cannot be computed."""
        return self.root in self.inside


def steps(
    egraph: EGraph, rules: Sequence[Rule], compiled: Compiled | None = None, within: Container[int] | None = None
) -> Iterator[ProofStep]:
    """The proof steps of the firings of these rules; only in the e-classes `within`, if given."""
    rule_of = {rule.name: (rule, compiled[rule.name] if compiled is not None else compile_rule(rule)) for rule in rules}
    for firing in egraph.firings:
        if firing.rule in rule_of and (within is None or firing.root in within):
            yield _step(egraph, *rule_of[firing.rule], firing)


def find_changed_classes(egraph: EGraph, chosen: Sequence[ENode]) -> dict[int, int]:
    """The live e-classes whose chosen e-node differs from the program's own, each with a count of 1."""
    original = egraph.original_choice()
    return {c: 1 for c in live_classes(egraph.roots, chosen) if chosen[c] != original[c]}


def count_applications(
    egraph: EGraph, rules: Sequence[Rule], compiled: Compiled, chosen: Sequence[ENode], changed: Mapping[int, int]
) -> dict[str, int]:
    """How often each rule created the chosen e-node; `changed`: e-classes, and the number of copies of each.

    Only the last step counts: a product that was regrouped and then commuted counts for commutativity.
    """
    original = egraph.original_choice()
    applications: set[tuple[str, int]] = set()
    for step in steps(egraph, rules, compiled, changed):
        if step.right == chosen[step.root] if step.right is not None else step.left == original[step.root]:
            applications.add((step.rule.name.split("@")[0], step.root))
    for name, _, definition in egraph.definitions:
        c = egraph.class_of[definition]
        if c in changed and chosen[c] == definition:
            applications.add((name, c))
    counts: Counter[str] = Counter()
    for rule, c in sorted(applications):
        counts[rule] += changed[c]
    return dict(counts)


def find_replaced_nodes(egraph: EGraph, rules: Sequence[Rule], compiled: Compiled) -> frozenset[ENode]:
    """The e-nodes that stability rules (`replaces`) ban: in an e-class where one fired, all but its right sides.

    The other e-nodes of such a class derive from the left side and are no more stable, except for composites, which are
    stable, and for the definition of a right side.
    """
    fired = [s for s in steps(egraph, [r for r in rules if r.replaces], compiled) if not s.is_cyclic]
    left = {s.left for s in fired}
    allowed_in: dict[int, set[ENode]] = {}
    for step in fired:
        if step.right is not None and step.right not in left:
            allowed_in.setdefault(step.root, set()).add(step.right)
    for _, name, definition in egraph.definitions:
        c = egraph.class_of[name]
        if name in allowed_in.get(c, ()):
            allowed_in[c].add(definition)
    return frozenset(
        n for c, nodes in allowed_in.items() for n in egraph.classes[c] if n not in nodes and not _is_named(n)
    )


def _is_named(node: ENode) -> bool:
    op = op_of(node.head)
    return op in OPS and OPS[op].family is Family.COMPOSITE


def _step(egraph: EGraph, rule: Rule, compiled: CompiledRule, firing: Firing) -> ProofStep:
    tensors = len(compiled.tensors) - 1
    bound = dict(zip(compiled.tensors[1:], firing.bindings[:tensors], strict=True))
    numbers = dict(zip(compiled.numbers, firing.bindings[tensors:], strict=True))
    instance = _Instance(egraph, compiled, bound, numbers)
    left = instance.node("left", rule.left)
    assert left is not None
    right = instance.node("right", rule.right)
    inside = tuple(egraph.class_of[n] for n in instance.right[: -1 if right is not None else None])
    return ProofStep(rule, firing.root, left, right, inside, tuple(instance.left), tuple(instance.right))


@dataclass
class _Instance:
    """Both sides of a rule, instantiated with the bindings of one firing."""

    egraph: EGraph
    compiled: CompiledRule
    tensors: Mapping[str, Slot]
    numbers: Mapping[str, Slot]

    def __post_init__(self) -> None:
        self.left: list[ENode] = []  # in post-order: children first
        self.right: list[ENode] = []

    def node(self, side: str, tree: Tree, parent: Apply | None = None, position: int = 0) -> ENode | None:
        if isinstance(tree, Variable):
            return None
        node = self._node(side, tree, parent, position)
        (self.left if side == "left" else self.right).append(node)
        return node

    def _node(self, side: str, tree: Apply | Number, parent: Apply | None, position: int) -> ENode:
        type = int(self.numbers[self.compiled.type_name(side, tree, parent, position)])
        if isinstance(tree, Number):
            return ENode(FULL, (self._value(tree),), type, ())
        children = tuple(self._class(side, child, tree, i) for i, child in enumerate(tree.children))
        return ENode(tree.head, tuple(s.evaluate(self._name_of()) for s in tree.slots), type, children)

    def _class(self, side: str, tree: Tree, parent: Apply, position: int) -> int:
        if isinstance(tree, Variable):
            return int(self.tensors[f"x_{tree.name}"])
        node = self.node(side, tree, parent, position)
        assert node is not None
        return self.egraph.class_of[node]

    def _value(self, number: Number) -> float:
        if number in self.compiled.loose:
            return self.numbers[self.compiled.loose[number]]
        return float(number.value.evaluate(self._name_of()))

    def _name_of(self) -> Mapping[str, Slot]:
        return self.numbers
