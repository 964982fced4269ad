"""Equality saturation: the rules are applied in rounds until the e-graph stops changing, within a budget.

A round matches all rules against the same e-graph, then applies what matched, then restores congruence.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from wholestep.compiler.passes.egraph.egraph import EGraph, ENode, SaturatedTables, canonical
from wholestep.compiler.passes.egraph.encode import Encoded
from wholestep.compiler.passes.egraph.match import Candidates, Registers, bounds_of, environment, find_matches
from wholestep.compiler.passes.egraph.rules.compile import compile_rules
from wholestep.compiler.passes.egraph.rules.query import ALL, CompiledRule
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.tables import ENodeTables, Row

LARGE_SHARE = 0.05  # share of a round's matches: a rule with more is disabled when the e-graph has grown too much


class SaturationError(Exception):
    """Saturation failed; the text says why.  Never raised to the user: the text becomes part of the report."""


@dataclass(frozen=True)
class Budget:
    """Limits of saturation, in counts and not in seconds: a plan must be a function of the graph.

    Beyond `growth` times the number of terms plus 2000 e-nodes, the rules with most matches are disabled, so that laws
    that never saturate (some about constants) do not crowd out the others.  At twice that size the e-graph is used as
    it is.  Beyond `nodes` saturation fails.  So it does after `seconds`, a limit far above what any program takes.
    """

    rounds: int = 16
    nodes: int = 60_000
    growth: int = 1
    seconds: float = 60.0

    def grown(self, terms: int) -> int:
        """The number of e-nodes beyond which rules are disabled."""
        return self.growth * terms + 2_000


@dataclass(frozen=True)
class Saturated:
    """The saturated e-graph, and statistics of the saturation."""

    egraph: EGraph
    compiled: dict[str, CompiledRule]  # rule name -> its query, needed to read certificates
    matches: dict[str, int]
    rounds: int
    stopped: str  # "saturated", "rounds" or "grown"
    paused: dict[str, int]  # disabled rule -> after which round
    seconds: dict[str, float]


def saturate(encoded: Encoded, rules: Sequence[Rule], budget: Budget) -> Saturated:
    """Apply the rules until nothing changes or the rounds are used up; raises SaturationError if it fails."""
    start = time.perf_counter()
    run = _Saturation(encoded, compile_rules(rules), budget)
    run.insert(encoded, bounded=any(rule.scaled for rule in rules))
    inserted = time.perf_counter()
    rounds, stopped = run.saturate()
    saturated = time.perf_counter()
    terms, program, roots = encoded.terms, encoded.program, encoded.roots
    egraph = canonical(terms, program, roots, encoded.definitions, run.rows())
    _check_types(egraph)
    fired = {rule: n for rule, n in sorted(run.matches.items()) if n}
    seconds = {
        "insert": inserted - start,
        "saturate": saturated - inserted,
        "number": time.perf_counter() - saturated,
    }
    return Saturated(egraph, {r.name: r for r in run.rules}, fired, rounds, stopped, run.paused, seconds)


@dataclass
class _Saturation:
    encoded: Encoded
    rules: list[CompiledRule]
    budget: Budget
    matches: dict[str, int] = field(default_factory=dict)
    paused: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arities = {t.head: len(t.children) for t in self.encoded.terms}
        arities |= {build.head: len(build.children) for rule in self.rules for build in rule.builds}
        self.tables = ENodeTables(arities)
        self.enabled = {rule.name: rule for rule in self.rules}
        self.certificates: dict[str, set[tuple[int | float, ...]]] = {rule.name: set() for rule in self.rules}
        self.deadline = time.monotonic() + self.budget.seconds

    def insert(self, encoded: Encoded, bounded: bool) -> None:
        """Insert the terms; `bounded`: their magnitudes bound the program's values."""
        numbers: list[int] = []
        for term in encoded.terms:
            eclass = self.tables.add(term.head, (*(numbers[c] for c in term.children), *term.slots, term.type))
            numbers.append(eclass)
            self.tables.set_type(eclass, term.type)
            if bounded:
                self.tables.limit(eclass, 1.0, 1.0)
        for equality in encoded.definitions:
            self.tables.union(numbers[equality.left], numbers[equality.right])
        self.tables.rebuild()

    def saturate(self) -> tuple[int, str]:
        """The number of rounds, and why they ended."""
        grown = first = self.budget.grown(len(self.encoded.terms))
        for done in range(1, self.budget.rounds + 1 if self.rules else 0):
            before = self.tables.updates
            counts = self._round(done)
            if self.tables.updates == before:
                return done - 1, "saturated"
            size = self.tables.size
            if size > self.budget.nodes:
                raise SaturationError(f"the e-graph grew beyond {self.budget.nodes} nodes in {done} rounds")
            if size > grown:
                if self.paused and size > 2 * first:
                    return done, "grown"
                self._pause(counts, done)
                if not self.enabled:
                    return done, "saturated"
                grown = size + size // 4
        return (self.budget.rounds, "rounds") if self.rules else (0, "saturated")

    def _round(self, number: int) -> dict[str, int]:
        """One round; returns the number of matches of each rule."""
        most = max((rule.reach for rule in self.enabled.values() if rule.reach != ALL), default=0)
        candidates = Candidates(self.tables, number - 1, most)
        matches: list[tuple[CompiledRule, list[tuple[Row, Registers]]]] = []
        for rule in self.enabled.values():
            matches.append((rule, find_matches(rule, self.tables, candidates)))
            if time.monotonic() > self.deadline:
                raise SaturationError(f"saturation took more than {self.budget.seconds:g} s")
        self.tables.round = number
        bounds = [[bounds_of(rule, m, self.tables) if rule.bound else None for _, m in each] for rule, each in matches]
        for (rule, each), limits in zip(matches, bounds):
            for (row, registers), limit in zip(each, limits):
                self._apply(rule, row, registers, limit)
        self.tables.rebuild()
        counts = {rule.name: len(each) for rule, each in matches}
        for name, count in counts.items():
            self.matches[name] = self.matches.get(name, 0) + count
        return counts

    def _apply(self, rule: CompiledRule, row: Row, registers: Registers, limit: tuple[float, float] | None) -> None:
        """Build the right side, make it equal to the root, and write a certificate."""
        tables = self.tables
        numbers = environment(rule, registers)
        for build in rule.builds:
            children = [registers[c] for c in build.children]
            type = registers[build.type]
            eclass = tables.add(build.head, (*children, *(s.evaluate(numbers) for s in build.slots), type))
            registers[build.result] = eclass
            if build.typed:
                tables.set_type(eclass, int(type))
        if rule.bound is not None:
            assert limit is not None
            tables.limit(int(registers[rule.bound.created]), *limit)
        tables.union(row.eclass, int(registers[rule.right]))
        certificate = tuple([registers[r] for r in rule.certificate])
        fired = self.certificates[rule.name]
        if certificate not in fired:
            fired.add(certificate)
            tables.updates += 1
        if rule.simplifies:
            tables.subsume(row)

    def _pause(self, counts: dict[str, int], done: int) -> None:
        """Disable the rules with a large share of the last round's matches."""
        total = sum(counts.values())
        for rule, count in sorted(counts.items()):
            if count > LARGE_SHARE * total:
                del self.enabled[rule]
                self.paused[rule] = done

    def rows(self) -> SaturatedTables:
        """All rows and certificates."""
        find, arities = self.tables.find, self.tables.arities
        nodes: dict[ENode, int] = {}
        for head, table in self.tables.rows.items():
            n = arities[head]
            for arguments, row in table.items():
                node = ENode(head, arguments[n:-1], int(arguments[-1]), tuple([int(c) for c in arguments[:n]]))
                nodes[node] = row.eclass
        firings: dict[tuple[str, tuple[int, ...], tuple[int | float, ...]], None] = {}
        for rule in self.rules:
            n = len(rule.tensors)
            for certificate in self.certificates[rule.name]:
                tensors = tuple([find(int(c)) for c in certificate[:n]])
                firings[rule.name, tensors, certificate[n:]] = None
        return SaturatedTables(nodes, list(firings))


def _check_types(egraph: EGraph) -> None:
    """Check that equal values have equal types; a violation is a bug in a rule."""
    for nodes in egraph.classes:
        types = {n.type for n in nodes}
        assert len(types) == 1, f"a rule equated terms of different types: {nodes}"
