"""Plans in files of the caller's choice."""

from __future__ import annotations

import logging
import warnings
from os import PathLike
from pathlib import Path
from typing import Any

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.step import Step
from wholestep.compiler.ir.fingerprint import fingerprint
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.cache.content_store import CacheWarning
from wholestep.errors import PlanError, UsageError
from wholestep.session.building.build import build, define_session, load
from wholestep.session.building.plans import Plans
from wholestep.session.session import Session
from wholestep.steps.definition import Model

log = logging.getLogger("wholestep")


def save_plan(plan: Plan, graph: Graph, path: str | PathLike[str]) -> None:
    """Write the plan of `graph` to a file."""
    need_graph_of_plan(graph, "save_plan")
    Path(path).write_bytes(serialize.dump(plan, graph=_graph_key(graph)))


def load_plan(graph: Graph, path: str | PathLike[str]) -> Plan | None:
    """Load a plan from a file; None if the file does not exist or belongs to another graph; PlanError if it is
    damaged.
    """
    need_graph_of_plan(graph, "load_plan")
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    return serialize.load(data) if serialize.read_header(data).graph == _graph_key(graph) else None


def need_graph_of_plan(graph: object, what: str) -> None:
    """Raise UsageError for a model, whose inputs and loss would be part of the plan."""
    if not isinstance(graph, Graph):
        raise UsageError(
            f"{what} takes the ws.Graph of the plan; received {type(graph).__name__}. For a model: "
            "ws.build_session_cached(model, path, inputs=..., targets=..., loss=...)."
        )


def build_session_cached(model_or_graph: Model, path: str | PathLike[str], **arguments: Any) -> Session:
    """`build_session` with the plan kept in a file of the caller's choice.

    A file that fits the graph and arguments skips every stage after the trace; one that does not is replaced; one
    that cannot be read or written is warned about.  The log says at INFO which it was: "loaded", "no valid cache" and
    why, "saved".
    """
    definition, where = define_session(model_or_graph, arguments)
    if definition.has_micro_batches:
        raise UsageError(
            "build_session_cached stores one plan, but accumulate= needs several; ws.build_session caches all of them."
        )
    compiled, file = Plans.for_definition(definition, where), Path(path)
    key = compiled.key(definition.main)
    plan = _read_cached(file, key)
    if plan is not None:
        log.info("loaded the plan from %s", file)
        compiled.check(definition.main, plan, new=False)
        return load(compiled, plan)
    session, _ = build(definition, where)
    try:
        file.write_bytes(serialize.dump(session.plan, graph=_graph_key(definition.model), key=key))
        log.info("saved the plan to %s", file)
    except OSError as error:
        warnings.warn(
            f"the plan could not be written to {file}: {error}. The session works.", CacheWarning, stacklevel=2
        )
    return session


def _graph_key(model: Graph | Step) -> str:
    return fingerprint(model.to_ir()) if isinstance(model, Graph) else ""


def _read_cached(file: Path, key: str) -> Plan | None:
    """The plan in a file if it has this key; else None, with the reason in the log."""
    try:
        data = file.read_bytes()
        if serialize.read_header(data).key == key:
            return serialize.load(data)
        why = "it is for another graph, optimizer, capacity, device, option or version of Wholestep"
    except FileNotFoundError:
        why = "there is no such file"
    except (OSError, PlanError) as error:
        warnings.warn(f"the plan in {file} is not used: {error}", CacheWarning, stacklevel=3)
        why = str(error)
    log.info("no valid cache in %s, the step is planned: %s", file, why)
    return None
