"""Saturation by its definition: every rule is matched against all e-nodes in every round, without indices or deltas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wholestep.compiler.passes.egraph.egraph import EGraph, ENode, SaturatedTables, canonical
from wholestep.compiler.passes.egraph.encode import Encoded
from wholestep.compiler.passes.egraph.rules.compile import compile_rule
from wholestep.compiler.passes.egraph.rules.expression import MOST_ABOVE, MOST_BELOW
from wholestep.compiler.passes.egraph.rules.query import ANY_CLASS, Atom, CompiledRule
from wholestep.compiler.passes.egraph.rules.rule import Rule

Key = tuple[str, tuple[int, ...], tuple[Any, ...]]  # head, children, slots and type
Match = dict[int, Any]  # register -> value


@dataclass
class PlainSaturation:
    """`nodes` maps e-nodes to e-classes; `equal` leads from an e-class to a smaller one."""

    nodes: dict[Key, int] = field(default_factory=dict)
    count: int = 0
    equal: dict[int, int] = field(default_factory=dict)
    subsumed: set[Key] = field(default_factory=set)
    types: dict[int, int] = field(default_factory=dict)
    above: dict[int, float] = field(default_factory=dict)
    below: dict[int, float] = field(default_factory=dict)
    fired: set[tuple[str, tuple[int, ...], tuple[Any, ...]]] = field(default_factory=set)

    def find(self, eclass: int) -> int:
        return eclass if eclass not in self.equal else self.find(self.equal[eclass])

    def add(self, head: str, children: Sequence[int], rest: Sequence[Any]) -> int:
        key = head, tuple(children), tuple(rest)
        if key not in self.nodes:
            self.nodes[key] = self.count
            self.count += 1
        return self.nodes[key]

    def union(self, a: int, b: int) -> None:
        a, b = sorted((self.find(a), self.find(b)))
        if a != b:
            self.equal[b] = a

    def close(self) -> None:
        """Congruence: e-nodes over equal children are equal, until nothing changes."""
        before = -1
        while len(self.equal) != before:
            before, old = len(self.equal), self.nodes
            self.nodes = {}
            self.subsumed = {self._renamed(key) for key in self.subsumed}
            for key, eclass in old.items():
                new = self._renamed(key)
                self.union(eclass, self.nodes.setdefault(new, self.find(eclass)))
        self.nodes = {key: self.find(eclass) for key, eclass in self.nodes.items()}
        self.types = {self.find(c): type for c, type in self.types.items()}
        self.above, self.below = self._least(self.above), self._least(self.below)

    def _least(self, bounds: dict[int, float]) -> dict[int, float]:
        """The lowest bound of each e-class."""
        least: dict[int, float] = {}
        for eclass, value in bounds.items():
            least[self.find(eclass)] = min(value, least.get(self.find(eclass), value))
        return least

    def _renamed(self, key: Key) -> Key:
        return key[0], tuple(map(self.find, key[1])), key[2]

    # -- a round -------------------------------------------------------------------------------------------------

    def round(self, rules: Sequence[CompiledRule]) -> None:
        found = [(rule, match, self._bounds(rule, match)) for rule in rules for match in self.matches(rule)]
        for rule, match, bounds in found:
            names = {name: match[register] for name, register in rule.environment}
            for build in rule.builds:
                slots = [slot.evaluate(names) for slot in build.slots]
                new = self.add(build.head, [match[c] for c in build.children], [*slots, match[build.type]])
                match[build.result] = new
                if build.typed:
                    self.types.setdefault(new, match[build.type])
            if rule.bound is not None and bounds is not None:
                created = match[rule.bound.created]
                self.above[created] = min(self.above.get(created, bounds[0]), bounds[0])
                self.below[created] = min(self.below.get(created, bounds[1]), bounds[1])
            self.union(match[0], match[rule.right])
            values = [match[r] for r in rule.certificate]
            n = len(rule.tensors)
            self.fired.add((rule.name, tuple(values[:n]), tuple(values[n:])))
            if rule.simplifies:
                self.subsumed.add(match[-1])
        self.close()

    def matches(self, rule: CompiledRule) -> Iterator[Match]:
        partial: list[Match] = [{i: type for i, type in enumerate(rule.exact) if type}]
        for atom in rule.atoms:
            keys = [key for key in self.nodes if key[0] == atom.head and key not in self.subsumed]
            partial = [new for match in partial for key in keys if (new := self._joined(atom, key, match))]
        for match in partial:
            types = {tensor: self.types.get(match[tensor]) for tensor, _, _ in rule.typed}
            if all(types[t] is not None and match.setdefault(r, types[t]) == types[t] for t, r, _ in rule.typed) and (
                self._holds(rule, match)
            ):
                yield match

    def _joined(self, atom: Atom, key: Key, match: Match) -> Match | None:
        arguments, eclass = (*key[1], *key[2]), self.nodes[key]
        new = {**match, atom.result: eclass}
        if -1 not in new:
            new[-1] = key  # the root
        wanted = match.get(atom.eclass, eclass) if atom.eclass != ANY_CLASS else eclass
        same = all(new.setdefault(register, arguments[p]) == arguments[p] for p, register in (*atom.binds, *atom.equal))
        literal = all(arguments[p] == value for p, value in atom.literals)
        repeated = all(arguments[p] == arguments[q] for p, q in atom.same)
        return new if wanted == eclass and same and literal and repeated else None

    def _holds(self, rule: CompiledRule, match: Match) -> bool:
        names = {name: match[register] for name, register in rule.environment}
        return (
            all(self.types.get(match[tensor]) == type for tensor, type in rule.exact_tensors)
            and all(abs(match[register] - value) < most for register, value, most in rule.close)
            and (rule.guard is None or rule.guard.evaluate(names))
            and (rule.bound is None or self._bounds(rule, match) is not None)
        )

    def _bounds(self, rule: CompiledRule, match: Match) -> tuple[float, float] | None:
        if rule.bound is None or match[rule.bound.source] not in self.above:
            return None
        size = abs(rule.bound.factor.evaluate({name: match[register] for name, register in rule.environment}))
        above, below = self.above[match[rule.bound.source]] * size, self.below[match[rule.bound.source]] / size
        return (above, below) if above <= MOST_ABOVE and below <= MOST_BELOW else None


def plainly_saturated(encoded: Encoded, rules: Sequence[Rule], rounds: int) -> EGraph:
    state, numbers = PlainSaturation(), list[int]()
    for term in encoded.terms:
        numbers.append(state.add(term.head, [numbers[c] for c in term.children], [*term.slots, term.type]))
        state.types[numbers[-1]] = term.type
        if any(rule.scaled for rule in rules):
            state.above[numbers[-1]] = state.below[numbers[-1]] = 1.0
    for equality in encoded.definitions:
        state.union(numbers[equality.left], numbers[equality.right])
    state.close()
    compiled = [compile_rule(rule) for rule in rules]
    for _ in range(rounds):
        state.round(compiled)
    nodes = {ENode(head, rest[:-1], rest[-1], children): c for (head, children, rest), c in state.nodes.items()}
    firings = {(rule, tuple(map(state.find, tensors)), others) for rule, tensors, others in state.fired}
    rows = SaturatedTables(nodes, list(firings))
    return canonical(encoded.terms, encoded.program, encoded.roots, encoded.definitions, rows)
