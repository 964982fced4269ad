"""Explanations: the chain of rule firings that justifies each rewrite, reconstructed from certificates.

A value was rewritten if its e-class chose another e-node than the program's own.  A rule created that e-node from
existing e-nodes; following rules backwards ends at the program's own terms.  Invariant: the rules that are named are
verified, by saturating an e-graph with them alone, which must prove every equality again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wholestep.compiler.ir.graph import Node, SourceLine, toposort
from wholestep.compiler.passes.egraph.certificate import steps
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.encode import Encoded
from wholestep.compiler.passes.egraph.optimize import Rewriting
from wholestep.compiler.passes.egraph.rebuild import live_classes
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.saturate import Budget, saturate


@dataclass(frozen=True)
class ExplainedStep:
    """One application of a rule in the explanation of a node."""

    rule: str
    law: str
    reason: str
    exactness: str  # the rule's numeric class
    node: str  # the node of the program whose value was rewritten
    line: SourceLine | None  # the line in the user's code


@dataclass(frozen=True)
class Change:
    """A rewritten value: the original and the chosen e-node of its e-class, and the node that it belongs to."""

    term: int  # index of the program's term
    own: ENode
    chosen: ENode
    node: Node


def changes(rewriting: Rewriting, ends: Sequence[Node]) -> list[Change]:
    """The rewritten values that the given nodes of the original graph are now computed from."""
    by_class: dict[int, Change] = {}
    for node, term in _values(rewriting, ends):
        original = rewriting.egraph.originals[term]
        c = rewriting.egraph.class_of[original]
        chosen = rewriting.chosen[c]
        if chosen != original and c not in by_class:
            by_class[c] = Change(term, original, chosen, node)
    return list(by_class.values())


def _values(rewriting: Rewriting, ends: Sequence[Node]) -> Iterator[tuple[Node, int]]:
    """The nodes of the original graph that are still computed, each with its term in the e-graph."""
    term_of, outlined, replay = rewriting.encoded.term_of, rewriting.outlined, rewriting.replay
    if outlined is None or replay is None:
        class_of = {n: rewriting.egraph.class_of[rewriting.egraph.originals[t]] for n, t in term_of.items()}
        live = set(live_classes([class_of[n] for n in ends if n in class_of], rewriting.chosen))
        yield from ((n, term_of[n]) for n in toposort(ends) if n in term_of and class_of[n] in live)
        return
    first = {
        n: block.nodes[i]
        for block in outlined.blocks
        for copy in block.places
        for i, n in enumerate(copy[: block.region])
    }
    for n in replay.below([outlined.program.number[end] for end in ends]):
        node = first.get(n)
        if node is not None and node in term_of:
            yield outlined.program.nodes[n], term_of[node]


@dataclass(frozen=True)
class Link:
    """Why two e-nodes of an e-class are equal: a rule fired, or one is the other's definition."""

    name: str
    rule: Rule | None  # None: a definition
    left: ENode
    right: ENode | None  # None: a variable of the rule, bound to this e-class itself
    needs: tuple[ENode, ...] = ()  # the e-nodes that the rule matched below `left`
    makes: tuple[ENode, ...] = ()  # the e-nodes that the rule created below `right`


class Justifier:
    """Finds the links that connect e-nodes with the program.

    The *anchor* of an e-class represents it to its readers: the program's first e-node in it, else the first that a
    rule created.  An e-node is connected if a chain of links leads from the anchor to it, and each link is over
    connected e-nodes only.
    """

    def __init__(self, rewriting: Rewriting) -> None:
        self.rewriting, self.egraph = rewriting, rewriting.egraph
        self.originals = set(self.egraph.originals)
        self.exists = dict.fromkeys(self._request_nodes(rewriting.encoded.terms))
        self.anchored: set[int] = set()
        self.reason: dict[
            ENode, tuple[Link, ENode | None] | None
        ] = {}  # connected e-node -> its link, and the e-node at the other end
        for node in self.exists:
            if self.egraph.class_of[node] not in self.anchored:
                self._anchor(node, None)
        self._connect(self._links())

    def _request_nodes(self, terms: Sequence[ENode]) -> list[ENode]:
        """The e-nodes of the request: first the program's e-nodes, then the e-nodes of the definitions."""
        nodes: list[ENode] = []
        for term in terms:
            children = tuple(self.egraph.class_of[nodes[c]] for c in term.children)
            nodes.append(ENode(term.head, term.slots, term.type, children))
        return nodes

    def _links(self) -> list[Link]:
        links = [Link(name, None, left, right) for name, left, right in self.egraph.definitions]
        for step in steps(self.egraph, self.rewriting.rules, self.rewriting.compiled):
            below = step.makes if step.right is None else step.makes[:-1]
            links.append(Link(step.rule.name, step.rule, step.left, step.right, step.needs[:-1], below))
        return links

    def _anchor(self, node: ENode, link: Link | None) -> None:
        self.anchored.add(self.egraph.class_of[node])
        self.reason[node] = None if link is None else (link, link.left)

    def _connect(self, links: list[Link]) -> None:
        """Connect e-nodes in rounds, so that no justification is circular."""
        while True:
            ready = [k for k in links if k.left in self.exists and all(n in self.reason for n in k.needs)]
            before = len(self.reason)
            for link in ready:
                self._use(link)
            if len(self.reason) == before:
                return

    def _use(self, link: Link) -> None:
        for node in link.makes:
            if node not in self.exists:
                self.exists[node] = None
            if self.egraph.class_of[node] not in self.anchored:
                self._anchor(node, link)
        if any(n not in self.reason for n in link.makes):
            return  # an operand is in an e-class with another anchor: wait until it is connected to that
        ends = [n for n in (link.left, link.right) if n is not None]
        for end in ends:
            self.exists.setdefault(end)
        if link.right is None:  # equal to the anchor of the e-class
            self.reason.setdefault(link.left, (link, None))
            return
        connected = [n for n in ends if n in self.reason]
        for end in ends if connected else ():
            self.reason.setdefault(end, (link, connected[0]))

    def choices(self, node: ENode) -> Iterator[ENode]:
        """A chosen e-node and the chosen e-nodes below it, down to e-nodes of the program."""
        seen, stack = {node}, [node]
        while stack:
            current = stack.pop()
            yield current
            for child in (self.rewriting.chosen[c] for c in current.children):
                if child not in seen and child not in self.originals:
                    seen.add(child)
                    stack.append(child)

    def justification(self, node: ENode) -> list[Link]:
        """The links that connect an e-node with the program, in dependency order."""
        links: dict[int, Link] = {}
        seen: set[ENode] = set()
        stack = [(node, False)]
        while stack:
            current, done = stack.pop()
            reason = self.reason.get(current)
            if reason is None:
                continue
            link, origin = reason
            if done:
                links.setdefault(id(link), link)
            elif current not in seen:
                seen.add(current)
                stack.append((current, True))
                stack += [(n, False) for n in (*link.needs, *link.makes, *([] if origin is None else [origin]))]
        return list(links.values())


