"""The equality saturation pass: outline, encode, saturate, extract, rebuild, report.

Invariant: a failure anywhere in the pass costs the rewrite, never the build: the graph is returned unchanged.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wholestep.compiler.garbage import pause_garbage_collection
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.passes.egraph.applicable_rules import only_reorders, reachable_rules
from wholestep.compiler.passes.egraph.certificate import (
    Compiled,
    count_applications,
    find_changed_classes,
    find_replaced_nodes,
)
from wholestep.compiler.passes.egraph.cost import CostModel
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.encode import Encoded, encode
from wholestep.compiler.passes.egraph.extract import WORTHWHILE, Extraction, extract
from wholestep.compiler.passes.egraph.outline import FEWEST_NODES, Outlined, outline
from wholestep.compiler.passes.egraph.rebuild import rebuild
from wholestep.compiler.passes.egraph.replay import Replay
from wholestep.compiler.passes.egraph.report import EGraphReport, describe_error
from wholestep.compiler.passes.egraph.rules.composites import composites_with_definition
from wholestep.compiler.passes.egraph.rules.rule import Exactness, Rule
from wholestep.compiler.passes.egraph.rules.rule_set import rules_for
from wholestep.compiler.passes.egraph.saturate import (
    Budget,
    Saturated,
    SaturationError,
    saturate,
)
from wholestep.compiler.target import CostTable

log = logging.getLogger("wholestep")

# The extent of a symbolic dimension in the cost model.  The compiler passes no sizes: the chosen program, and so the
# bits of a step, must not depend on the capacity.
TYPICAL_SIZE = 64


@dataclass(frozen=True)
class Request:
    """The options of one run of the pass."""

    capacity: Mapping[str, int]  # the sizes at which costs are computed
    costs: CostTable
    exactness: Exactness = Exactness.REASSOCIATING
    before_autodiff: bool = False
    budget: Budget = field(default_factory=Budget)
    outline_from: int = FEWEST_NODES  # nodes; smaller graphs are encoded without outlining

    @property
    def stage(self) -> str:
        return "before autodiff" if self.before_autodiff else "whole step"


@dataclass(frozen=True)
class Rewriting:
    """All results of one run, as `explain` needs them."""

    before: IRGraph
    after: IRGraph
    outlined: Outlined | None
    encoded: Encoded
    rules: Sequence[Rule]
    compiled: Compiled
    egraph: EGraph
    chosen: Sequence[ENode]
    report: EGraphReport
    replay: Replay | None = None  # None unless the graph was outlined


def optimize(
    graph: IRGraph,
    capacity: Mapping[str, int],
    *,
    costs: CostTable,
    exactness: Exactness = Exactness.REASSOCIATING,
    before_autodiff: bool = False,
    budget: Budget | None = None,
    outline_from: int = FEWEST_NODES,
) -> tuple[IRGraph, EGraphReport]:
    """The cheapest equal program that the rules reach, and a report; the given graph if none is cheaper."""
    request = Request(capacity, costs, exactness, before_autodiff, budget or Budget(), outline_from)
    with pause_garbage_collection():
        return _optimize_or_report(graph, request)


def _optimize_or_report(graph: IRGraph, request: Request) -> tuple[IRGraph, EGraphReport]:
    """Run the pass; any failure is reported, and the graph is returned unchanged."""
    seconds: dict[str, float] = {}
    dropped: dict[str, str] = {}
    count = len(graph.nodes)
    unchanged = EGraphReport(
        request.exactness.value, count, count, seconds=seconds, stage=request.stage, dropped=dropped
    )
    try:
        rewriting = rewrite_by_equality(graph, request, seconds, dropped)
    except SaturationError as error:
        return graph, replace(unchanged, failure=str(error))
    except Exception as error:
        log.debug("the e-graph failed", exc_info=True)
        return graph, replace(unchanged, failure=describe_error(error))
    if rewriting is None:
        return graph, replace(unchanged, skipped="no rule can match except those that exchange operands")
    return rewriting.after, replace(rewriting.report, dropped=dropped)


def rewrite_by_equality(
    graph: IRGraph, request: Request, seconds: dict[str, float], dropped: dict[str, str] | None = None
) -> Rewriting | None:
    """One run with all its results; None if no rule can match; raises SaturationError if a budget is exceeded.

    Writes times into `seconds`, and laws that fail on this program, with the reason, into `dropped`.
    """
    clock = _Clock(seconds)
    outlined = outline(graph, request.outline_from)
    clock("outline")
    program = graph if outlined is None else outlined.graph
    defined = frozenset[str]() if request.before_autodiff else composites_with_definition(request.exactness)
    encoded = encode(program, defined, None if outlined is None else outlined.cuts)
    rules = rules_for(program, request.exactness, encoded.tables, request.before_autodiff, dropped)
    rules = reachable_rules(rules, encoded.terms, encoded.definitions)
    clock("encode")
    if not encoded.definitions and all(only_reorders(rule) for rule in rules):
        return None
    result = saturate(encoded, rules, request.budget)
    clock("saturate")
    seconds |= {f"saturate: {part}": s for part, s in result.seconds.items()}
    sizes = {symbol: request.capacity.get(symbol, TYPICAL_SIZE) for symbol in graph.symbols}
    model = CostModel(encoded.tables, sizes, request.costs)
    egraph = result.egraph
    # Before autodiff the aim is the canonical form, even if it saves nothing: equal programs must stay equal.
    least_gain = 0.0 if request.before_autodiff else WORTHWHILE
    replaced = find_replaced_nodes(egraph, rules, result.compiled)
    extraction = extract(egraph, lambda node: model.cost(node, egraph), replaced, least_gain)
    clock("extract")
    replay = None
    if outlined is None:
        rebuilt = rebuild(graph, encoded, egraph, extraction.chosen)
        changed: Mapping[int, int] = find_changed_classes(egraph, extraction.chosen)
    else:
        replay = Replay(outlined, encoded, egraph, extraction.chosen)
        rebuilt, changed = replay.graph(graph), replay.count_changes()
    clock("rebuild")
    used = count_applications(egraph, rules, result.compiled, extraction.chosen, changed)
    clock("certificates")
    report = _report(request, (graph, program, rebuilt), result, extraction, used, seconds)
    return Rewriting(
        graph, rebuilt, outlined, encoded, rules, result.compiled, egraph, extraction.chosen, report, replay
    )


def _report(
    request: Request,
    graphs: tuple[IRGraph, IRGraph, IRGraph],
    result: Saturated,
    extraction: Extraction,
    used: Mapping[str, int],
    seconds: Mapping[str, float],
) -> EGraphReport:
    fired: Counter[str] = Counter(name for name, _, _ in result.egraph.definitions)
    for name, count in result.matches.items():
        fired[name.split("@")[0]] += count
    before, entered, after = graphs
    return EGraphReport(
        request.exactness.value,
        len(before.nodes),
        len(after.nodes),
        result.egraph.size,
        result.rounds,
        result.stopped,
        extraction.before,
        extraction.after,
        dict(sorted(fired.items())),
        used,
        seconds,
        result.paused,
        len(entered.nodes),
        request.stage,
    )


class _Clock:
    """Records the seconds since the last call."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.last = seconds, time.perf_counter()

    def __call__(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part], self.last = now - self.last, now
