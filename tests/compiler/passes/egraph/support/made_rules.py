"""Rules that are made from a program, as cases: instances of laws, and names of composites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tests.compiler.passes.common import graph_of
from tests.compiler.passes.egraph.support.rule_cases import ExactCase
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, toposort
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import Dim, DType, TensorType, Type, float64, int32
from wholestep.compiler.passes.egraph.encode import Tables
from wholestep.compiler.passes.egraph.rules.composites import INSTANCES, rules_of_instance
from wholestep.compiler.passes.egraph.rules.from_nodes import leaf
from wholestep.compiler.passes.egraph.rules.instances import InstanceProfile, Scores
from wholestep.compiler.passes.egraph.rules.rule import Exactness, Rule
from wholestep.compiler.passes.egraph.rules.rule_set import INSTANCE_LAWS
from wholestep.compiler.passes.egraph.rules.tree import Number, Tree, Variable
from wholestep.compiler.passes.egraph.terms import TERMS

N = Dim.symbol("n")
ROWS = TensorType((N, 3, 4), float64)
IMAGES = TensorType((N, 4, 3, 2), float64)

# What a program with one of everything would be read as.
EVERYTHING = InstanceProfile(
    dtypes=(float64,),
    labels=(int32,),
    reduced=((2, 0), (3, 2)),
    rows=((3, 4),),
    numbers=(0.001, 4.0),
    added=(0.001,),
    scales=(0.25,),
    biased=True,
    projected=(ROWS,),
    scores=(Scores((N,), 5, 5, 4, 3, float64),),
    grouped=((IMAGES, 2),),
    batched=(IMAGES,),
    draws=(at.RandomAttrs("key", TensorType((N, 5), float64)),),
)


# Composites whose definitions must not overflow: they are tried far from 0 too.
FAR = frozenset(f"name-{op}" for op in ("softmax", "log_softmax", "logsumexp", "softplus", "cross_entropy", "tanh"))


@dataclass(frozen=True)
class Made:
    """A rule, what its numbers stand for, and the types of its tensors."""

    rule: Rule
    tables: Tables
    types: Mapping[str, Type]

    def case(self, rule: Rule | None = None, dtype: DType = float64) -> ExactCase:
        return ExactCase(rule or self.rule, self.tables, dtype, self.types)

    def holds(self, rule: Rule | None = None, seed: int = 0, rtol: float = 1e-9) -> bool:
        """Do both sides give the same types and, in float64, the same values?"""
        case = self.case(rule)
        if case.left.result != case.right.result:
            return False
        values = case.values(np.random.default_rng(seed))
        if seed % 2 and self.rule.name.split("@")[0] in FAR:
            values = {n: 400 * v if v.dtype == np.float64 else v for n, v in values.items()}
        got = interpret(case.graph(), inputs=values).outputs
        return bool(np.allclose(got["left"], got["right"], rtol=rtol, atol=rtol, equal_nan=True))


def instances() -> Iterator[Made]:
    """The rules of every instance law on its own sample."""
    for law in INSTANCE_LAWS:
        tables = Tables()
        for rule in law.rules(law.sample(), tables):
            yield Made(rule, tables, {n: tables.type(i) for n, i in rule.types if n[0].islower()})


def names(exactness: Exactness = Exactness.REASSOCIATING) -> Iterator[Made]:
    """The naming rules of every composite."""
    for op, of in INSTANCES.items():
        tables = Tables()
        for instance in of(EVERYTHING):
            leaves = [n for n in toposort([instance.node]) if n.op == "input"]
            types = {i.attrs.name: i.type for i in leaves}  # type: ignore[attr-defined]
            for rule in rules_of_instance(op, instance, exactness, tables):
                yield Made(rule, tables, types)


MADE_INSTANCES = tuple(instances())
MADE_NAMES = tuple(names())


def program_of(*several: Made) -> IRGraph:
    """The left sides as a program, over the types that the rules were made for."""
    nodes: dict[Tree, Node] = {}

    def build(tree: Tree) -> Node:
        if tree not in nodes:
            nodes[tree] = _node(several[0], tree, build)
        return nodes[tree]

    return graph_of(*(build(made.rule.left) for made in several))


def _node(made: Made, tree: Tree, build: Callable[[Tree], Node]) -> Node:
    if isinstance(tree, Variable):
        return leaf(tree.name, made.types[tree.name])  # type: ignore[arg-type]
    type = made.tables.type(int(tree.type[1:]))
    assert isinstance(type, TensorType)
    if isinstance(tree, Number):
        return b.full(float(tree.value.evaluate({})), type)
    slots = tuple(int(s.evaluate({})) for s in tree.slots)
    by_number = tree.opaque or tree.op not in TERMS
    attrs = made.tables.attributes[slots[0]][1] if by_number else TERMS[tree.op].read(slots, type)
    return Node(tree.op, [build(c) for c in tree.children], attrs)