def explain(rewriting: Rewriting, ends: Sequence[Node]) -> tuple[list[ExplainedStep], tuple[str, ...]]:
    """The steps that justify all rewritten values below the nodes, and the rules that suffice to prove them."""
    changed = changes(rewriting, ends)
    justifier = Justifier(rewriting)
    explained: dict[tuple[str, str, SourceLine | None], ExplainedStep] = {}
    named: set[str] = set()
    for change in changed:
        for node in (change.own, *justifier.choices(change.chosen)):
            for link in justifier.justification(node):
                named.add(link.name)
                step = _explain_link(link, change.node)
                explained.setdefault((step.rule, step.node, step.line), step)
    return list(explained.values()), _sufficient_rules(rewriting, changed, named)


def _explain_link(link: Link, node: Node) -> ExplainedStep:
    name = f"{node.op} {node.name!r}" if node.name else node.op
    if link.rule is not None:
        rule = link.rule
        return ExplainedStep(rule.name, rule.law, rule.reason, rule.exactness.value, name, node.line)
    law = f"{link.name.removeprefix('define-')}(...) = its definition"
    return ExplainedStep(link.name, law, "written out", "reassociating", name, node.line)


def _sufficient_rules(rewriting: Rewriting, changed: Sequence[Change], named: set[str]) -> tuple[str, ...]:
    """The named rules if they alone prove the changes, else all rules that fired: every claim is verified."""
    if not changed:
        return ()
    fired = {f.rule for f in rewriting.egraph.firings}
    for names in (named, fired):
        rules = [r for r in rewriting.rules if r.name in names]
        if proves(rewriting, changed, rules):
            return tuple(r.name for r in rules)
    raise AssertionError("the rules that fired do not prove the changes")


def proves(rewriting: Rewriting, changed: Sequence[Change], rules: Sequence[Rule]) -> bool:
    """Does saturation with these rules alone make every changed value equal to its chosen e-node?"""
    encoded, chosen = _with_choices(rewriting, changed)
    egraph = saturate(encoded, rules, Budget()).egraph
    where = [egraph.class_of[n] for n in egraph.originals]
    return all(where[change.term] == where[at] for change, at in zip(changed, chosen))


def _with_choices(rewriting: Rewriting, changed: Sequence[Change]) -> tuple[Encoded, list[int]]:
    """The program's terms, followed by the terms of the chosen e-nodes."""
    encoded = rewriting.encoded
    numbers = {term: i for i, term in enumerate(encoded.terms)}
    at = _ChosenTerms(rewriting.egraph, rewriting.chosen, numbers)
    chosen = [at.term(rewriting.egraph.class_of[change.chosen]) for change in changed]
    return replace(encoded, terms=tuple(numbers), program=len(numbers)), chosen


@dataclass
class _ChosenTerms:
    """The chosen e-nodes as terms of a request."""

    egraph: EGraph
    chosen: Sequence[ENode]
    numbers: dict[ENode, int]

    def __post_init__(self) -> None:
        self.term_of_class: dict[int, int] = {}

    def term(self, c: int) -> int:
        stack = [c]
        while stack:
            c = stack[-1]
            node = self.chosen[c]
            missing = [x for x in node.children if x not in self.term_of_class]
            if missing:
                stack += missing
                continue
            stack.pop()
            term = ENode(node.head, node.slots, node.type, tuple(self.term_of_class[x] for x in node.children))
            self.term_of_class[c] = self.numbers.setdefault(term, len(self.numbers))
        return self.term_of_class[c]
