"""Why a node is computed as it is: the firings that made what was chosen, from the rules' certificates.

A value of the program was rewritten where its class chose another e-node than the program's own.  That e-node exists
because a rule made it from e-nodes that were there before it: going back from rule to rule ends at the program's own
terms.  The rules found so are checked: an e-graph that is saturated with them alone must prove every equality again.
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
from wholestep.compiler.passes.egraph.saturate import Budget, Worker, saturate


@dataclass(frozen=True)
class ExplainedStep:
    """One use of a rule in the story of a node."""

    rule: str
    law: str
    reason: str
    exactness: str  # the rule's numeric class
    node: str  # the node of the program whose value it is about
    line: SourceLine | None  # the user's own line


@dataclass(frozen=True)
class Change:
    """A value that is computed in another way: its class, and the node and line that it belongs to."""

    term: int  # of the program's own
    own: ENode
    chosen: ENode
    node: Node


def changes(rewriting: Rewriting, ends: Sequence[Node]) -> list[Change]:
    """The rewritten values that the given nodes of the graph before are now computed from."""
    found: dict[int, Change] = {}
    for node, term in _values(rewriting, ends):
        own = rewriting.egraph.originals[term]
        c = rewriting.egraph.class_of[own]
        chosen = rewriting.chosen[c]
        if chosen != own and c not in found:
            found[c] = Change(term, own, chosen, node)
    return list(found.values())


def _values(rewriting: Rewriting, ends: Sequence[Node]) -> Iterator[tuple[Node, int]]:
    """The nodes of the graph before that are still computed, each with the term that stands for it in the e-graph."""
    term_of, outlined, replay = rewriting.encoded.term_of, rewriting.outlined, rewriting.replay
    if outlined is None or replay is None:
        class_of = {n: rewriting.egraph.class_of[rewriting.egraph.originals[t]] for n, t in term_of.items()}
        live = set(live_classes([class_of[n] for n in ends if n in class_of], rewriting.chosen))
        yield from ((n, term_of[n]) for n in toposort(ends) if n in term_of and class_of[n] in live)
        return
    first = {
        n: block.nodes[i]
        for block in outlined.blocks
        for place in block.places
        for i, n in enumerate(place[: block.region])
    }
    for n in replay.below([outlined.program.number[end] for end in ends]):
        node = first.get(n)
        if node is not None and node in term_of:
            yield outlined.program.nodes[n], term_of[node]


@dataclass(frozen=True)
class Link:
    """Why two e-nodes of a class are equal: a rule fired, or one is the other's definition."""

    name: str
    rule: Rule | None  # None: a definition
    left: ENode
    right: ENode | None  # None: one of the rule's tensors, which is this class itself
    needs: tuple[ENode, ...] = ()  # what the rule found below `left`
    makes: tuple[ENode, ...] = ()  # what it made below `right`


class Justifier:
    """Finds the links that connect e-nodes with the program.

    What a class means to its readers is its *anchor*: the program's first e-node in it, else the first that a rule
    made.  An e-node is connected once a chain of links leads from the anchor to it, each of them over e-nodes that are
    connected themselves.
    """

    def __init__(self, rewriting: Rewriting) -> None:
        self.rewriting, self.egraph = rewriting, rewriting.egraph
        self.own = set(self.egraph.originals)
        self.exists = dict.fromkeys(self._request_nodes(rewriting.encoded.terms))
        self.anchored: set[int] = set()
        self.reason: dict[ENode, tuple[Link, ENode | None] | None] = {}  # connected -> by which link, from where
        for node in self.exists:
            if self.egraph.class_of[node] not in self.anchored:
                self._anchor(node, None)
        self._connect(self._links())

    def _request_nodes(self, terms: Sequence[ENode]) -> list[ENode]:
        """The e-nodes of the request: the program's, and those of the definitions behind it."""
        placed: list[ENode] = []
        for term in terms:
            children = tuple(self.egraph.class_of[placed[c]] for c in term.children)
            placed.append(ENode(term.head, term.slots, term.type, children))
        return placed

    def _links(self) -> list[Link]:
        found = [Link(name, None, left, right) for name, left, right in self.egraph.definitions]
        for step in steps(self.egraph, self.rewriting.rules, self.rewriting.emitted):
            below = step.makes if step.right is None else step.makes[:-1]
            found.append(Link(step.rule.name, step.rule, step.left, step.right, step.needs[:-1], below))
        return found

    def _anchor(self, node: ENode, link: Link | None) -> None:
        self.anchored.add(self.egraph.class_of[node])
        self.reason[node] = None if link is None else (link, link.left)

    def _connect(self, waiting: list[Link]) -> None:
        """In rounds, so that a link never rests on what it explains."""
        while True:
            ready = [k for k in waiting if k.left in self.exists and all(n in self.reason for n in k.needs)]
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
            return  # what is made over an e-node of another class waits until that one is known to be equal to it
        ends = [n for n in (link.left, link.right) if n is not None]
        for end in ends:
            self.exists.setdefault(end)
        if link.right is None:  # equal to the class as its readers know it
            self.reason.setdefault(link.left, (link, None))
            return
        connected = [n for n in ends if n in self.reason]
        for end in ends if connected else ():
            self.reason.setdefault(end, (link, connected[0]))

    def choices(self, node: ENode) -> Iterator[ENode]:
        """A chosen e-node, and those that were chosen below it as far as the program has none of its own."""
        seen, stack = {node}, [node]
        while stack:
            current = stack.pop()
            yield current
            for child in (self.rewriting.chosen[c] for c in current.children):
                if child not in seen and child not in self.own:
                    seen.add(child)
                    stack.append(child)

    def behind(self, node: ENode) -> list[Link]:
        """The links that connect an e-node with the program, each after those it rests on."""
        found: dict[int, Link] = {}
        seen: set[ENode] = set()
        stack = [(node, False)]
        while stack:
            current, done = stack.pop()
            reason = self.reason.get(current)
            if reason is None:
                continue
            link, origin = reason
            if done:
                found.setdefault(id(link), link)
            elif current not in seen:
                seen.add(current)
                stack.append((current, True))
                stack += [(n, False) for n in (*link.needs, *link.makes, *([] if origin is None else [origin]))]
        return list(found.values())


