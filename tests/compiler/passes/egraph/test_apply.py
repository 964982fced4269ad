"""A law as a function of nodes: it gives the law's right side, and refuses what the law does not say."""

from __future__ import annotations

import pytest

from tests.compiler.passes.common import graph_of, leaf
from tests.compiler.passes.egraph.support.rule_cases import Case
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.fingerprint import fingerprint
from wholestep.compiler.ir.types import float64
from wholestep.compiler.passes.egraph.rules.apply import rewrite_by
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.rules.rule_set import LAWS
from wholestep.compiler.passes.simplify import fold

BY_NAME = {rule.name: rule for rule in LAWS}
X, Y = leaf("x", (3, 4)), leaf("y", (3, 4))


@pytest.mark.parametrize("rule", [BY_NAME[name] for name in fold.LAWS], ids=lambda rule: rule.name)
def test_the_left_side_becomes_the_right_side(rule: Rule) -> None:
    for sample in rule.samples:
        case = Case(rule, sample, float64)
        new = rewrite_by(rule)(case.left)
        assert new is not None
        assert fingerprint(graph_of(new)) == fingerprint(graph_of(case.right))


def test_operands_of_a_commutative_op_match_in_both_orders() -> None:
    rewrite = rewrite_by(BY_NAME["add-neg"])
    for total in (b.add(X, b.neg(Y)), b.add(b.neg(Y), X)):
        new = rewrite(total)
        assert new is not None
        assert (new.op, new.inputs) == ("sub", (X, Y))
    assert rewrite(b.add(X, Y)) is None


def test_a_repeated_variable_is_one_tensor() -> None:
    rewrite = rewrite_by(BY_NAME["where-same"])
    assert rewrite(b.where(b.less(X, Y), X, Y)) is None
    assert rewrite(b.where(b.less(X, Y), Y, Y)) is Y


def test_another_type_or_a_refused_guard_is_no_match() -> None:
    assert rewrite_by(BY_NAME["reshape-identity"])(b.reshape(X, (4, 3))) is None
    stacked = b.permute(leaf("s", (3, 2, 4)), (1, 0, 2))  # not the last two axes
    assert rewrite_by(BY_NAME["transpose-left"])(b.matmul(stacked, leaf("w", (2, 4, 5)))) is None
