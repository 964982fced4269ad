"""No rewrite leaves the range of the dtype: where every number on the left is normal, the right side is equal.

Generated from the rows: each law is evaluated in float32 at mixed magnitudes from 1e-37 to 1e38, its own numbers too.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.passes.common import graph_of, leaf
from tests.compiler.passes.egraph.support.rule_cases import Case, ExactCase
from tests.compiler.targets import optimize
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.semantics.values import VALUES, StepValues
from wholestep.compiler.ir.types import TensorType, float32
from wholestep.compiler.passes.egraph.egraph import ENode
from wholestep.compiler.passes.egraph.encode import FULL, Tables
from wholestep.compiler.passes.egraph.rebuild import make_node
from wholestep.compiler.passes.egraph.rules.expression import MOST_ABOVE, MOST_BELOW, is_moderate, is_normal
from wholestep.compiler.passes.egraph.rules.from_nodes import InstanceLaw
from wholestep.compiler.passes.egraph.rules.rule import Exactness, Rule
from wholestep.compiler.passes.egraph.rules.rule_set import INSTANCE_LAWS, LAWS

TINY, LARGEST = (float(x) for x in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))
MAGNITUDES = (1e38, 1e30, 1e20, 1e5, 1.0, 1e-5, 1e-20, 1e-30, 1e-37)
MIXES = 400
NUMBERS = (1.7, 0.3, 1e5, 1e-6, 1e20, 1e-20, 1e38, 1e-37)

# How far from the lower and the upper end of the range the left side must stay, and why that is accepted: names of
# composites need these rules.  What several of them do together is held in test_range_of_chains.py.
MOVED = ("scale-left", "scale-inside", "product-of-scaled-left", "product-of-scaled-right")
MARGINS = {
    **dict.fromkeys(MOVED, (MOST_BELOW, MOST_ABOVE)),  # a moderate factor moves past other tensors
    "div-as-recip": (4.0, 4.0),  # the reciprocal of a number above 2**126 is subnormal
    "reciprocal-square": (4.0, 4.0),  # as above
    "sigmoid-quotient": (4.0, 4.0),
    "common-factor-of-rows": (2.0, 2.0),  # a difference is at most twice as large as what it is of
}
NONE = (1.0, 1.0)
# What is not held to the range, and why.
EXEMPT = {
    "product-order": "the sizes of the tensors alone decide; low-rank layers are many times faster by it, and products "
    "of weights and activations are sums that lie far from the ends of the range",
    "variance-of-moments": "the left side cancels: it has no digits to compare at such magnitudes; squares of "
    "differences add up to no more than the squares did",
    "log-one-plus": "the left side loses the digits of a small x; that is why the rule is there",
    "log-of-exp": "the left side loses the digits of a small x, and overflows at 89",
    "shifted-softmax": "the left side loses x beside a large shift; the right side is what was meant",
    "shifted-log-softmax": "as above",
    "cast-of-equal": "0 and 1",
    "sum-of-pads": "adds nothing but zeros",
    "sum-of-expand": "terms of one sign: no sum on the way is larger than the result",
}


REMEDY = (
    "a law that leaves the range of float32, or loses digits, is APPROXIMATE, has a guard, or a `scaled` value; if the "
    "left side is the worse one, name the law in EXEMPT of this file with the reason, and a small margin in MARGINS"
)


def test_the_tables_name_rules_that_exist() -> None:
    names = {r.name for r in (*LAWS, *INSTANCE_LAWS)}
    assert set(MARGINS) | set(EXEMPT) <= names
    assert {r.name for r in LAWS if r.scaled} == set(MOVED)


def evaluated(root: Node, inputs: dict[str, Any]) -> list[tuple[Node, Any]]:
    """Every value on the way, rounded to its dtype."""
    run, values = StepValues(inputs, {}, {}, {}, 0, 0), dict[Node, Any]()
    with np.errstate(all="ignore"):
        for node in toposort([root]):
            value = VALUES[node.op](run, node.attrs, *(values[i] for i in node.inputs))
            rounded = np.asarray(value, node.type.dtype.numpy)
            if node.type.dtype.is_float:  # a step runs with subnormal numbers as zeros
                rounded = np.where(np.abs(rounded) < TINY, np.float32(0), rounded)
            values[node] = rounded
    return list(values.items())


def stands(values: dict[Node, Any], margin: tuple[float, float]) -> bool:
    """Is every number normal, with the margin, and does no sum cancel?"""
    below, above = margin
    floats = [np.abs(v) for n, v in values.items() if n.type.dtype.is_float and n.op not in ("constant", "expand")]
    return all(np.all((v >= TINY * below) & (v <= LARGEST / above)) for v in floats) and not _cancels(values)


def drawn(case: Case | ExactCase, magnitudes: tuple[float, ...], rng: np.random.Generator) -> dict[str, Any]:
    out = {}
    floats = [n for n, node in case.leaves.items() if node.type.dtype.is_float]
    size = dict(zip(floats, magnitudes, strict=True))
    for name, value in case.values(rng).items():
        if name in size:
            sign = -1.0 if rng.random() < 0.3 and name not in case.rule.positive else 1.0
            value = (sign * size[name] * rng.uniform(1.0, 3.0, value.shape)).astype(np.float32)
        out[name] = value
    return out


def mismatches(
    case: Case | ExactCase, rng: np.random.Generator, margin: tuple[float, float] = NONE
) -> tuple[int, list[str]]:
    """How many draws the left side stands, and where the right side does not."""
    floats = [n for n in case.leaves.values() if n.type.dtype.is_float]
    mixes = list(product(MAGNITUDES, repeat=len(floats)))
    if len(mixes) > MIXES:
        mixes = [mixes[i] for i in rng.choice(len(mixes), MIXES, replace=False)]
    tried, wrong = 0, []
    for mix in mixes:
        inputs = drawn(case, mix, rng)
        values = evaluated(case.left, inputs)
        left = values[-1][1]
        if not stands(dict(values), margin):
            continue
        other = evaluated(case.right, inputs)
        if _cancels(dict(other)):
            continue
        right = other[-1][1]
        tried += 1
        if not np.allclose(right, left, rtol=1e-4, atol=0, equal_nan=True):
            wrong.append(f"at {mix}: {left.flat[0]} became {right.flat[0]}")
    return tried, wrong


def _cancels(values: dict[Node, Any]) -> bool:
    sums = [(n, np.abs(v)) for n, v in values.items() if n.op in ("add", "sub") and n.type.dtype.is_float]
    return any(np.any(v < 0.1 * np.maximum(*(np.abs(values[i]) for i in n.inputs))) for n, v in sums)


HELD = [r for r in LAWS if r.exactness <= Exactness.REASSOCIATING and r.name not in EXEMPT]


@pytest.mark.parametrize("rule", HELD, ids=lambda r: r.name)
def test_a_law_stays_in_range(rule: Rule) -> None:
    rng = np.random.default_rng(0)
    margin = MARGINS.get(rule.name, NONE)
    sample = dict(rule.samples[0])
    own = [n for n, v in sample.items() if isinstance(v, float) and n.islower()]
    tried = 0
    for numbers in product(NUMBERS, repeat=len(own)):
        changed = {**sample, **dict(zip(own, numbers, strict=True))}
        with np.errstate(all="ignore"):  # numbers that the guard refuses
            case = Case(rule, changed, float32)
        if rule.guard is not None and not rule.guard.evaluate(case.numbers()):
            continue
        stood, wrong = mismatches(case, rng, margin)
        tried += stood
        assert not wrong, f"{rule.law} with {dict(zip(own, numbers, strict=True))}: {wrong[0]}; {REMEDY}"
    assert tried > 0, f"{rule.law}: the left side is normal at no magnitude, so nothing was compared; {REMEDY}"


@pytest.mark.parametrize("law", [x for x in INSTANCE_LAWS if x.name not in EXEMPT], ids=lambda x: x.name)
def test_an_instance_stays_in_range(law: InstanceLaw) -> None:
    tables, rng = Tables(), np.random.default_rng(0)
    results = [mismatches(ExactCase(rule, tables, float32), rng) for rule in law.rules(law.sample(), tables)]
    assert not [text for _, wrong in results for text in wrong]
    assert sum(tried for tried, _ in results) > 0


def test_the_test_finds_a_law_that_leaves_the_range() -> None:
    (law,) = (r for r in LAWS if r.name == "common-factor")
    assert law.exactness is Exactness.APPROXIMATE
    _, wrong = mismatches(Case(law, {}, float32), np.random.default_rng(0))
    assert wrong


def test_numbers_are_judged_by_float32() -> None:
    assert all(is_normal(x) for x in (1.0, -1e38, 1.2e-38))
    assert not any(is_normal(x) for x in (0.0, 1e-39, 1e39, float("inf"), float("nan")))
    assert all(is_moderate(x) for x in (1.0, -0.5, MOST_ABOVE))
    assert not any(is_moderate(x) for x in (0.0, 0.4, 200.0, -1e20, float("inf"), float("nan")))


def test_a_number_that_the_dtype_does_not_hold_is_never_made() -> None:
    tables = Tables()
    type = tables.type_id(TensorType((2,), float32))
    for value in (1e-60, 1e60):
        with pytest.raises(AssertionError, match="which float32 cannot represent"):
            make_node(ENode(FULL, (value,), type, ()), (), tables, ("", None))


X, Y = leaf("x", (3,), float32), leaf("y", (3,), float32)
SCALED = [(0.3, {"scale-scale"}), (1e-20, set()), (1e20, set())]


@pytest.mark.parametrize(("c", "rules"), SCALED)
def test_the_guards_hold_in_the_e_graph_too(c: float, rules: set[str]) -> None:
    twice = graph_of(b.scale(b.scale(X, c), c), b.mul(b.scale(X, c), b.scale(Y, c)))
    report = optimize(twice, {})[1]
    assert report.complete
    assert rules <= set(report.applied)
    assert bool(rules) == bool(report.applied)


@pytest.mark.parametrize(("c", "changes"), [(3.0, True), (1e-30, True), (3e38, False), (1e-39, False)])
def test_so_do_those_of_divisions(c: float, changes: bool) -> None:
    assert bool(optimize(graph_of(b.div(X, b.full_like(X, c))), {})[1].applied) == changes


def test_a_session_keeps_the_range() -> None:
    """The programs that were wrong: 0 and infinities for numbers that float32 holds."""
    g = ws.Graph()
    x, y, z = (g.input(n, ("batch",)) for n in "xyz")
    g.set_outputs(
        {
            "a": (x * 1e-20) * (y * 1e-20),
            "b": x / 3e38,
            "c": x * y + x * z,
            "d": (x * 1e20) * (y * 1e20),
            "e": (x * 1e-30).sum() + (y * 1e-30).sum(),
        }
    )
    session = ws.build_inference_session(g, batch_size=2)

    def outputs(*values: float) -> dict[str, float]:
        found = session.step(**{n: np.full(2, v, np.float32) for n, v in zip("xyz", values, strict=True)})
        return {name: float(np.ravel(found[name])[0]) for name in "abcde"}

    assert outputs(1e25, 1e25, 0.0)["a"] == pytest.approx(1e10)
    assert outputs(3e38, 0.0, 0.0)["b"] == pytest.approx(1.0)
    assert outputs(1e-30, 3e38, 3e38)["c"] == pytest.approx(6e8)
    assert outputs(1e-25, 1e-25, 0.0)["d"] == pytest.approx(1e-10)
    assert outputs(3e38, 3e38, 0.0)["e"] == pytest.approx(1.2e9)
