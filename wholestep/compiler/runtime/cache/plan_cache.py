"""The plan cache: a build whose graph, sizes, options, target and versions were seen before skips every stage."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Mapping
from functools import cache

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
REPORT, BEFORE = ".report", ".before"  # what the build did; the same with the integers of the plan without the e-graph


def plan_key(
    graph: IRGraph, capacity: Mapping[str, int], options: CompileOptions, target: Target, limit: Limit | None = None
) -> str:
    """The key of a build, from the traced graph alone."""
    sizes = [text for symbol in sorted(capacity) for text in (symbol, str(capacity[symbol]))]
    egglog = [f"egglog {egglog_version()}"] if options.uses_egraph else []  # it decides what the e-graph finds
    limited = [] if limit is None else [limit.key]
    version = compiler_version(target.family, options)
    return key_of("plan", fingerprint(graph), *sizes, options.plan_key(), target.key, version, *egglog, *limited)


@cache
def egglog_version() -> str:
    """The installed version, without importing it.

    It stands in the name of the folder that describes the package; `importlib.metadata` reads the same at twenty times
    the time, and is asked where there is no such folder.
    """
    for folder in sys.path:
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in entries:
                if entry.name.startswith("egglog-") and entry.name.endswith(".dist-info"):
                    return entry.name.removeprefix("egglog-").removesuffix(".dist-info")
    from importlib import metadata

    try:
        return metadata.version("egglog")
    except metadata.PackageNotFoundError:
        return "absent"


def find_plan(store: ContentStore, key: str) -> Plan | None:
    """The plan stored under a key; None, after a warning, where it is damaged."""
    path = store.get(key, SUFFIX)
    if path is None:
        return None
    try:
        return serialize.load(path.read_bytes(), own=True)
    except (OSError, PlanError) as error:
        warnings.warn(f"the cached plan {path} is not used: {error}", CacheWarning, stacklevel=2)
        return None


def store_plan(store: ContentStore, key: str, plan: Plan) -> None:
    """Keep a plan; a cache that cannot be written is warned about."""
    try:
        store.put(key, serialize.dump(plan, key=key), SUFFIX)
    except OSError as error:
        warnings.warn(
            f"the plan was not cached: {error}. The next process will plan again.", CacheWarning, stacklevel=2
        )


def find_report(store: ContentStore, key: str) -> OptimizeReport | None:
    """What the build of a cached plan did; with the integers without the e-graph, where these were asked for."""
    path = store.get(key, BEFORE) or store.get(key, REPORT)
    try:
        return None if path is None else parse_report(path.read_text())
    except (OSError, PlanError) as error:
        warnings.warn(f"the cached report {path} is not used: {error}", CacheWarning, stacklevel=2)
        return None


def store_report(store: ContentStore, key: str, report: OptimizeReport) -> None:
    """Keep a report beside its plan; a cache that cannot be written was warned about with the plan."""
    with contextlib.suppress(OSError):
        store.put(key, report.to_json().encode(), BEFORE if report.before else REPORT)
