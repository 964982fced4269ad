"""Every rule fires, and no wrong version of a rule passes its test: the table at the end says how many were caught."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest

from tests.compiler.passes.common import graph_of
from tests.compiler.passes.egraph.support.made_rules import MADE_INSTANCES, MADE_NAMES, Made, program_of
from tests.compiler.passes.egraph.support.mutants import Mutant, mutants
from tests.compiler.passes.egraph.support.rule_cases import Case
from tests.compiler.passes.egraph.test_rules import sides_agree
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.types import TensorType, float64
from wholestep.compiler.passes.egraph.certificate import steps
from wholestep.compiler.passes.egraph.encode import Tables, encode
from wholestep.compiler.passes.egraph.rules.rule import Exactness, Rule
from wholestep.compiler.passes.egraph.rules.rule_set import INSTANCE_LAWS, LAWS, rules_for
from wholestep.compiler.passes.egraph.rules.tree import Apply
from wholestep.compiler.passes.egraph.saturate import Budget, saturate

MADE = {made.rule.name: made for made in (*MADE_INSTANCES, *MADE_NAMES)}
TABLE: dict[str, list[int]] = defaultdict(lambda: [0, 0])  # rule -> caught, made


@pytest.fixture(scope="module", autouse=True)
def _table() -> Iterator[None]:
    yield
    for rule, (caught, made) in TABLE.items():
        print(f"{rule:32} {caught:3} of {made:3} mutants caught")


# -- every rule fires ----------------------------------------------------------------------------------------------


def joined(graph: IRGraph, rule: Rule, tables: Tables | None) -> bool:
    """Does the rule fire on the graph, and is its right side then in the class of its left side?"""
    encoded = encode(graph)
    if tables is not None:  # attribute numbers of the rule refer to its own tables
        (rule,) = (r for r in rules_for(graph, Exactness.APPROXIMATE, encoded.tables, False) if r.name == rule.name)
    egraph = saturate(encoded, [rule], Budget(rounds=2)).egraph
    made = list(steps(egraph, [rule]))
    return bool(made) and all(s.right is None or egraph.class_of[s.right] == s.root for s in made)


@pytest.mark.parametrize("rule", LAWS, ids=lambda r: r.name)
def test_every_law_fires(rule: Rule) -> None:
    assert joined(graph_of(Case(rule, dict(rule.samples[0]), float64).left), rule, None)


@pytest.mark.parametrize("law", INSTANCE_LAWS, ids=lambda law: law.name)
def test_every_instance_law_fires(law) -> None:
    graph = law.sample()
    encoded = encode(graph)
    rules = list(law.rules(graph, encoded.tables))
    either_order = [r for r in LAWS if r.name == "add-commutes"]
    egraph = saturate(encoded, [*rules, *either_order], Budget(rounds=4)).egraph
    assert {r.name for r in rules} <= {f.rule for f in egraph.firings}


@pytest.mark.parametrize(
    "made", [m for m in MADE.values() if m.rule.name.startswith("name-")], ids=lambda m: m.rule.name
)
def test_every_name_is_given(made: Made) -> None:
    """Where a result does not tell all inputs, beside another result that does."""
    graph = program_of(made, *(m for m in MADE.values() if is_beside(m.rule, made.rule)))
    encoded = encode(graph)
    rules = rules_for(graph, Exactness.REASSOCIATING, encoded.tables, before_autodiff=False)
    op = made.rule.name.split("@")[0]
    egraph = saturate(encoded, [r for r in rules if r.name.split("@")[0] == op], Budget(rounds=3)).egraph
    assert any(f.rule.split("@")[0] == op and f.root == egraph.roots[0] for f in egraph.firings)


def is_beside(rule: Rule, other: Rule) -> bool:
    """Does it name another result of the same composite?"""
    if not (isinstance(rule.right, Apply) and isinstance(other.right, Apply)):
        return False
    return rule.right.op == "item" and rule.right.children == other.right.children and rule != other


# -- no wrong version passes ---------------------------------------------------------------------------------------


def caught(mutant: Mutant, made: Made | None) -> bool:
    if mutant.label.startswith("guard"):
        return any(_lets_through(mutant.rule, dict(sample)) for sample in mutant.rule.refused)
    try:
        if made is not None:
            return not all(made.holds(mutant.rule, seed) for seed in range(2))
        return not all(sides_agree(mutant.rule, dict(s), seed) for s in mutant.rule.samples for seed in range(2))
    except Exception:  # an ill-typed side is caught too
        return True


def _lets_through(rule: Rule, sample: dict) -> bool:
    tables = Tables()
    bindings = {n: tables.type_id(TensorType(v, float64)) if isinstance(v, tuple) else v for n, v in sample.items()}
    return rule.guard is None or bool(rule.guard.evaluate(bindings))


# Changes that leave a true law, and why; everything else must be caught.
STILL_TRUE: dict[str, tuple[str, set[str]]] = {
    "neg-as-scale": ("x / -1 is -x too", {"left: another op for mul #2"}),
    "abs-neg": ("|x| is even", {"left: sign of neg #1"}),
    "abs-squared": ("a square is even", {"left: another op for abs #1", "left: sign of abs #1"}),
    "abs-abs": ("|x| is even", {"left: another op for abs #1", "left: sign of abs #1"}),
    "abs-of-reshape": ("|x| is even", {"left: sign of reshape #1"}),
    "mul-one": ("x / 1 is x too", {"left: another op for mul #2"}),
    "div-one": ("x * 1 is x too", {"left: another op for div #2"}),
    "add-zero": ("x - 0 is x too", {"left: another op for add #2"}),
    "sub-zero": ("x + 0 is x too", {"left: another op for sub #2"}),
    "max-self": ("so is the minimum", {"left: another op for maximum #1"}),
    "min-self": ("so is the maximum", {"left: another op for minimum #1"}),
    "sub-self": ("-0 is 0", {"left: sign of sub #1"}),
    "mul-zero": ("-0 is 0", {"left: sign of mul #2"}),
    "fourth-power": ("both factors change their signs", {"right: sign of mul #1"}),
    "plain-softmax": ("the quotient of two signs", {"left: sign of exp #1"}),
    "name-softmax": ("the quotient of two signs", {"left: sign of exp #4"}),
    "shifted-softmax": ("any shift", {"left: another op for sub #3", "left: sign of expand #2"}),
    "shifted-log-softmax": ("any shift", {"left: another op for sub #3", "left: sign of expand #2"}),
    "variance-of-moments": (
        "squares are even",
        {f"left: sign of {op}" for op in ("mul #6", "ratio #7", "sum #5", "sum #6")}
        | {f"right: {change} sub {place}" for change in ("sign of", "operands of") for place in ("#5", "#6")},
    ),
    # dx is even in the normalised x: it holds it twice
    "name-layer_norm_grad": (
        "n·mean(g·n) is even in n",
        {"left: operands of sub #5", "left: sign of sub #5", "left: sign of mul #15", "left: sign of mul #18"},
    ),
    "name-rms_norm_grad": ("n·mean(g·n) is even in n", {"left: sign of mul #11", "left: sign of mul #14"}),
    "name-batch_norm_grad": ("c·Σ g·c is even in c", {"left: sign of sub #8", "left: operands of sub #8"}),
    "name-group_norm_grad": (
        "n·mean(g·n) is even in n",
        {f"left: sign of {op}" for op in ("mul #17", "mul #20", "reshape #1", "sub #6")} | {"left: operands of sub #6"},
    ),
}


@pytest.mark.parametrize("name", [*(r.name for r in LAWS), *MADE])
def test_mutants_are_caught(name: str) -> None:
    made = MADE.get(name)
    rule = made.rule if made else next(r for r in LAWS if r.name == name)
    family = name.split("@")[0]
    survivors = []
    with np.errstate(all="ignore"):
        for mutant in mutants(rule):
            killed = caught(mutant, made)
            true_still = mutant.label in STILL_TRUE.get(family, ("", set()))[1]
            TABLE[family][0] += killed
            TABLE[family][1] += killed or not true_still
            if not killed and not true_still:
                survivors.append(mutant.label)
    assert not survivors, (
        f"the test of {rule.law} passes with these changes, too: {survivors}. Give the row samples= for which they "
        "differ; if a changed law is true as well, it is listed in STILL_TRUE with the reason"
    )


def test_exceptions_are_needed() -> None:
    """A change that is caught after all has no place in the list."""
    for family, (_, labels) in STILL_TRUE.items():
        rules = [(r, None) for r in LAWS if r.name == family]
        rules += [(m.rule, m) for m in MADE.values() if m.rule.name.split("@")[0] == family]
        with np.errstate(all="ignore"):
            alive = {m.label for rule, made in rules for m in mutants(rule) if not caught(m, made)}
        assert labels <= alive, family
