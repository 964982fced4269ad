"""Why a node is computed as it is: the firings that made what was chosen, from the rules' certificates.

A value of the program was rewritten where its class chose another e-node than the program's own.  That e-node exists
because a rule made it from e-nodes that were there before it: going back from rule to rule ends at the program's own
terms.  The rules found so are checked: an e-graph that is saturated with them alone must prove every equality again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from wholestep.compiler.ir.graph import Node, SourceLine, toposort
from wholestep.compiler.passes.egraph.certificate import Step, steps
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.encode import FULL, OPAQUE, Encoded
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


class Justifier:
    """Finds the firings behind e-nodes."""

    def __init__(self, rewriting: Rewriting) -> None:
        self.rewriting, self.egraph = rewriting, rewriting.egraph
        self.steps = list(steps(self.egraph, rewriting.rules))
        self.own = set(self.egraph.originals)
        self.given = self._given(rewriting.encoded.terms)
        self.maker = self._makers()

    def _given(self, terms: Sequence[ENode]) -> set[ENode]:
        """The e-nodes of the request: the program's, and those of the definitions behind it."""
        placed: list[ENode] = []
        for term in terms:
            children = tuple(self.egraph.class_of[placed[c]] for c in term.children)
            placed.append(ENode(term.head, term.slots, term.type, children))
        return set(placed)

    def _makers(self) -> dict[ENode, Step]:
        """Of every e-node that rules made, the step that could make it first."""
        known, maker = self.given | self._free(), dict[ENode, Step]()
        waiting = self.steps
        while True:
            ready = [s for s in waiting if all(n in known for n in s.needs)]
            if not ready:
                return maker
            for step in ready:
                for node in (*step.makes, *([] if step.right is not None else self._members(step.root))):
                    if node not in known:
                        maker[node] = step
            known |= set(maker)
            done = {id(s) for s in ready}
            waiting = [s for s in waiting if id(s) not in done]

    def _free(self) -> set[ENode]:
        """Numbers and leaves need no reason."""
        return {n for c in self.egraph.classes for n in c if n.head in (FULL, f"{OPAQUE}_0")}

    def _members(self, c: int) -> Sequence[ENode]:
        """A step whose right side is one of its tensors makes two classes one."""
        return self.egraph.classes[c]

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

    def definition_of(self, node: ENode) -> list[str]:
        """How an e-node was given by its definition as well."""
        return sorted({name for name, left, _ in self.egraph.definitions if left == node})

    def behind(self, node: ENode) -> list[Step]:
        """The steps that lead to an e-node, each after those it needs."""
        found: dict[int, Step] = {}
        stack = [(node, False)]
        seen: set[ENode] = set()
        while stack:
            current, done = stack.pop()
            step = self.maker.get(current)
            if step is None or (done and id(step) in found):
                continue
            if done:
                found[id(step)] = step
            elif current not in seen:
                seen.add(current)
                stack.append((current, True))
                stack += [(n, False) for n in step.needs]
        return list(found.values())


def explain(rewriting: Rewriting, ends: Sequence[Node], worker: Worker) -> tuple[list[ExplainedStep], tuple[str, ...]]:
    """The steps behind everything that the nodes are now computed from, and the rules that prove it by themselves."""
    changed = changes(rewriting, ends)
    justifier = Justifier(rewriting)
    found: dict[tuple[str, str, SourceLine | None], ExplainedStep] = {}
    named: set[str] = set()
    for change in changed:
        for name in justifier.definition_of(change.own):
            found.setdefault((name, change.node.name, change.node.line), _defined(name, change.node))
        for choice in justifier.choices(change.chosen):
            for step in justifier.behind(choice):
                named.add(step.rule.name)
                told = _told(step.rule, change.node)
                found.setdefault((told.rule, told.node, told.line), told)
        # A value that a rule found to be one of its own inputs was not made: the rule is in its class.
        for step in justifier.steps:
            if step.left == change.own and (step.right is None or step.right == change.chosen):
                named.add(step.rule.name)
                told = _told(step.rule, change.node)
                found.setdefault((told.rule, told.node, told.line), told)
    rules = _sufficient(rewriting, changed, justifier, named, worker)
    return list(found.values()), rules


def _told(rule: Rule, node: Node) -> ExplainedStep:
    name = f"{node.op} {node.name!r}" if node.name else node.op
    return ExplainedStep(rule.name, rule.law, rule.reason, rule.exactness.value, name, node.line)


def _defined(name: str, node: Node) -> ExplainedStep:
    composite = name.removeprefix("define-")
    told = f"{node.op} {node.name!r}" if node.name else node.op
    return ExplainedStep(name, f"{composite}(...) = its definition", "written out", "reassociating", told, node.line)


def _sufficient(
    rewriting: Rewriting, changed: Sequence[Change], justifier: Justifier, named: set[str], worker: Worker
) -> tuple[str, ...]:
    """The named rules where they prove the changes alone, else with all that fired: no claim is made unchecked."""
    if not changed:
        return ()
    fired = {s.rule.name for s in justifier.steps}
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
