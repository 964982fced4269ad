"""Schedules in a program: the scheduled runtime scalar becomes a formula of the step, in the scalar prologue."""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.frontend.update_counters import START
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import Node, rewrite
from wholestep.errors import UnknownNameError
from wholestep.schedules.base import FormulaNumbers, Schedule

PREFIX = "schedule."


def scalar_name(target: str, number: str) -> str:
    """The name of the runtime scalar for a number of the schedule of `target`."""
    return f"{PREFIX}{target}.{number}"


def bind_schedules(graph: ir.IRGraph, schedules: Mapping[str, Schedule]) -> dict[str, Schedule]:
    """The schedules with an `lr` of None replaced by the default of the scalar that they schedule."""
    scalars = graph.leaves("scalar")
    for target in schedules:
        if target not in scalars:
            names = ", ".join(map(repr, scalars)) or "none"
            fail(UnknownNameError, f"there is no runtime scalar {target!r} to schedule; there are: {names}.")
    return {t: s.bound(scalars[t].attrs.default) for t, s in schedules.items()}  # type: ignore[attr-defined]


def with_schedules(graph: ir.IRGraph, schedules: Mapping[str, Schedule]) -> ir.IRGraph:
    """The graph with every scheduled scalar computed from the session's steps or the epoch, in the scalar prologue."""
    if not schedules:
        return graph
    bound = bind_schedules(graph, schedules)
    scratch = Graph()
    formulas = {target: _formula(scratch, target, schedule) for target, schedule in bound.items()}
    shared = {name: graph.leaves("scalar").get(name) for name in ("step", "epoch", START)}

    def substitute(node: Node) -> Node:
        name = node.attrs.name if node.op == "scalar" else ""  # type: ignore[attr-defined]
        return formulas.get(name, node)

    scheduled = rewrite(graph, substitute)
    return rewrite(scheduled, lambda n: _share_leaf(n, shared))


def _formula(graph: Graph, target: str, schedule: Schedule) -> Node:
    numbers = {k: graph.scalar(scalar_name(target, k), float(v or 0.0)) for k, v in schedule.numbers().items()}
    count = graph.epoch if schedule.unit == "epoch" else graph.session_step
    value = schedule.formula(count, FormulaNumbers(numbers))
    return value.astype("float64").node  # type: ignore[no-any-return]


def _share_leaf(node: Node, shared: Mapping[str, Node | None]) -> Node:
    """The leaf of the graph for the step or epoch, which all formulas share."""
    leaf = shared.get(node.attrs.name) if node.op == "scalar" else None  # type: ignore[attr-defined]
    return leaf or node
