"""Choosing one e-node per class: the cheapest program over all roots at once, shared values paid once.

The search starts from the program as it was written and from a greedy choice; each is improved one class at a time
until nothing helps, once with readers first and once with what they read first: which of two moves that exclude each
other is found depends on the order.  The cheapest wins, the program's own where they tie, so that a rewrite that gains
nothing, or next to nothing, does not happen.  Every order is by number: same e-graph, same choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wholestep.compiler.passes.egraph.cost import Cost
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.rebuild import live_classes

SMALLEST_GAIN = 1e-9  # relative to the whole cost; less is rounding
WORTHWHILE = 1e-5  # of the whole cost: for less, such as one operation on a scalar, the program stays as it was written
SWEEPS = 8


@dataclass(frozen=True)
class Extraction:
    """The chosen e-node of every class, and what the program costs before and after."""

    chosen: tuple[ENode, ...]
    before: float
    after: float


def extract(
    egraph: EGraph, cost: Callable[[ENode], Cost], banned: frozenset[ENode] = frozenset(), least_gain: float = 0.0
) -> Extraction:
    """The cheapest choice found, if it saves `least_gain` of the cost; else the program's own.

    `banned` e-nodes are left as soon as there is another way.
    """
    problem = Problem(egraph, cost, banned)
    own = _complete(problem, egraph.original_choice())
    unchanged = Selection(problem, list(own))
    best: Selection | None = None
    for start in (own, _cheapest_trees(problem)):
        for readers_first in (True, False):
            found = Selection(problem, list(start))
            found.improve(readers_first)
            if best is None or found.total < best.total - SMALLEST_GAIN * best.total:
                best = found
    assert best is not None
    if unchanged.total - best.total < least_gain * unchanged.total:
        best = unchanged
    best.go_back_where_it_is_free(egraph.original_choice())
    return Extraction(tuple(best.chosen), unchanged.cost(), best.cost())


BAN = 2.0**40  # nanoseconds, more than any program costs; a power of two, so that taking it away is exact


@dataclass
class Problem:
    """The e-graph with the cost of each e-node looked up once."""

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
    """Choices for the classes that have none, cheapest tree first over those that have."""
    return _cheapest_trees(problem, fixed={c: n for c, n in enumerate(chosen) if n is not None})


def _cheapest_trees(problem: Problem, fixed: dict[int, ENode] | None = None) -> list[ENode]:
    """Bottom-up: each class takes the e-node with the cheapest tree below it.

    Costs below a class are added up as if nothing were shared, damped so that deep programs stay comparable.
    """
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
                held = best[c]
                if held is None or total < held[0] * (1 - 1e-12):
                    best[c] = total, node
                    changed = True
    return [choice[1] for choice in best if choice is not None]


class Selection:
    """A choice with reference counts: how many chosen readers, and roots, each class has."""

    def __init__(self, problem: Problem, chosen: list[ENode]) -> None:
        self.problem, self.chosen = problem, chosen
        self.readers = [0] * len(chosen)
        self.total = 0.0
        for root in problem.egraph.roots:
            self.total += self._add_reader(root)
        self._number()

    # -- reference counts: each returns the change of the total ---------------------------------------------------

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
        """Choose `node` in a class that is read."""
        old, change = self.chosen[c], 0.0
        several = self.readers[c] > 1
        change -= self.problem.work[old] + (self.problem.stored[old] if several else 0.0)
        self.chosen[c] = node
        change += self.problem.work[node] + (self.problem.stored[node] if several else 0.0)
        # The new children first: what both need is then never dropped and built again.
        for child in self.problem.children[node]:
            change += self._add_reader(child)
        for child in self.problem.children[old]:
            change += self._drop_reader(child)
        return change

    def cost(self) -> float:
        """What the choice costs, bans aside."""
        live = [c for c, n in enumerate(self.readers) if n]
        forbidden = sum(self.chosen[c] in self.problem.banned for c in live)
        return self.total - BAN * forbidden if forbidden else self.total

    # -- the search ----------------------------------------------------------------------------------------------

    def improve(self, readers_first: bool = True) -> None:
        """Sweep over the live classes until a sweep changes nothing."""
        for _ in range(SWEEPS):
            if not self._sweep(readers_first):
                break

    def _sweep(self, readers_first: bool) -> bool:
        moved = False
        order = live_classes(self.problem.egraph.roots, self.chosen)
        for c in reversed(order) if readers_first else order:
            if self.readers[c] and len(self.problem.egraph.classes[c]) > 1:
                moved |= self._try_class(c)
        self._settle_dead()
        return moved

    def _try_class(self, c: int) -> bool:
        moved = False
        for node in self.problem.egraph.classes[c]:
            current = self.chosen[c]
            if node == current or self._reaches(node, c):
                continue
            change = self._switch(c, node)
            if change < -SMALLEST_GAIN * abs(self.total):
                self.total += change
                moved = True
                self._update_readers(c, current)
            else:
                self._switch(c, current)
        return moved

    def go_back_where_it_is_free(self, own: Sequence[ENode | None]) -> None:
        """The program's own e-node wherever another costs the same: a search may pass through choices of no gain."""
        for c in reversed(live_classes(self.problem.egraph.roots, self.chosen)):
            node, current = own[c], self.chosen[c]
            if node is None or node == current or not self.readers[c] or self._reaches(node, c):
                continue
            change = self._switch(c, node)
            if change <= SMALLEST_GAIN * abs(self.total):
                self.total += change
                self._update_readers(c, current)
            else:
                self._switch(c, current)

    def _settle_dead(self) -> None:
        """Classes that nobody reads choose what would cost least beside what is there."""
        for c, nodes in enumerate(self.problem.egraph.classes):
            if self.readers[c] or len(nodes) == 1:
                continue
            held = self._price(self.chosen[c])
            for node in nodes:
                if node != self.chosen[c] and all(self._level[x] < self._level[c] for x in node.children):
                    price = self._price(node)
                    if price < held * (1 - 1e-9):
                        before, self.chosen[c], held = self.chosen[c], node, price
                        self._update_readers(c, before)

    def _price(self, node: ENode) -> float:
        children = self.problem.children[node]
        price = self.problem.work[node] + sum(self._add_reader(child) for child in children)
        for child in children:
            self._drop_reader(child)
        return price

    # -- no cycles -----------------------------------------------------------------------------------------------

    def _number(self) -> None:
        """Levels: every class above those it reads."""
        self._level = [-1] * len(self.chosen)
        self._parents: list[set[int]] = [set() for _ in self.chosen]
        for c in live_classes(range(len(self.chosen)), self.chosen):
            children = self.problem.children[self.chosen[c]]
            self._level[c] = 1 + max((self._level[x] for x in children), default=0)
            for x in children:
                self._parents[x].add(c)

    def _update_readers(self, c: int, before: ENode) -> None:
        """A class has chosen another e-node: it and those that read it may have to rise."""
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
        """Would choosing `node` in class `c` make it depend on itself?"""
        stack, seen = [x for x in node.children if self._level[x] >= self._level[c]], set[int]()
        while stack:
            x = stack.pop()
            if x == c:
                return True
            if x not in seen:
                seen.add(x)
                stack.extend(y for y in self.problem.children[self.chosen[x]] if self._level[y] >= self._level[c])
        return False