def explain(rewriting: Rewriting, ends: Sequence[Node], worker: Worker) -> tuple[list[ExplainedStep], tuple[str, ...]]:
    """The steps behind everything that the nodes are now computed from, and the rules that prove it by themselves."""
    changed = changes(rewriting, ends)
    justifier = Justifier(rewriting)
    found: dict[tuple[str, str, SourceLine | None], ExplainedStep] = {}
    named: set[str] = set()
    for change in changed:
        for node in (change.own, *justifier.choices(change.chosen)):
            for link in justifier.behind(node):
                named.add(link.name)
                told = _explain_link(link, change.node)
                found.setdefault((told.rule, told.node, told.line), told)
    return list(found.values()), _sufficient(rewriting, changed, named, worker)


def _explain_link(link: Link, node: Node) -> ExplainedStep:
    name = f"{node.op} {node.name!r}" if node.name else node.op
    if link.rule is not None:
        rule = link.rule
        return ExplainedStep(rule.name, rule.law, rule.reason, rule.exactness.value, name, node.line)
    law = f"{link.name.removeprefix('define-')}(...) = its definition"
    return ExplainedStep(link.name, law, "written out", "reassociating", name, node.line)


def _sufficient(rewriting: Rewriting, changed: Sequence[Change], named: set[str], worker: Worker) -> tuple[str, ...]:
    """The named rules where they prove the changes alone, else all that fired: no claim is made unchecked."""
    if not changed:
        return ()
    fired = {f.rule for f in rewriting.egraph.firings}
    for names in (named, fired):
        rules = [r for r in rewriting.rules if r.name in names]
        if proves(rewriting, changed, rules, worker):
            return tuple(r.name for r in rules)
    raise AssertionError("the rules that fired do not prove what they made")


def proves(rewriting: Rewriting, changed: Sequence[Change], rules: Sequence[Rule], worker: Worker) -> bool:
    """Does an e-graph with these rules alone make every changed value equal to what was chosen for it?"""
    encoded, chosen = _with_choices(rewriting, changed)
    egraph = saturate(encoded, rules, Budget(), worker).egraph
    where = [egraph.class_of[n] for n in egraph.originals]
    return all(where[change.term] == where[at] for change, at in zip(changed, chosen))


def _with_choices(rewriting: Rewriting, changed: Sequence[Change]) -> tuple[Encoded, list[int]]:
    """The program's terms and, behind them, those of what was chosen."""
    encoded = rewriting.encoded
    numbers = {term: i for i, term in enumerate(encoded.terms)}
    at = _Chosen(rewriting.egraph, rewriting.chosen, numbers)
    chosen = [at.term(rewriting.egraph.class_of[change.chosen]) for change in changed]
    return replace(encoded, terms=tuple(numbers), program=len(numbers)), chosen


@dataclass
class _Chosen:
    """The chosen e-nodes as terms of a request."""

    egraph: EGraph
    chosen: Sequence[ENode]
    numbers: dict[ENode, int]

    def __post_init__(self) -> None:
        self.known: dict[int, int] = {}

    def term(self, c: int) -> int:
        stack = [c]
        while stack:
            c = stack[-1]
            node = self.chosen[c]
            waiting = [x for x in node.children if x not in self.known]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            term = ENode(node.head, node.slots, node.type, tuple(self.known[x] for x in node.children))
            self.known[c] = self.numbers.setdefault(term, len(self.numbers))
        return self.known[c]
