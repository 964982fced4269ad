"""Tables of e-nodes: hash-consing, e-classes in a union-find, congruence, and facts about e-classes.

A row maps a head and its arguments (children, slots, type) to an e-class.  Arguments are canonical after `rebuild`;
between two rebuilds new rows use the e-classes of the last one.  Each row and fact has the round of its last change, so
that a round matches only what is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Arguments = tuple[Any, ...]  # e-classes, attributes, types: integers; constants: floats


@dataclass(slots=True, eq=False)
class Row:
    """An e-node in a table."""

    head: str
    arguments: Arguments
    eclass: int
    changed: int  # the round
    alive: bool = True  # False once it is congruent to another row
    subsumed: bool = False  # rules do not match it any more


@dataclass
class ENodeTables:
    """All rows and facts.  `arities`: the number of children of each head."""

    arities: Mapping[str, int]
    round: int = 0
    updates: int = 0  # changes so far
    rows: dict[str, dict[Arguments, Row]] = field(default_factory=dict)
    members: list[dict[str, list[Row]]] = field(default_factory=list)  # e-class -> head -> rows
    readers: list[list[Row]] = field(default_factory=list)  # e-class -> rows with it as a child
    type_of: dict[int, int] = field(default_factory=dict)
    most_above: dict[int, float] = field(default_factory=dict)
    most_below: dict[int, float] = field(default_factory=dict)
    fact_changed: dict[int, int] = field(default_factory=dict)  # e-class -> the round in which one of its facts changed
    _leader: list[int] = field(default_factory=list)
    _unions: list[tuple[int, int]] = field(default_factory=list)

    def find(self, eclass: int) -> int:
        leader = self._leader
        while leader[eclass] != eclass:
            leader[eclass] = eclass = leader[leader[eclass]]
        return eclass

    def add(self, head: str, arguments: Arguments) -> int:
        """The e-class of an e-node, a new one if the e-node is new."""
        table = self.rows.setdefault(head, {})
        row = table.get(arguments)
        if row is None:
            row = table[arguments] = Row(head, arguments, len(self._leader), self.round)
            self._leader.append(row.eclass)
            self.members.append({head: [row]})
            self.readers.append([])
            for child in {*arguments[: self.arities[head]]}:
                self.readers[child].append(row)
            self.updates += 1
        return row.eclass

    def set_type(self, eclass: int, type: int) -> None:
        if eclass not in self.type_of:
            self._set(self.type_of, eclass, type)

    def limit(self, eclass: int, above: float, below: float) -> None:
        """Lower the bounds on how many times larger and smaller than a value of the program the e-class may be."""
        for bounds, value in ((self.most_above, above), (self.most_below, below)):
            if eclass not in bounds or value < bounds[eclass]:
                self._set(bounds, eclass, value)

    def _set(self, facts: dict[int, int] | dict[int, float], eclass: int, value: int | float) -> None:
        facts[eclass] = value  # type: ignore[assignment]
        self.fact_changed[eclass] = self.round
        self.updates += 1

    def union(self, a: int, b: int) -> None:
        """Make two e-classes equal at the next rebuild."""
        self._unions.append((a, b))

    def subsume(self, row: Row) -> None:
        row.subsumed = True

    def rebuild(self) -> None:
        """Apply the unions, and those that follow by congruence."""
        while self._unions:
            a, b = map(self.find, self._unions.pop())
            if a != b:
                self._merge(min(a, b), max(a, b))
                self.updates += 1

    def _merge(self, leader: int, gone: int) -> None:
        self._leader[gone] = leader
        for head, rows in self.members[gone].items():
            alive = [row for row in rows if row.alive]
            for row in alive:
                row.eclass, row.changed = leader, self.round
            self.members[leader].setdefault(head, []).extend(alive)
        self.members[gone] = {}
        if gone in self.type_of:
            self.set_type(leader, self.type_of.pop(gone))
        if gone in self.most_above:
            self.limit(leader, self.most_above.pop(gone), self.most_below.pop(gone))
        readers, self.readers[gone] = self.readers[gone], []
        for row in readers:
            if row.alive:
                self._canonicalize(row)
                self.readers[leader].append(row)

    def _canonicalize(self, row: Row) -> None:
        table, children = self.rows[row.head], self.arities[row.head]
        arguments = (*(self.find(c) for c in row.arguments[:children]), *row.arguments[children:])
        if arguments == row.arguments:
            return
        del table[row.arguments]
        other = table.get(arguments)
        if other is None:
            row.arguments, row.changed = arguments, self.round
            table[arguments] = row
            return
        row.alive = False
        other.subsumed |= row.subsumed
        self.union(other.eclass, row.eclass)

    @property
    def size(self) -> int:
        """The number of rows."""
        return sum(map(len, self.rows.values()))
