"""What a build did and how long each part took."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import field, replace
from typing import Any

from wholestep.compiler.passes.egraph.report import EGraphReport
from wholestep.errors import PlanError
from wholestep.records import dataclass


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
    most: int = 20_000  # of a long run, the first ones are kept
    _depth: int = 0
    _origin: float = field(default_factory=time.perf_counter)

    @property
    def origin(self) -> float:
        """When the recorder was made, on the clock of `time.perf_counter`."""
        return self._origin

    @contextmanager
    def span(self, name: str) -> Iterator[Span]:
        """Record what happens inside."""
        outer = _ACTIVE.set(self)
        begun = time.perf_counter()
        span = Span(name, self._depth, begun - self._origin)
        if len(self.all) < self.most:
            self.all.append(span)
        self._depth += 1
        try:
            yield span
        finally:
            self._depth -= 1
            _ACTIVE.reset(outer)
            span.seconds = time.perf_counter() - begun

    def names(self) -> tuple[str, ...]:
        """The names of all spans so far, in the order in which they began."""
        return tuple(s.name for s in self.all)


_ACTIVE: ContextVar[Spans | None] = ContextVar("spans", default=None)


def inner_span(name: str) -> AbstractContextManager[Any]:
    """A span inside the one that is open, for code that is handed no recorder, such as a call of the C compiler."""
    active = _ACTIVE.get()
    return nullcontext() if active is None else active.span(name)


@dataclass(frozen=True)
class Integers:
    """What a plan does in a step at capacity, and the bytes it maps with one thread."""

    nodes: int  # of the lowered graph
    kernels: int
    flops: int
    bytes_moved: int
    peak_bytes: int


@dataclass(frozen=True)
class OptimizeReport:
    """What a build did: nodes before and after, the rewrites applied, and the spans of its stages.

    It is kept with the cached plan.  `before` holds the integers of the plan that the same graph has without the
    e-graph; they cost a second plan and are there only where they were asked for: `session.optimization()`.
    """

    nodes_before: int
    nodes_after: int
    fusions_applied: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    cached: bool = False  # the plan came from a cache: nothing after the trace was done
    egraph: tuple[EGraphReport, ...] = ()  # before autodiff, on the whole step
    exactness: str = ""  # the class of rewrites that the e-graph was allowed; empty where it did not run
    after: Integers | None = None
    before: Integers | None = None
    given_up: tuple[str, ...] = ()  # passes that failed and were left out: the plan is right without them

    @property
    def complete(self) -> bool:
        """Did every pass do its work?  A plan of a build where one gave up is used, but not kept."""
        return not self.given_up and all(r.complete for r in self.egraph)

    def to_json(self) -> str:
        """Everything but the spans, which belong to one process."""
        return json.dumps(dataclasses.asdict(replace(self, spans=())))

    def __str__(self) -> str:
        rewrites = ", ".join(self.fusions_applied) or "none"
        origin = " (plan from the cache)" if self.cached else ""
        lines = [f"nodes: {self.nodes_before} -> {self.nodes_after}{origin}; rewrites: {rewrites}"]
        for s in self.spans:
            nodes = "" if s.nodes_before is None else f"  {s.nodes_before} -> {s.nodes_after} nodes"
            lines.append(f"{'  ' * (s.depth + 1)}{s.name:<{24 - 2 * s.depth}}{1e3 * s.seconds:9.2f} ms{nodes}")
        return "\n".join([*lines, *map(str, self.egraph), *self.given_up, *self._table()])

    def _table(self) -> list[str]:
        """The plan's integers, beside those without the e-graph where they are known."""
        if self.after is None:
            return []
        title = f"  {'':<12}{'before' if self.before else '':>20}{'after' if self.before else 'plan':>20}"
        lines = [title]
        for name in (f.name for f in dataclasses.fields(Integers)):
            old = f"{getattr(self.before, name):,}" if self.before else ""
            lines.append(f"  {name:<12}{old:>20}{getattr(self.after, name):>20,}")
        return lines


def parse_report(text: str) -> OptimizeReport:
    """What `OptimizeReport.to_json` wrote; PlanError where it is another text."""
    try:
        return _report(json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise PlanError(f"this is no report of a build: {error!r}. Build again.") from None


def _report(data: Any) -> OptimizeReport:
    integers = {name: Integers(**data[name]) if data[name] else None for name in ("before", "after")}
    egraph = tuple(EGraphReport(**r) for r in data["egraph"])
    tuples = {name: tuple(data[name]) for name in ("fusions_applied", "given_up")}
    words = [data["exactness"], *(word for each in tuples.values() for word in each)]
    if not all(isinstance(word, str) for word in words):
        raise TypeError("rules have names")
    return OptimizeReport(**{**data, **integers, **tuples, "egraph": egraph, "spans": ()})
