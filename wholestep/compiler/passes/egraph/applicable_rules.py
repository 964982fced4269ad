"""Rule pruning by reachability: rules that can never match a program are not matched.

A fixpoint over edges (op, operand position, op of the operand).  A rule can match once all edges of its left side
exist; then the edges of its right side may exist too, and an op that reads one side may read the other.  Attributes and
types are ignored: a conservative over-approximation, so no rule that could match is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from wholestep.compiler.passes.egraph.egraph import ENode, Equality
from wholestep.compiler.passes.egraph.encode import FULL
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable, subtrees


def reachable_rules(rules: Sequence[Rule], terms: Sequence[ENode], equal: Sequence[Equality]) -> list[Rule]:
    """The rules that may match, in their order."""
    edges = _Edges(terms)
    for e in equal:
        edges.add_equality(terms[e.left].head, terms[e.right].head)
    patterns = {rule.name: _pattern(rule) for rule in rules}
    applicable: dict[str, None] = {}
    changed = True
    while changed:
        changed = edges.propagate_equalities()
        for name, pattern in patterns.items():
            if name in applicable or pattern.fits(edges):
                changed |= name not in applicable
                applicable[name] = None
                changed |= pattern.add_to(edges)
    return [r for r in rules if r.name in applicable]


def only_reorders(rule: Rule) -> bool:
    """Does a rule only exchange the operands of one op?  Such rules alone cannot improve a program."""
    left, right = rule.left, rule.right
    if not isinstance(left, Apply) or not isinstance(right, Apply) or left.op != right.op:
        return False
    plain = all(isinstance(c, Variable) for c in left.children)
    return plain and left.slots == right.slots and sorted(map(str, left.children)) == sorted(map(str, right.children))


class _Edges:
    """The edges that may exist.  `numbers`: the constants of the program; None once rules may compute new constants."""

    def __init__(self, terms: Sequence[ENode]) -> None:
        self.heads = {t.head for t in terms}
        self.read: dict[tuple[str, int], set[str]] = {}
        self.numbers: set[float] | None = {float(t.slots[0]) for t in terms if t.head == FULL}
        self.equal: dict[str, set[str]] = {}
        for t in terms:
            for i, child in enumerate(t.children):
                self.read.setdefault((t.head, i), set()).add(terms[child].head)

    def add_equality(self, a: str, b: str) -> bool:
        if b in self.equal.get(a, ()):
            return False
        self.equal.setdefault(a, set()).add(b)
        self.equal.setdefault(b, set()).add(a)
        return True

    def add(self, head: str, position: int, children: Iterable[str]) -> bool:
        readable = self.read.setdefault((head, position), set())
        before = len(readable)
        readable.update(children)
        return len(readable) > before

    def propagate_equalities(self) -> bool:
        """Propagate equalities: a position that reads one of two equal ops may read both; did anything change?"""
        grew = False
        for readable in self.read.values():
            before = len(readable)
            readable.update(*[self.equal[a] for a in readable if a in self.equal])
            grew |= len(readable) > before
        return grew

    def has_number(self, number: Number) -> bool:
        literal = number.value.literal
        if self.numbers is None or literal is None:
            return True
        wanted = float(literal)
        return any(abs(n - wanted) <= abs(wanted) * number.tolerance for n in self.numbers)


class _Pattern:
    """The edges that a rule needs and creates."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        matched_trees = (rule.left,) if rule.second_left is None else (rule.left, rule.second_left)
        self.needs = [edge for tree in matched_trees for edge in _edges(tree)]
        self.heads = {t.head for tree in matched_trees for t in subtrees(tree) if isinstance(t, Apply)}
        self.gives = list(_edges(rule.right))
        self.makes_numbers = any(isinstance(t, Number) for t in subtrees(rule.right))
        self.variable_positions = {c.name: (head, i) for head, i, c in self.needs if isinstance(c, Variable)}

    def fits(self, edges: _Edges) -> bool:
        if not isinstance(self.rule.left, Apply) or not self.heads <= edges.heads:
            return False  # a left side that is a bare constant (as in some instances of a law) matches nothing useful
        return all(self._find(edges, head, i, child) for head, i, child in self.needs)

    def _find(self, edges: _Edges, head: str, i: int, child: Tree) -> bool:
        if isinstance(child, Variable):
            return True
        readable = edges.read.get((head, i), ())
        if isinstance(child, Number):
            return FULL in readable and edges.has_number(child)
        return child.head in readable

    def add_to(self, edges: _Edges) -> bool:
        """Add what may exist once the rule has matched; was anything new?"""
        grew = False
        for head, i, child in self.gives:
            grew |= head not in edges.heads
            edges.heads.add(head)
            grew |= edges.add(head, i, self._may_be(edges, child))
        if edges.numbers is not None and self.makes_numbers:
            edges.numbers, grew = None, True
        root = self.rule.left
        assert isinstance(root, Apply)
        for head in self._may_be(edges, self.rule.right):
            grew |= head not in edges.heads
            edges.heads.add(head)
            grew |= edges.add_equality(root.head, head)
        return grew

    def _may_be(self, edges: _Edges, tree: Tree) -> set[str]:
        """The ops that a subtree of the right side may be."""
        if isinstance(tree, Variable):
            position = self.variable_positions.get(tree.name)
            return set(edges.heads) if position is None else set(edges.read.get(position, ()))
        return {FULL} if isinstance(tree, Number) else {tree.head}


_CACHE_CAPACITY = 4096  # entries of the cache below; it is cleared when full
_pattern_cache: dict[
    int, _Pattern
] = {}  # id of a rule -> its pattern, which keeps the rule alive: laws are shared by programs


def _pattern(rule: Rule) -> _Pattern:
    pattern = _pattern_cache.get(id(rule))
    if pattern is None:
        pattern = _Pattern(rule)
        if not rule.types:  # rules with exact types belong to one program
            if len(_pattern_cache) >= _CACHE_CAPACITY:
                _pattern_cache.clear()
            _pattern_cache[id(rule)] = pattern
    return pattern


def _edges(tree: Tree) -> Iterator[tuple[str, int, Tree]]:
    for t in subtrees(tree):
        if isinstance(t, Apply):
            yield from ((t.head, i, child) for i, child in enumerate(t.children))
