"""Who depends on whom, as bit masks: asking is one `and`, however deep the graph is."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Reach(Generic[T]):
    """A growing graph of items and "must run after" edges; each item knows all items before it.

    An edge that brings nothing new costs nothing; one that does is told to those after it, and stops where known.
    """

    def __init__(self) -> None:
        self.bit: dict[T, int] = {}
        self.before: dict[T, int] = {}  # everything that must run earlier, a bit each
        self.after: dict[T, list[T]] = {}  # those with an edge to it

    def add(self, item: T) -> None:
        """A new item, without edges."""
        self.bit[item] = 1 << len(self.bit)
        self.before[item] = 0
        self.after[item] = []

    def link(self, later: T, earlier: Iterable[T]) -> None:
        """`later` runs after each of `earlier`."""
        gained = 0
        for e in earlier:
            if later not in self.after[e]:
                self.after[e].append(later)
            gained |= self.before[e] | self.bit[e]
        self._tell(later, gained)

    def depends(self, later: T, earlier: T) -> bool:
        """Must `later` run after `earlier`, directly or by way of others?"""
        return bool(self.before[later] & self.bit[earlier])

    def merge(self, kept: T, gone: T) -> None:
        """Two items that do not depend on each other become one: `kept` has the edges of both."""
        apart = self.depends(kept, gone) or self.depends(gone, kept)
        assert not apart, "one of the two must run before the other"
        # The bit of the one that is gone stays: whoever runs after one of the two runs after both.
        both = self.bit[kept] | self.bit[gone]
        self.bit[kept] = self.bit[gone] = both
        self.after[kept] += [f for f in self.after[gone] if f not in self.after[kept]]
        self.after[gone] = [kept]  # what those before it learn reaches the one that is left
        self._tell(kept, self.before[gone])
        for f in self.after[kept]:
            self._tell(f, both | self.before[kept])

    def absorb(self, kept: T, gone: T) -> None:
        """Two items become one, where one may follow the other directly but never by way of a third."""
        both = self.bit[kept] | self.bit[gone]
        self.bit[kept] = self.bit[gone] = both
        followers = dict.fromkeys((*self.after[kept], *self.after[gone]))
        self.after[kept] = [f for f in followers if f not in (kept, gone)]
        self.after[gone] = [kept]
        self.before[kept] = (self.before[kept] | self.before[gone]) & ~both
        self.before[gone] &= ~both
        for f in self.after[kept]:
            self._tell(f, both | self.before[kept])

    def _tell(self, later: T, mask: int) -> None:
        """`later` and all that follow it run after everything in `mask`."""
        todo = [(later, mask)]
        while todo:
            item, more = todo.pop()
            news = more & ~self.before[item]
            if news:
                self.before[item] |= news
                todo += [(a, news) for a in self.after[item]]
