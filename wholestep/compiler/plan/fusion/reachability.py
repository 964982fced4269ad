"""Incremental transitive closure of a dependence graph, as bit masks.

A query is a single bitwise AND, whatever the depth of the graph; fusion asks it before every merge to keep the graph of
clusters acyclic.  Invariant: `before[item]` contains every item that `item` depends on, directly or not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Reach(Generic[T]):
    """A growing graph of items and "must run after" edges, with the set of all predecessors of each item.

    A new edge propagates its new predecessors to the successors, and stops at items that have them already.
    """

    def __init__(self) -> None:
        self.bit: dict[T, int] = {}
        self.before: dict[T, int] = {}  # all transitive predecessors, one bit each
        self.after: dict[T, list[T]] = {}  # direct successors

    def add(self, item: T) -> None:
        """Add an item without edges."""
        self.bit[item] = 1 << len(self.bit)
        self.before[item] = 0
        self.after[item] = []

    def link(self, later: T, earlier: Iterable[T]) -> None:
        """Add edges: `later` runs after each of `earlier`."""
        gained = 0
        for e in earlier:
            if later not in self.after[e]:
                self.after[e].append(later)
            gained |= self.before[e] | self.bit[e]
        self._propagate(later, gained)

    def depends(self, later: T, earlier: T) -> bool:
        """Must `later` run after `earlier`, directly or transitively?"""
        return bool(self.before[later] & self.bit[earlier])

    def merge(self, remaining: T, removed: T) -> None:
        """Merge two items that do not depend on each other; `remaining` has the edges of both."""
        ordered = self.depends(remaining, removed) or self.depends(removed, remaining)
        assert not ordered, "one of the two must run before the other"
        # The merged item owns both bits: an item that runs after one of the two runs after both.
        both = self.bit[remaining] | self.bit[removed]
        self.bit[remaining] = self.bit[removed] = both
        self.after[remaining] += [f for f in self.after[removed] if f not in self.after[remaining]]
        self.after[removed] = [remaining]  # predecessors of `removed` still propagate to `remaining` through this edge
        self._propagate(remaining, self.before[removed])
        for f in self.after[remaining]:
            self._propagate(f, both | self.before[remaining])

    def absorb(self, remaining: T, removed: T) -> None:
        """Merge two items of which one may follow the other directly, but not through a third item."""
        both = self.bit[remaining] | self.bit[removed]
        self.bit[remaining] = self.bit[removed] = both
        followers = dict.fromkeys((*self.after[remaining], *self.after[removed]))
        self.after[remaining] = [f for f in followers if f not in (remaining, removed)]
        self.after[removed] = [remaining]
        self.before[remaining] = (self.before[remaining] | self.before[removed]) & ~both
        self.before[removed] &= ~both
        for f in self.after[remaining]:
            self._propagate(f, both | self.before[remaining])

    def _propagate(self, later: T, mask: int) -> None:
        """Add the predecessors in `mask` to `later` and to all its successors."""
        todo = [(later, mask)]
        while todo:
            item, more = todo.pop()
            added = more & ~self.before[item]
            if added:
                self.before[item] |= added
                todo += [(a, added) for a in self.after[item]]
