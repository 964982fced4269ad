"""The plans of a session's entry points: from the cache or compiled, and checked where they will run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field, replace
from typing import TYPE_CHECKING

from wholestep.compiler.backend import Placement
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.plan.memory.peak_memory import Limit
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.cache.content_store import open_cache
from wholestep.compiler.runtime.cache.plan_cache import (
    find_plan,
    find_report,
    plan_key,
    store_plan,
    store_report,
    with_defaults,
)
from wholestep.compiler.runtime.state.storage import HostMemory
from wholestep.compiler.spans import OptimizeReport, Spans
from wholestep.compiler.target import Target
from wholestep.options import CompileOptions
from wholestep.records import dataclass
from wholestep.session.verify.check import Subject, Verdict, verdict_on
from wholestep.steps.definition import Definition

if TYPE_CHECKING:
    from wholestep.compiler.explain import Explanation

_SHARED: ContextVar[dict[str, tuple[Plan, OptimizeReport]] | None] = ContextVar("shared", default=None)


@contextmanager
def share_plans() -> Iterator[None]:
    """Inside, sessions with equal steps share one plan, whether or not plans are cached."""
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


@dataclass(frozen=True)
class Plans:
    """Compiles the entry points of a definition; without a `where` plans are not checked."""

    definition: Definition
    options: CompileOptions
    target: Target  # the target of the plans
    where: Placement | None = None
    threads: int = 1  # for memory limits if there is no `where`
    spans: Spans = field(default_factory=Spans)
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # entry point -> result of the self-check
    reports: dict[str, OptimizeReport] = field(default_factory=dict)  # entry point -> report of its build

    @staticmethod
    def for_definition(definition: Definition, where: Placement) -> Plans:
        """The plans of a definition for a session at `where`."""
        return Plans(definition, where.options, where.device.target, where)

    def of(self, definition: Definition, spans: Spans | None = None) -> Plans:
        """The plans of another definition with the same options, target and placement."""
        return Plans(definition, self.options, self.target, self.where, self.threads, spans or Spans())

    def with_room(self, arrays: Mapping[str, object]) -> Plans:
        """The plans for at least as many rows as the arrays have; itself if they fit."""
        larger = self.definition.with_room(arrays)
        return self if larger is self.definition else replace(self, definition=larger, verdicts={}, reports={})

    def key(self, entry: str) -> str:
        """The key of an entry point's plan, from its trace."""
        graph = self.definition.trace(entry)
        return plan_key(graph, self.definition.sizes_of(graph), self.options, self.target, self.limit(entry))

    def limit(self, entry: str) -> Limit | None:
        """The memory limit of an entry point: `memory=` applies to the training step."""
        memory = self.definition.step_options.memory
        if memory is None or entry != self.definition.main:
            return None
        other_bytes = 0
        if self.definition.has_micro_batches:
            from wholestep.session.building.memory_budget import bytes_of_other_programs

            other_bytes = bytes_of_other_programs(self)
        return Limit(memory, self.thread_count, other_bytes)

    @property
    def thread_count(self) -> int:
        """The number of threads, for memory limits."""
        return self.threads if self.where is None else self.where.threads

    def plan(self, entry: str) -> tuple[Plan, str]:
        """The plan of an entry point, from the cache or compiled, and its key."""
        return self.plan_with_report(entry)[0], self.key(entry)

    def plan_with_report(self, entry: str) -> tuple[Plan, OptimizeReport]:
        """The plan and the report of its build.  A new plan is checked before it is cached."""
        graph = self.definition.trace(entry)
        store = open_cache(self.options) if self.options.cache else None
        shared = _SHARED.get()
        key = self.key(entry) if store is not None or shared is not None else ""
        if shared is not None and key in shared:
            plan, report = with_defaults(shared[key][0], graph), shared[key][1]
            self.check(entry, plan, new=False)
            self.reports[entry] = replace(report, cached=True)
            return plan, self.reports[entry]
        cached = find_plan(store, key) if store is not None else None
        if cached is not None:
            cached = with_defaults(cached, graph)
            self.check(entry, cached, new=False)
            stored_report = find_report(store, key) if store is not None else None
            report = stored_report or OptimizeReport(len(graph.nodes), len(graph.nodes))
            self.reports[entry] = replace(report, spans=tuple(self.spans.all), cached=True)
            return cached, self.reports[entry]
        from wholestep.compiler.garbage import pause_garbage_collection
        from wholestep.compiler.pipeline import Compiler  # imported here because a cache hit does not need the passes

        self._make_room_for(graph)
        compiler = Compiler(self.options, self.spans)
        with pause_garbage_collection():
            plan, report = compiler.plan(graph, self.definition.sizes_of(graph), self.target, self.limit(entry))
        self.check(entry, plan, new=True)
        self.reports[entry] = report
        if store is not None and report.complete:
            store_plan(store, key, plan)
            store_report(store, key, report)
        if shared is not None:
            shared[key] = plan, report
        return plan, report

    def _make_room_for(self, graph: IRGraph) -> None:
        """Start allocating the memory of a step's states in the background, which takes about as long as planning.

        The check of a new plan needs all of it, and then the session does.
        """
        where = self.where
        if where is None or not where.device.runs or where.options.verify is False or where.group is not None:
            return
        if isinstance(memory := where.device.memory, HostMemory):
            states = graph.states().values()
            memory.expect([node.type for node in states], [node.attrs.by_columns for node in states])  # type: ignore[attr-defined]

    def check(self, entry: str, plan: Plan, *, new: bool) -> None:
        """Check a plan against the interpreter, unless it was checked, `verify=False`, or there is no `where`."""
        if self.where is not None:
            subject = Subject(self.definition.trace(entry), plan, self.key(entry), self.where)
            self.verdicts[entry] = verdict_on(subject, self.spans, new=new)

    def optimization(self, entry: str) -> OptimizeReport:
        """The report of an entry point's build, with the integers of its plan without the e-graph.

        They need a second plan, which is computed once and cached.
        """
        report = self.reports.get(entry) or self.plan_with_report(entry)[1]
        if report.before is None:
            from wholestep.compiler.pipeline import Compiler

            graph = self.definition.trace(entry)
            plain = Compiler(replace(self.options, egraph=False), Spans())
            _, without = plain.plan(graph, self.definition.sizes_of(graph), self.target)
            report = self.reports[entry] = replace(report, before=without.after)
            if self.options.cache and report.complete:
                store_report(open_cache(self.options), self.key(entry), report)
        return report

    def explain(self, entry: str, name: str) -> Explanation:
        """Why a tensor of an entry point is computed as it is."""
        from wholestep.compiler.explain import explain_tensor

        return explain_tensor(self.definition.trace(entry), self.options, self.target, name)
