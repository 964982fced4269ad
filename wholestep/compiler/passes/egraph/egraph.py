"""E-graph data structures: terms of a request, e-nodes, e-classes with canonical numbers, and certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Slot = int | float


class ENode(NamedTuple):
    """One operation over numbered children: a constructor, its attributes as numbers, the id of its type.

    In a request the children are indices of earlier terms; in an e-graph they are e-classes.  A NamedTuple, since
    extraction hashes and compares e-nodes constantly, and a dataclass does that several times slower.
    """

    head: str
    slots: tuple[Slot, ...]
    type: int
    children: tuple[int, ...]


@dataclass(frozen=True)
class Equality:
    """Two terms of a request that are equal by definition."""

    name: str
    left: int
    right: int


@dataclass(frozen=True)
class Firing:
    """A certificate: `rule` unified its two sides with these bindings, in the e-class `root`.

    Instantiating the rule's sides with the bindings gives the two e-nodes, so a chain of firings from a chosen e-node
    to an original one proves the choice.
    """

    rule: str
    root: int
    bindings: tuple[Slot, ...]  # in the order of the rule's variables, classes first


@dataclass(frozen=True)
class EGraph:
    """E-classes (sets of equal e-nodes), numbered deterministically by content."""

    classes: tuple[tuple[ENode, ...], ...]
    originals: tuple[ENode, ...]  # the e-node of each term of the request
    class_of: dict[ENode, int]
    roots: tuple[int, ...]
    firings: tuple[Firing, ...] = ()
    definitions: tuple[tuple[str, ENode, ENode], ...] = ()  # equalities given with the request

    def original_choice(self) -> list[ENode | None]:
        """The first e-node of the program in each e-class; None for an e-class that only rules created."""
        chosen: list[ENode | None] = [None] * len(self.classes)
        for node in self.originals:
            eclass = self.class_of[node]
            if chosen[eclass] is None:
                chosen[eclass] = node
        return chosen

    @property
    def size(self) -> int:
        """The number of e-nodes."""
        return sum(map(len, self.classes))


@dataclass(frozen=True)
class SaturatedTables:
    """All e-nodes with their e-classes, and firings; e-classes have the numbers of the saturation."""

    nodes: dict[ENode, int]
    firings: Sequence[tuple[str, tuple[int, ...], tuple[Slot, ...]]]  # (rule, root and tensor e-classes, others)


def canonical(
    terms: Sequence[ENode], program: int, roots: Sequence[int], equal: Sequence[Equality], rows: SaturatedTables
) -> EGraph:
    """Renumber the e-classes by content: first the e-classes of the terms, in their order, then by smallest e-node.

    The first `program` terms are the program's own.  The numbering does not depend on the order of the saturation.
    """
    located: list[int] = []
    for term in terms:
        located.append(rows.nodes[ENode(term.head, term.slots, term.type, tuple(located[c] for c in term.children))])
    number = _number_classes(located, rows)
    classes: list[list[ENode]] = [[] for _ in number]
    class_of: dict[ENode, int] = {}
    for raw, output in rows.nodes.items():
        node = _renumber(raw, number)
        class_of[node] = number[output]
        classes[number[output]].append(node)
    canonical_terms = [ENode(t.head, t.slots, t.type, tuple(number[located[c]] for c in t.children)) for t in terms]
    firings = sorted((rule, tuple(number[c] for c in tensors), others) for rule, tensors, others in rows.firings)
    return EGraph(
        tuple(tuple(sorted(c)) for c in classes),
        tuple(canonical_terms[:program]),
        class_of,
        tuple(number[located[r]] for r in roots),
        tuple(Firing(rule, tensors[0], (*tensors[1:], *others)) for rule, tensors, others in firings),
        tuple((e.name, canonical_terms[e.left], canonical_terms[e.right]) for e in equal),
    )


def _renumber(node: ENode, number: dict[int, int]) -> ENode:
    return ENode(node.head, node.slots, node.type, tuple(number[c] for c in node.children))


def _number_classes(located: Sequence[int], rows: SaturatedTables) -> dict[int, int]:
    """Every e-class has an e-node over earlier e-classes: number them in rounds, sorted by content within a round."""
    number: dict[int, int] = {}
    for raw in located:
        number.setdefault(raw, len(number))
    unnumbered = [(node, output) for node, output in rows.nodes.items() if output not in number]
    while unnumbered:
        smallest: dict[int, ENode] = {}
        for node, output in unnumbered:
            if all(c in number for c in node.children):
                candidate = _renumber(node, number)
                smallest[output] = min(smallest.get(output, candidate), candidate)
        assert smallest, "an e-node that is not built from the program's terms"
        for output in sorted(smallest, key=lambda c: smallest[c]):
            number[output] = len(number)
        unnumbered = [(node, output) for node, output in unnumbered if output not in number]
    return number
