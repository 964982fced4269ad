"""The pass: encode, saturate, extract, rebuild; what was done is told in a report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from wholestep.compiler.ir.graph import Graph
from wholestep.compiler.passes.egraph.certificate import applied, replaced_nodes
from wholestep.compiler.passes.egraph.cost import CostModel
from wholestep.compiler.passes.egraph.encode import encode
from wholestep.compiler.passes.egraph.extract import extract
from wholestep.compiler.passes.egraph.rebuild import rebuild
from wholestep.compiler.passes.egraph.report import EGraphReport
from wholestep.compiler.passes.egraph.rules import rules_for, usable
from wholestep.compiler.passes.egraph.rules.composites import defined_composites
from wholestep.compiler.passes.egraph.rules.rule import Exactness
from wholestep.compiler.passes.egraph.saturate import Budget, SaturationError, Worker, saturate

TYPICAL_SIZE = 64  # of a dimension without a capacity: a graph that is not planned yet


def optimize(
    graph: Graph,
    capacity: Mapping[str, int],
    *,
    exactness: Exactness = Exactness.REASSOCIATING,
    before_autodiff: bool = False,
    budget: Budget | None = None,
    target: str = "cpu",
    worker: Worker | None = None,
) -> tuple[Graph, EGraphReport]:
    """The cheapest equal program that the rules reach, and a report; the graph itself where there is none."""
    if worker is None:
        with Worker() as own:
            return optimize(
                graph,
                capacity,
                exactness=exactness,
                before_autodiff=before_autodiff,
                budget=budget,
                target=target,
                worker=own,
            )
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    encoded = encode(graph, frozenset() if before_autodiff else defined_composites(exactness))
    rules = usable(rules_for(graph, exactness, encoded.tables, before_autodiff), {t.head for t in encoded.terms})
    clock("encode")
    try:
        result = saturate(encoded, rules, budget or Budget(), worker)
    except SaturationError as error:
        count = len(graph.nodes)
        return graph, EGraphReport(exactness.value, count, count, seconds=seconds, failure=str(error))
    clock("worker")
    seconds |= {f"worker: {part}": s for part, s in result.seconds.items()}
    sizes = {symbol: capacity.get(symbol, TYPICAL_SIZE) for symbol in graph.symbols}
    model = CostModel(encoded.tables, sizes, target)
    egraph = result.egraph
    banned = replaced_nodes(egraph, rules)
    extraction = extract(egraph, lambda node: model.cost(node, egraph), banned)
    clock("extract")
    rebuilt = rebuild(graph, encoded, egraph, extraction.chosen)
    clock("rebuild")
    used = applied(egraph, rules, extraction.chosen)
    clock("certificates")
    fired: Counter[str] = Counter(name for name, _, _ in egraph.definitions)
    for name, count in result.matches.items():
        fired[name.split("@")[0]] += count
    report = EGraphReport(
        exactness.value,
        len(graph.nodes),
        len(rebuilt.nodes),
        egraph.size,
        result.rounds,
        result.stopped,
        extraction.before,
        extraction.after,
        dict(sorted(fired.items())),
        used,
        seconds,
    )
    return rebuilt, report


class _Clock:
    """Writes down the time since the last call."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.last = seconds, time.perf_counter()

    def __call__(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part], self.last = now - self.last, now
