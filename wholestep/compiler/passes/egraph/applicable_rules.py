"""Which rules can ever match a program, told from its edges alone: the others are never given to egglog.

An edge is (op, position, op of what is read there).  A rule can match once the program has every edge of its left side;
then the edges of its right side may come to exist, and whoever reads one side may read the other.  This goes on until
nothing is added.  Attributes and types are not looked at, so more is allowed than will happen, never less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from wholestep.compiler.passes.egraph.egraph import ENode, Equality
from wholestep.compiler.passes.egraph.encode import FULL
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable, subtrees


def reachable_rules(rules: Sequence[Rule], terms: Sequence[ENode], equal: Sequence[Equality]) -> list[Rule]:
    """The rules that may match."""
    edges = _Edges(terms)
    for e in equal:
        edges.same(terms[e.left].head, terms[e.right].head)
    patterns = {rule.name: _pattern(rule) for rule in rules}
    kept: dict[str, None] = {}
    changed = True
    while changed:
        changed = edges.settle()
        for name, pattern in patterns.items():
            if name in kept or pattern.fits(edges):
                changed |= name not in kept
                kept[name] = None
                changed |= pattern.add_to(edges)
    return [r for r in rules if r.name in kept]


def only_reorders(rule: Rule) -> bool:
    """Does a rule but exchange the operands of one op?  Alone, such rules change nothing."""
    left, right = rule.left, rule.right
    if not isinstance(left, Apply) or not isinstance(right, Apply) or left.op != right.op:
        return False
    plain = all(isinstance(c, Variable) for c in left.children)
    return plain and left.slots == right.slots and sorted(map(str, left.children)) == sorted(map(str, right.children))


class _Edges:
    """What may be read where.  `numbers`: the constants that there are; None once rules may compute others."""

    def __init__(self, terms: Sequence[ENode]) -> None:
        self.heads = {t.head for t in terms}
        self.read: dict[tuple[str, int], set[str]] = {}
        self.numbers: set[float] | None = {float(t.slots[0]) for t in terms if t.head == FULL}
        self.equal: dict[str, set[str]] = {}
        for t in terms:
            for i, child in enumerate(t.children):
                self.read.setdefault((t.head, i), set()).add(terms[child].head)

    def same(self, a: str, b: str) -> bool:
        if b in self.equal.get(a, ()):
            return False
        self.equal.setdefault(a, set()).add(b)
        self.equal.setdefault(b, set()).add(a)
        return True

    def add(self, head: str, position: int, children: Iterable[str]) -> bool:
        known = self.read.setdefault((head, position), set())
        before = len(known)
        known.update(children)
        return len(known) > before

    def settle(self) -> bool:
        """Where one of two equal ops is read, the other may be."""
        grew = False
        for known in self.read.values():
            before = len(known)
            known.update(*[self.equal[a] for a in known if a in self.equal])
            grew |= len(known) > before
        return grew

    def has_number(self, number: Number) -> bool:
        literal = number.value.literal
        if self.numbers is None or literal is None:
            return True
        wanted = float(literal)
        return any(abs(n - wanted) <= abs(wanted) * number.tolerance for n in self.numbers)


class _Pattern:
    """A rule as edges."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        looked_for = (rule.left,) if rule.beside is None else (rule.left, rule.beside)
        self.needs = [edge for tree in looked_for for edge in _edges(tree)]
        self.heads = {t.head for tree in looked_for for t in subtrees(tree) if isinstance(t, Apply)}
        self.gives = list(_edges(rule.right))
        self.makes_numbers = any(isinstance(t, Number) for t in subtrees(rule.right))
        self.where = {c.name: (head, i) for head, i, c in self.needs if isinstance(c, Variable)}

    def fits(self, edges: _Edges) -> bool:
        if not isinstance(self.rule.left, Apply) or not self.heads <= edges.heads:
            return False  # a left side that is a number says nothing: instances of a law may come to that
        return all(self._find(edges, head, i, child) for head, i, child in self.needs)

    def _find(self, edges: _Edges, head: str, i: int, child: Tree) -> bool:
        if isinstance(child, Variable):
            return True
        known = edges.read.get((head, i), ())
        if isinstance(child, Number):
            return FULL in known and edges.has_number(child)
        return child.head in known

    def add_to(self, edges: _Edges) -> bool:
        """What exists once it has matched; did anything come new?"""
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
            grew |= edges.same(root.head, head)
        return grew

    def _may_be(self, edges: _Edges, tree: Tree) -> set[str]:
        """The ops that may stand at a place of the right side."""
        if isinstance(tree, Variable):
            place = self.where.get(tree.name)
            return set(edges.heads) if place is None else set(edges.read.get(place, ()))
        return {FULL} if isinstance(tree, Number) else {tree.head}


_MOST_KNOWN = 4096
_known: dict[int, _Pattern] = {}  # by the id of its rule, which it keeps: laws are the same in every program


def _pattern(rule: Rule) -> _Pattern:
    found = _known.get(id(rule))
    if found is None:
        found = _Pattern(rule)
        if not rule.types:  # else it is of one program
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[id(rule)] = found
    return found


def _edges(tree: Tree) -> Iterator[tuple[str, int, Tree]]:
    for t in subtrees(tree):
        if isinstance(t, Apply):
            yield from ((t.head, i, child) for i, child in enumerate(t.children))
