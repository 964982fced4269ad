"""DAG extraction: chooses one e-node per e-class, minimizing the cost over all roots, with shared values paid once.

Local search with reference counts.  It starts from the original program and from the cheapest trees, and improves each
one e-class at a time until no move helps, once readers first and once operands first, since the order decides which of
two exclusive moves is found.  The cheapest result wins; ties keep the original program, so that no rewrite happens
without a gain (`least_gain`).  Invariant: all orders are by number, so the choice is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wholestep.compiler.passes.egraph.cost import Cost
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.rebuild import live_classes

SMALLEST_GAIN = 1e-9  # relative to the total cost; less is rounding error
WORTHWHILE = 1e-5  # relative to the total cost: rewrites that save less, such as one scalar operation, are not applied
SWEEPS = 8  # upper limit; a search ends as soon as a sweep changes nothing


@dataclass(frozen=True)
class Extraction:
    """The chosen e-node of every e-class, and the modelled cost of the program before and after."""

    chosen: tuple[ENode, ...]
    before: float
    after: float


def extract(
    egraph: EGraph, cost: Callable[[ENode], Cost], banned: frozenset[ENode] = frozenset(), least_gain: float = 0.0
) -> Extraction:
    """The cheapest choice that the search finds, if it saves `least_gain` of the total cost; else the original program.

    `banned` e-nodes are chosen only if there is no alternative.
    """
    problem = Problem(egraph, cost, banned)
    original = _complete(problem, egraph.original_choice())
    unchanged = Selection(problem, list(original))
    best: Selection | None = None
    for start in (original, _cheapest_trees(problem)):
        for readers_first in (True, False):
            selection = Selection(problem, list(start))
            selection.improve(readers_first)
            if best is None or selection.total < best.total - SMALLEST_GAIN * best.total:
                best = selection
    assert best is not None
    if unchanged.total - best.total < least_gain * unchanged.total:
        best = unchanged
    best.restore_originals(egraph.original_choice())
    return Extraction(tuple(best.chosen), unchanged.cost(), best.cost())


BAN = 2.0**40  # nanoseconds, more than any program costs; a power of two, so that subtracting it is exact


@dataclass
class Problem:
    """The e-graph with precomputed costs of all e-nodes."""

    egraph: EGraph
    cost: Callable[[ENode], Cost]
    banned: frozenset[ENode]
    work: dict[ENode, float] = field(default_factory=dict)
    stored: dict[ENode, float] = field(default_factory=dict)
    children: dict[ENode, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for nodes in self.egraph.classes:
            for node in nodes:
                cost = self.cost(node)
                self.work[node] = cost.work + (BAN if node in self.banned else 0.0)
                self.stored[node] = cost.stored
                self.children[node] = tuple(dict.fromkeys(node.children))


def _complete(problem: Problem, chosen: Sequence[ENode | None]) -> list[ENode]:
    """Complete a partial choice: the remaining e-classes take their cheapest trees over the fixed e-classes."""
    return _cheapest_trees(problem, fixed={c: n for c, n in enumerate(chosen) if n is not None})


def _cheapest_trees(problem: Problem, fixed: dict[int, ENode] | None = None) -> list[ENode]:
    """Bottom-up fixpoint: each e-class takes the e-node with the cheapest tree, as if nothing were shared."""
    fixed = fixed or {}
    classes = problem.egraph.classes
    best: list[tuple[float, ENode] | None] = [None] * len(classes)
    changed = True
    while changed:
        changed = False
        for c, nodes in enumerate(classes):
            for node in (fixed[c],) if c in fixed else nodes:
                below = [best[child] for child in problem.children[node]]
                if any(x is None for x in below):
                    continue
                total = problem.work[node] + sum(x[0] for x in below if x is not None)
                current = best[c]
                if current is None or total < current[0] * (1 - 1e-12):
                    best[c] = total, node
                    changed = True
    return [choice[1] for choice in best if choice is not None]


class Selection:
    """A choice with reference counts: the number of chosen readers, and roots, of each e-class."""

    def __init__(self, problem: Problem, chosen: list[ENode]) -> None:
        self.problem, self.chosen = problem, chosen
        self.readers = [0] * len(chosen)
        self.total = 0.0
        for root in problem.egraph.roots:
            self.total += self._add_reader(root)
        self._compute_levels()

    # -- reference counts: each method returns the change of the total cost ---------------------------------------

    def _add_reader(self, c: int) -> float:
        change, stack = 0.0, [c]
        while stack:
            c = stack.pop()
            self.readers[c] += 1
            node = self.chosen[c]
            if self.readers[c] == 1:
                change += self.problem.work[node]
                stack.extend(self.problem.children[node])
            elif self.readers[c] == 2:
                change += self.problem.stored[node]
        return change

    def _drop_reader(self, c: int) -> float:
        change, stack = 0.0, [c]
        while stack:
            c = stack.pop()
            self.readers[c] -= 1
            node = self.chosen[c]
            if self.readers[c] == 0:
                change -= self.problem.work[node]
                stack.extend(self.problem.children[node])
            elif self.readers[c] == 1:
                change -= self.problem.stored[node]
        return change

    def _switch(self, c: int, node: ENode) -> float:
        """Choose `node` in a live e-class."""
        old, change = self.chosen[c], 0.0
        has_several_readers = self.readers[c] > 1
        change -= self.problem.work[old] + (self.problem.stored[old] if has_several_readers else 0.0)
        self.chosen[c] = node
        change += self.problem.work[node] + (self.problem.stored[node] if has_several_readers else 0.0)
        # The new children first, so that a shared child is not dropped and added again.
        for child in self.problem.children[node]:
            change += self._add_reader(child)
        for child in self.problem.children[old]:
            change += self._drop_reader(child)
        return change

    def cost(self) -> float:
        """The cost of the choice without the penalties of banned e-nodes."""
        live = [c for c, n in enumerate(self.readers) if n]
        banned = sum(self.chosen[c] in self.problem.banned for c in live)
        return self.total - BAN * banned if banned else self.total

    # -- the search ----------------------------------------------------------------------------------------------

    def improve(self, readers_first: bool = True) -> None:
        """Sweep over the live e-classes until a sweep changes nothing."""
        for _ in range(SWEEPS):
            if not self._sweep(readers_first):
                break

    def _sweep(self, readers_first: bool) -> bool:
        changed = False
        order = live_classes(self.problem.egraph.roots, self.chosen)
        for c in reversed(order) if readers_first else order:
            if self.readers[c] and len(self.problem.egraph.classes[c]) > 1:
                changed |= self._try_class(c)
        self._optimize_dead_classes()
        return changed

    def _try_class(self, c: int) -> bool:
        changed = False
        for node in self.problem.egraph.classes[c]:
            current = self.chosen[c]
            if node == current or self._reaches(node, c):
                continue
            change = self._switch(c, node)
            if change < -SMALLEST_GAIN * abs(self.total):
                self.total += change
                changed = True
                self._update_readers(c, current)
            else:
                self._switch(c, current)
        return changed

    def restore_originals(self, original: Sequence[ENode | None]) -> None:
        """Restore the program's own e-node wherever that costs the same: the search may have made moves of no gain."""
        for c in reversed(live_classes(self.problem.egraph.roots, self.chosen)):
            node, current = original[c], self.chosen[c]
            if node is None or node == current or not self.readers[c] or self._reaches(node, c):
                continue
            change = self._switch(c, node)
            if change <= SMALLEST_GAIN * abs(self.total):
                self.total += change
                self._update_readers(c, current)
            else:
                self._switch(c, current)

    def _optimize_dead_classes(self) -> None:
        """Dead e-classes choose the e-node with the least additional cost, given what is live: for later moves."""
        for c, nodes in enumerate(self.problem.egraph.classes):
            if self.readers[c] or len(nodes) == 1:
                continue
            current_price = self._additional_cost(self.chosen[c])
            for node in nodes:
                if node != self.chosen[c] and all(self._level[x] < self._level[c] for x in node.children):
                    price = self._additional_cost(node)
                    if price < current_price * (1 - 1e-9):
                        before, self.chosen[c], current_price = self.chosen[c], node, price
                        self._update_readers(c, before)

    def _additional_cost(self, node: ENode) -> float:
        children = self.problem.children[node]
        price = self.problem.work[node] + sum(self._add_reader(child) for child in children)
        for child in children:
            self._drop_reader(child)
        return price

    # -- no cycles -----------------------------------------------------------------------------------------------

    def _compute_levels(self) -> None:
        """Topological levels: the level of an e-class is greater than the levels of its operands."""
        self._level = [-1] * len(self.chosen)
        self._parents: list[set[int]] = [set() for _ in self.chosen]
        for c in live_classes(range(len(self.chosen)), self.chosen):
            children = self.problem.children[self.chosen[c]]
            self._level[c] = 1 + max((self._level[x] for x in children), default=0)
            for x in children:
                self._parents[x].add(c)

    def _update_readers(self, c: int, before: ENode) -> None:
        """Update parents and levels after an e-class has changed its choice: it and its readers may have to rise."""
        for x in self.problem.children[before]:
            self._parents[x].discard(c)
        for x in self.problem.children[self.chosen[c]]:
            self._parents[x].add(c)
        stack = [c]
        while stack:
            c = stack.pop()
            least = 1 + max((self._level[x] for x in self.problem.children[self.chosen[c]]), default=0)
            if least > self._level[c]:
                self._level[c] = least
                stack.extend(self._parents[c])

    def _reaches(self, node: ENode, c: int) -> bool:
        """Would choosing `node` in e-class `c` create a cycle?"""
        stack, seen = [x for x in node.children if self._level[x] >= self._level[c]], set[int]()
        while stack:
            x = stack.pop()
            if x == c:
                return True
            if x not in seen:
                seen.add(x)
                stack.extend(y for y in self.problem.children[self.chosen[x]] if self._level[y] >= self._level[c])
        return False
