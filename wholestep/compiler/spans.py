"""The record of a build: timed spans of its stages, and the report of what was optimised."""

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
    """A timed part of a build; for a stage also the number of nodes before and after."""

    name: str
    depth: int
    start: float  # seconds since the recorder was created
    seconds: float = 0.0
    nodes_before: int | None = None
    nodes_after: int | None = None


@dataclass
class Spans:
    """Records nested spans in the order in which they began."""

    all: list[Span] = field(default_factory=list)
    most: int = 20_000  # spans that are recorded; later ones of a long run are dropped
    _depth: int = 0
    _origin: float = field(default_factory=time.perf_counter)

    @property
    def origin(self) -> float:
        """When the recorder was created, on the clock of `time.perf_counter`."""
        return self._origin

    @contextmanager
    def span(self, name: str) -> Iterator[Span]:
        """Record the time spent in the `with` block."""
        outer = _ACTIVE.set(self)
        start = time.perf_counter()
        span = Span(name, self._depth, start - self._origin)
        if len(self.all) < self.most:
            self.all.append(span)
        self._depth += 1
        try:
            yield span
        finally:
            self._depth -= 1
            _ACTIVE.reset(outer)
            span.seconds = time.perf_counter() - start

    def names(self) -> tuple[str, ...]:
        """The names of all spans so far, in the order in which they began."""
        return tuple(s.name for s in self.all)


_ACTIVE: ContextVar[Spans | None] = ContextVar("spans", default=None)


def inner_span(name: str) -> AbstractContextManager[Any]:
    """A span inside the current one, for code without access to the recorder, such as a call of the C compiler."""
    active = _ACTIVE.get()
    return nullcontext() if active is None else active.span(name)


@dataclass(frozen=True)
class Integers:
    """The size of a plan: work of a step at capacity, and the bytes that it maps with one thread."""

    nodes: int  # nodes of the lowered graph
    kernels: int
    flops: int
    bytes_moved: int
    peak_bytes: int


@dataclass(frozen=True)
class OptimizeReport:
    """The report of a build: nodes before and after, the rewrites applied, and the spans of its stages.

    It is stored with the cached plan.  `before` holds the integers of the plan without the e-graph; they require a
    second plan and are computed only on request, by `session.optimization()`.
    """

    nodes_before: int
    nodes_after: int
    fusions_applied: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    cached: bool = False  # the plan came from a cache: no stage after tracing ran
    egraph: tuple[EGraphReport, ...] = ()  # reports of the e-graph passes: before autodiff, and on the whole step
    exactness: str = ""  # the class of rewrites that the e-graph may apply; empty if it did not run
    after: Integers | None = None
    before: Integers | None = None
    given_up: tuple[str, ...] = ()  # optional passes that failed and were skipped: the plan is correct without them

    @property
    def complete(self) -> bool:
        """Did every pass succeed?  The plan of a build in which one failed is used, but not cached."""
        return not self.given_up and all(r.complete for r in self.egraph)

    def to_json(self) -> str:
        """All fields except the spans, which belong to one process."""
        return json.dumps(dataclasses.asdict(replace(self, spans=())))

    def _repr_html_(self) -> str:
        """The text below its counts, for notebooks."""
        from wholestep.notebook import text_html

        return text_html(f"nodes: {self.nodes_before} -> {self.nodes_after}", str(self))

    def __str__(self) -> str:
        rewrites = ", ".join(self.fusions_applied) or "none"
        origin = " (plan from the cache)" if self.cached else ""
        lines = [f"nodes: {self.nodes_before} -> {self.nodes_after}{origin}; rewrites: {rewrites}"]
        for s in self.spans:
            nodes = "" if s.nodes_before is None else f"  {s.nodes_before} -> {s.nodes_after} nodes"
            lines.append(f"{'  ' * (s.depth + 1)}{s.name:<{24 - 2 * s.depth}}{1e3 * s.seconds:9.2f} ms{nodes}")
        return "\n".join([*lines, *map(str, self.egraph), *self.given_up, *self._table()])

    def _table(self) -> list[str]:
        """The plan's integers, next to those without the e-graph if these were computed."""
        if self.after is None:
            return []
        title = f"  {'':<12}{'before' if self.before else '':>20}{'after' if self.before else 'plan':>20}"
        lines = [title]
        for name in (f.name for f in dataclasses.fields(Integers)):
            old = f"{getattr(self.before, name):,}" if self.before else ""
            lines.append(f"  {name:<12}{old:>20}{getattr(self.after, name):>20,}")
        return lines


def parse_report(text: str) -> OptimizeReport:
    """Parse what `OptimizeReport.to_json` wrote; PlanError for any other text."""
    try:
        return _report(json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise PlanError(f"this is not the report of a build: {error!r}. Build again.") from None


def _report(data: Any) -> OptimizeReport:
    integers = {name: Integers(**data[name]) if data[name] else None for name in ("before", "after")}
    egraph = tuple(EGraphReport(**r) for r in data["egraph"])
    tuples = {name: tuple(data[name]) for name in ("fusions_applied", "given_up")}
    strings = [data["exactness"], *(string for each in tuples.values() for string in each)]
    if not all(isinstance(string, str) for string in strings):
        raise TypeError("expected the names of rules and passes as strings")
    return OptimizeReport(**{**data, **integers, **tuples, "egraph": egraph, "spans": ()})
