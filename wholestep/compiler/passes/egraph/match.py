"""Matching: the bindings of rules whose left sides exist since the last round.

A match is new if one of its rows or facts is.  Candidates for a root are the rows at most as many levels above a change
as the rule is deep; the matches found from them are filtered by the rounds of their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wholestep.compiler.passes.egraph.rules.expression import MOST_ABOVE, MOST_BELOW
from wholestep.compiler.passes.egraph.rules.query import ALL, ANY_CLASS, Atom, CompiledRule
from wholestep.compiler.passes.egraph.tables import Arguments, ENodeTables, Row

Registers = list[Any]  # e-classes, attributes, types: integers; constants: floats


class Candidates:
    """The rows of each head at most this number of levels above a change, nearest first."""

    def __init__(self, tables: ENodeTables, since: int, most: int) -> None:
        self.since = since
        self._tables, self._most = tables, most
        self._rows: dict[tuple[str, int], Sequence[Row]] = {}
        self._near: dict[str, list[tuple[int, Row]]] = {}
        if since:
            self._find_near()

    def rows(self, head: str, reach: int) -> Sequence[Row]:
        """The rows at most `reach` levels above a change; all rows in the first round."""
        key = head, reach
        if key not in self._rows:
            if not self.since or reach == ALL:
                rows = list(self._tables.rows.get(head, {}).values())
            else:
                rows = [row for distance, row in self._near.get(head, ()) if distance <= reach]
            self._rows[key] = [row for row in rows if not row.subsumed]
        return self._rows[key]

    def _find_near(self) -> None:
        tables, since = self._tables, self.since
        level = {row: None for table in tables.rows.values() for row in table.values() if row.changed >= since}
        for eclass, changed in tables.fact_changed.items():
            if changed >= since:
                level |= {row: None for rows in tables.members[eclass].values() for row in rows if row.alive}
        near = dict.fromkeys(level, 0)
        classes: set[int] = set()
        for distance in range(1, self._most + 1):
            above = dict.fromkeys(row.eclass for row in level)
            level = {
                reader: None
                for eclass in above
                if eclass not in classes
                for reader in tables.readers[eclass]
                if reader.alive and reader not in near
            }
            classes.update(above)
            near.update(dict.fromkeys(level, distance))
        for row, distance in near.items():
            self._near.setdefault(row.head, []).append((distance, row))


def find_matches(rule: CompiledRule, tables: ENodeTables, candidates: Candidates) -> list[tuple[Row, Registers]]:
    """The root and the registers of each new match."""
    root, *atoms = rule.atoms
    members = tables.members
    matches: list[tuple[Row, Registers]] = []
    for row in candidates.rows(root.head, rule.reach):
        arguments = row.arguments
        for position, head in rule.operands:
            if head not in members[arguments[position]]:
                break
        else:
            if _fits(root, arguments, rule.exact):
                registers = [*rule.exact]
                registers[0] = row.eclass
                for position, register in root.binds:
                    registers[register] = arguments[position]
                matches += [
                    (row, match) for match in _extend(rule, atoms, (row.changed, registers), tables, candidates)
                ]
    return matches


def _extend(
    rule: CompiledRule, atoms: Sequence[Atom], start: tuple[int, Registers], tables: ENodeTables, candidates: Candidates
) -> list[Registers]:
    """The new matches from one root: the partial matches are joined with the rows of each atom in turn."""
    partial = [start]
    for atom in atoms:
        partial = _join(atom, partial, tables)
        if not partial:
            return []
    return [
        registers
        for changed, registers in partial
        if max(changed, _facts_changed(rule, registers, tables)) >= candidates.since and _holds(rule, registers, tables)
    ]


def _join(atom: Atom, partial: Sequence[tuple[int, Registers]], tables: ENodeTables) -> list[tuple[int, Registers]]:
    out = []
    for changed, registers in partial:
        if atom.eclass == ANY_CLASS:
            rows = list(tables.rows.get(atom.head, {}).values())
        else:
            rows = tables.members[registers[atom.eclass]].get(atom.head, [])
        for row in rows:
            if row.alive and not row.subsumed and _fits(atom, row.arguments, registers):
                extended = registers.copy()
                extended[atom.result] = row.eclass
                for position, register in atom.binds:
                    extended[register] = row.arguments[position]
                out.append((max(changed, row.changed), extended))
    return out


def _fits(atom: Atom, arguments: Arguments, registers: Sequence[Any]) -> bool:
    for position, value in atom.literals:
        if arguments[position] != value:
            return False
    for position, register in atom.equal:
        if arguments[position] != registers[register]:
            return False
    for position, other in atom.same:  # noqa: SIM110  a generator would double the time
        if arguments[position] != arguments[other]:
            return False
    return True


def _holds(rule: CompiledRule, registers: Registers, tables: ENodeTables) -> bool:
    """Do the conditions of the rule hold?  Binds the types that it reads from `type_of`."""
    for tensor, register, bound in rule.typed:
        type = tables.type_of.get(registers[tensor])
        if type is None or (bound and registers[register] != type):
            return False
        registers[register] = type
    if any(tables.type_of.get(registers[tensor]) != type for tensor, type in rule.exact_tensors):
        return False
    if not all(abs(registers[register] - value) < most for register, value, most in rule.close):
        return False
    if rule.guard is not None and not rule.guard.evaluate(environment(rule, registers)):
        return False
    return rule.bound is None or bounds_of(rule, registers, tables) is not None


def bounds_of(rule: CompiledRule, registers: Registers, tables: ENodeTables) -> tuple[float, float] | None:
    """The bounds of the value that the rule creates; None if too far from the bounds of the program's values."""
    assert rule.bound is not None
    source = registers[rule.bound.source]
    size = abs(rule.bound.factor.evaluate(environment(rule, registers)))
    if source not in tables.most_above or size == 0:
        return None
    above, below = tables.most_above[source] * size, tables.most_below[source] / size
    return (above, below) if above <= MOST_ABOVE and below <= MOST_BELOW else None


def environment(rule: CompiledRule, registers: Registers) -> dict[str, Any]:
    """The numbers that expressions of the rule are over."""
    return {name: registers[register] for name, register in rule.environment}


def _facts_changed(rule: CompiledRule, registers: Registers, tables: ENodeTables) -> int:
    """The last round in which a fact that the rule reads changed."""
    return max([tables.fact_changed.get(registers[tensor], -1) for tensor in rule.facts], default=-1)
