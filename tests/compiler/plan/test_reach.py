"""Reachability by bit masks against a search of the graph."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wholestep.compiler.plan.fusion.reachability import Reach

COUNT = 8
PAIRS = st.tuples(st.integers(0, COUNT - 1), st.integers(0, COUNT - 1))


class Searched:
    """The same, by walking edges each time."""

    def __init__(self) -> None:
        self.before: dict[int, set[int]] = {i: set() for i in range(COUNT)}
        self.name = {i: i for i in range(COUNT)}

    def depends(self, later: int, earlier: int) -> bool:
        todo, seen = [self.name[later]], set[int]()
        while todo:
            for b in {self.name[b] for b in self.before[todo.pop()]} - seen:
                seen.add(b)
                todo.append(b)
        return self.name[earlier] in seen

    def merge(self, kept: int, gone: int) -> None:
        self.before[kept] |= self.before[gone]
        self.name = {i: kept if n == gone else n for i, n in self.name.items()}


@given(st.lists(st.tuples(st.booleans(), PAIRS), max_size=24))
def test_the_same_answers_as_a_search(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    """Edges in any order, and merges of what does not depend on each other, between them."""
    reach, searched = Reach[int](), Searched()
    for i in range(COUNT):
        reach.add(i)
    for is_merge, pair in steps:
        a, b = (searched.name[i] for i in pair)
        if a == b or searched.depends(b, a):
            continue
        if not is_merge:
            reach.link(a, [b])
            searched.before[a].add(b)
        elif not searched.depends(a, b):
            reach.merge(a, b)
            searched.merge(a, b)
        left = sorted(set(searched.name.values()))
        for x in left:
            assert [reach.depends(x, y) for y in left] == [searched.depends(x, y) for y in left]


def test_what_depends_on_each_other_is_not_merged() -> None:
    reach = Reach[str]()
    for item in "abc":
        reach.add(item)
    reach.link("b", "a")
    reach.link("c", "b")
    with pytest.raises(AssertionError, match="must run before the other"):
        reach.merge("a", "c")
