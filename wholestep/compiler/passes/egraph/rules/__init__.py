"""Every rule of the optimizer: laws written as rows, and the definitions of composites."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.passes.egraph.encode import FULL, Tables
from wholestep.compiler.passes.egraph.report import describe_error
from wholestep.compiler.passes.egraph.rules import algebra, contractions, movement, reductions, regions, stability
from wholestep.compiler.passes.egraph.rules.composites import INSTANCES, composite_rules
from wholestep.compiler.passes.egraph.rules.from_nodes import InstanceLaw
from wholestep.compiler.passes.egraph.rules.instances import profile
from wholestep.compiler.passes.egraph.rules.rule import Exactness, Rule, RuleScope
from wholestep.compiler.passes.egraph.rules.tree import Apply, Tree, Variable, subtrees

LAWS: tuple[Rule, ...] = (*algebra.RULES, *movement.RULES, *reductions.RULES, *stability.RULES)
INSTANCE_LAWS: tuple[InstanceLaw, ...] = (*regions.LAWS, *reductions.LAWS, *contractions.LAWS)


def rules_for(
    graph: IRGraph,
    exactness: Exactness,
    tables: Tables,
    before_autodiff: bool,
    dropped: dict[str, str] | None = None,
) -> list[Rule]:
    """The rules that may be used on a graph; before autodiff those that recognise, steady and keep gradients.

    A law that fails on this graph goes to `dropped`, with the reason; without that it raises.
    """
    seen = profile(graph)
    named = [r for op in INSTANCES for r in _rules(f"name-{op}", composite_rules(op, seen, exactness, tables), dropped)]
    if before_autodiff:  # a name decides the formula of the gradient: what the forward pass costs is not the point
        named = [rule.taken for rule in named]
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


def usable(rules: Sequence[Rule], heads: Collection[str]) -> list[Rule]:
    """The rules whose left sides can come to exist in a program with these constructors: the others only cost time."""
    reachable = set(heads)
    kept: dict[str, Rule] = {}
    while new := [r for r in rules if r.name not in kept and _looked_for(r) <= reachable]:
        for rule in new:
            kept[rule.name] = rule
            reachable |= _heads(rule.right)
    return [r for r in rules if r.name in kept]


def _looked_for(rule: Rule) -> set[str]:
    return _heads(rule.left) | (_heads(rule.beside) if rule.beside else set())


def _heads(tree: Tree) -> set[str]:
    return {t.head if isinstance(t, Apply) else FULL for t in subtrees(tree) if not isinstance(t, Variable)}
