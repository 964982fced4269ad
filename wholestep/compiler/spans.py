"""What a build did and how long each part took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Span:
    """A named part of a build, with the nodes before and after where it is a pass."""

    name: str
    depth: int
    start: float  # seconds since the recorder was made
    seconds: float = 0.0
    nodes_before: int | None = None
    nodes_after: int | None = None


@dataclass
class Spans:
    """Records spans, nested, in the order in which they began."""

    all: list[Span] = field(default_factory=list)
    _depth: int = 0
    _origin: float = field(default_factory=time.perf_counter)

    @contextmanager
    def span(self, name: str) -> Iterator[Span]:
        """Record what happens inside."""
        begun = time.perf_counter()
        span = Span(name, self._depth, begun - self._origin)
        self.all.append(span)
        self._depth += 1
        try:
            yield span
        finally:
            self._depth -= 1
            span.seconds = time.perf_counter() - begun

    def names(self) -> tuple[str, ...]:
        """The names of all spans so far, in the order in which they began."""
        return tuple(s.name for s in self.all)
