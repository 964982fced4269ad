"""What a build did and how long each part took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from wholestep.compiler.passes.egraph.report import EGraphReport


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


@dataclass(frozen=True)
class OptimizeReport:
    """What a build did: nodes before and after, the rewrites applied, and the spans of its stages."""

    nodes_before: int
    nodes_after: int
    fusions_applied: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    cached: bool = False  # the plan came from a cache: nothing after the trace was done
    egraph: tuple[EGraphReport, ...] = ()  # before autodiff, on the whole step

    @property
    def complete(self) -> bool:
        """Did every pass do its work?  A plan of a build where one gave up is used, but not kept."""
        return not any(r.failure for r in self.egraph)

    def __str__(self) -> str:
        rewrites = ", ".join(self.fusions_applied) or "none"
        origin = " (plan from the cache)" if self.cached else ""
        lines = [f"nodes: {self.nodes_before} -> {self.nodes_after}{origin}; rewrites: {rewrites}"]
        for s in self.spans:
            nodes = "" if s.nodes_before is None else f"  {s.nodes_before} -> {s.nodes_after} nodes"
            lines.append(f"{'  ' * (s.depth + 1)}{s.name:<{24 - 2 * s.depth}}{1e3 * s.seconds:9.2f} ms{nodes}")
        return "\n".join([*lines, *map(str, self.egraph)])
