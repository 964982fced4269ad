"""The plan cache: a build with the graph, sizes, options, target and versions of an earlier one skips all stages."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from dataclasses import replace

from wholestep.compiler.ir.attrs import ScalarAttrs
from wholestep.compiler.ir.fingerprint import fingerprint
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.memory.peak_memory import Limit
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.cache.content_store import CacheWarning, ContentStore, key_of
from wholestep.compiler.runtime.sources import compiler_version
from wholestep.compiler.spans import OptimizeReport, parse_report
from wholestep.compiler.target import Target
from wholestep.errors import PlanError
from wholestep.options import CompileOptions

SUFFIX = ".plan"
# Suffixes of the report of a build, and of the report with the integers of the plan without the e-graph.
REPORT, BEFORE = ".report", ".before"


def plan_key(
    graph: IRGraph, capacity: Mapping[str, int], options: CompileOptions, target: Target, limit: Limit | None = None
) -> str:
    """The key of a build, computed from the traced graph, before any stage runs.

    Defaults of runtime scalars are not part of it: `with_defaults` sets them in a plan that was found.
    """
    sizes = [text for symbol in sorted(capacity) for text in (symbol, str(capacity[symbol]))]
    limited = [] if limit is None else [limit.key]
    version = compiler_version(target.family)
    return key_of("plan", fingerprint(graph, defaults=False), *sizes, options.plan_key(), target.key, version, *limited)


def with_defaults(plan: Plan, graph: IRGraph) -> Plan:
    """A plan with the default values that a graph gives its runtime scalars."""
    defaults = {n.attrs.name: n.attrs.default for n in graph.nodes if isinstance(n.attrs, ScalarAttrs)}
    return replace(plan, scalars=tuple(replace(s, default=defaults.get(s.name, s.default)) for s in plan.scalars))


def find_plan(store: ContentStore, key: str) -> Plan | None:
    """The plan stored under a key; None if there is none, or, after a warning, if it is damaged."""
    path = store.get(key, SUFFIX)
    if path is None:
        return None
    try:
        return serialize.load(path.read_bytes(), own=True)
    except (OSError, PlanError) as error:
        warnings.warn(f"the cached plan {path} is not used: {error}", CacheWarning, stacklevel=2)
        return None


def store_plan(store: ContentStore, key: str, plan: Plan) -> None:
    """Store a plan; warns if the cache cannot be written."""
    try:
        store.put(key, serialize.dump(plan, key=key), SUFFIX)
    except OSError as error:
        warnings.warn(
            f"the plan was not cached: {error}. The next process will plan again.", CacheWarning, stacklevel=2
        )


def find_report(store: ContentStore, key: str) -> OptimizeReport | None:
    """The report of a cached plan's build; with the integers without the e-graph if these were computed."""
    path = store.get(key, BEFORE) or store.get(key, REPORT)
    try:
        return None if path is None else parse_report(path.read_text(encoding="utf-8"))
    except (OSError, PlanError) as error:
        warnings.warn(f"the cached report {path} is not used: {error}", CacheWarning, stacklevel=2)
        return None


def store_report(store: ContentStore, key: str, report: OptimizeReport) -> None:
    """Store a report with its plan; `store_plan` has already warned if the cache cannot be written."""
    with contextlib.suppress(OSError):
        store.put(key, report.to_json().encode(), BEFORE if report.before else REPORT)
