"""The rule set: laws (declared one per row), laws instantiated per program, and recognition of composites."""

from __future__ import annotations

from collections.abc import Iterable

from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.passes.egraph.encode import Tables
from wholestep.compiler.passes.egraph.report import describe_error
from wholestep.compiler.passes.egraph.rules import algebra, contractions, movement, reductions, regions, stability
from wholestep.compiler.passes.egraph.rules.composites import INSTANCES, composite_rules
from wholestep.compiler.passes.egraph.rules.from_nodes import InstanceLaw
from wholestep.compiler.passes.egraph.rules.instances import profile
from wholestep.compiler.passes.egraph.rules.rule import Exactness, Rule, RuleScope

LAWS: tuple[Rule, ...] = (*algebra.RULES, *movement.RULES, *reductions.RULES, *stability.RULES)
INSTANCE_LAWS: tuple[InstanceLaw, ...] = (*regions.LAWS, *reductions.LAWS, *contractions.LAWS)


def rules_for(
    graph: IRGraph,
    exactness: Exactness,
    tables: Tables,
    before_autodiff: bool,
    dropped: dict[str, str] | None = None,
) -> list[Rule]:
    """The rules that may be applied to a graph; before autodiff only those that do not change a gradient.

    A law that raises on this graph is added to `dropped`, with the reason; if `dropped` is None, the error is raised.
    """
    instances_profile = profile(graph)
    named = [
        r
        for op in INSTANCES
        for r in _rules(f"name-{op}", composite_rules(op, instances_profile, exactness, tables), dropped)
    ]
    if before_autodiff:  # composites are taken at any cost: they decide the formula of the gradient
        named = [rule.at_any_cost for rule in named]
    laws = [law for law in INSTANCE_LAWS if law.exactness <= exactness]
    instances = [rule for law in laws for rule in _rules(law.name, law.rules(graph, tables), dropped)]
    return [
        r
        for r in (*LAWS, *instances, *named)
        if r.exactness <= exactness and not (before_autodiff and r.scope is not RuleScope.ANYWHERE)
    ]


def _rules(law: str, rules: Iterable[Rule], dropped: dict[str, str] | None) -> list[Rule]:
    try:
        return list(rules)
    except Exception as error:
        if dropped is None:
            raise
        dropped[law] = describe_error(error)
        return []
