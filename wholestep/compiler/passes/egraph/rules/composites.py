"""The definitions of composites, read from passes/decompose.py: what is written out gets its name.

The other direction is no rule: the encoder gives each composite of a program with its definition.  A definition depends
on the rank, the axis and the dtype of what it is applied to, so it becomes one rule per instance that a program can
hold: INSTANCES says which.  The types inside are variables; numbers are those of the dtype.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Graph, Node, toposort
from wholestep.compiler.ir.types import Dim, DType, TensorType, float32
from wholestep.compiler.passes.decompose import decomposition_of
from wholestep.compiler.passes.egraph.encode import Tables, full_value, is_opaque, slots_of
from wholestep.compiler.passes.egraph.rules.expression import Expression
from wholestep.compiler.passes.egraph.rules.rule import Exactness, Rule, Scope
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable


@dataclass(frozen=True)
class Profile:
    """What the definitions in a program may be applied to."""

    dtypes: tuple[DType, ...]
    reduced: tuple[tuple[int, int], ...]  # (rank, axis) of sums and maxima over one axis
    labels: tuple[DType, ...]


def profile(graph: Graph) -> Profile:
    """Read from the reductions and the named ops of a graph."""
    dtypes: set[DType] = set()
    labels: set[DType] = set()
    reduced: set[tuple[int, int]] = set()
    for n in graph.nodes:
        for t in (i.result for i in n.inputs):
            if isinstance(t, TensorType):
                (dtypes if t.dtype.is_float else labels).add(t.dtype)
        if n.op in ("sum", "max") and len(n.attrs.axes) == 1:  # type: ignore[attr-defined]
            reduced.add((n.inputs[0].type.rank, n.attrs.axes[0]))  # type: ignore[attr-defined]
        if n.op in ("softmax", "log_softmax"):
            reduced.add((n.type.rank, n.attrs.axis))  # type: ignore[attr-defined]
        if n.op == "cross_entropy":
            reduced.add((n.inputs[0].type.rank, n.type.rank))
    by_name = lambda d: d.name  # noqa: E731
    integers = tuple(d for d in sorted(labels, key=by_name) if d.is_integer)
    return Profile(tuple(sorted(dtypes, key=by_name)), tuple(sorted(reduced)), integers)


# -- instances: composites over symbolic inputs -------------------------------------------------------------------

Instances = Callable[[Profile], Iterator[tuple[str, Node]]]


def _tensor(name: str, rank: int, dtype: DType) -> Node:
    """A leaf whose dimensions are all different symbols, so that types are equal only where they must be."""
    shape = tuple(Dim.symbol(f"{name}{d}") for d in range(rank))
    return b.make("input", (), at.InputAttrs(name, TensorType(shape, dtype)))


def _elementwise(op: str, *choices: at.Attrs) -> Instances:
    def instances(p: Profile) -> Iterator[tuple[str, Node]]:
        for dtype in p.dtypes:
            for attrs in choices or (at.NONE,):
                yield f"{dtype} {attrs}", b.make(op, (_tensor("x", 1, dtype),), attrs)

    return instances


def _along_axis(op: str) -> Instances:
    def instances(p: Profile) -> Iterator[tuple[str, Node]]:
        for rank, axis in p.reduced:
            x = _tensor("x", rank, (p.dtypes or (float32,))[0])  # no numbers inside: one dtype stands for all
            yield f"rank {rank} axis {axis}", b.make(op, (x,), at.SoftmaxAttrs(axis))

    return instances


def _cross_entropy(p: Profile) -> Iterator[tuple[str, Node]]:
    for rank, axis in p.reduced:
        if axis == rank - 1 and p.labels:
            x = _tensor("x", rank, (p.dtypes or (float32,))[0])
            shape = x.type.shape[:-1]
            labels = b.make("input", (), at.InputAttrs("y", TensorType(shape, p.labels[0])))
            yield f"rank {rank}", b.make("cross_entropy", (x, labels))


INSTANCES: dict[str, Instances] = {
    "relu": _elementwise("relu"),
    "sigmoid": _elementwise("sigmoid"),
    "silu": _elementwise("silu"),
    "gelu": _elementwise("gelu", at.GeluAttrs(False), at.GeluAttrs(True)),
    "softmax": _along_axis("softmax"),
    "log_softmax": _along_axis("log_softmax"),
    "cross_entropy": _cross_entropy,
}

# Those with kernels of their own may differ from their definitions in the last bit; the others are lowered to them.
_OWN_KERNEL = frozenset({"relu", "sigmoid", "tanh"})
# max(x, 0) shares its gradient at 0 between both; relu gives none: recognising it before autodiff would change it.
_OTHER_GRADIENT = frozenset({"relu"})


def composite_rules(p: Profile, exactness: Exactness) -> list[Rule]:
    """definition = name for every instance; equal ones once."""
    tables = Tables()
    found: dict[tuple[Tree, Tree], Rule] = {}
    for op, instances in INSTANCES.items():
        for label, node in instances(p):
            rule = naming_rule(op, label, node, exactness, tables)
            found.setdefault((rule.left, rule.right), rule)
    return list(found.values())


def defined_composites(exactness: Exactness) -> frozenset[str]:
    """The composites whose definition may stand in for them; the encoder adds it for each that a program holds.

    Not norms and attention: written out they would go through memory, which the cost model does not see yet.
    """
    return frozenset(INSTANCES) - (_OWN_KERNEL if exactness is Exactness.BITWISE else frozenset())


def naming_rule(op: str, label: str, node: Node, exactness: Exactness, tables: Tables) -> Rule:
    """The rule of one instance."""
    dtype = node.inputs[0].type.dtype
    # Users round a constant such as 1/√2 in their own way.
    tolerance = 0.0 if exactness is Exactness.BITWISE else 4 * (1.2e-7 if dtype == float32 else 2.3e-16)
    name, (definition,) = _side(node, tables, 0.0), decomposition_of(node)
    level = Exactness.REASSOCIATING if op in _OWN_KERNEL or tolerance else Exactness.BITWISE
    scope = Scope.STEP if op in _OTHER_GRADIENT else Scope.ANYWHERE
    left = _side(definition, tables, tolerance)
    return Rule(f"name-{op}@{label}", "composites", left, name, "its definition", level, scope=scope)


def _side(root: Node, tables: Tables, tolerance: float) -> Tree:
    trees: dict[Node, Tree] = {}
    for node in toposort([root]):
        trees[node] = _tree(node, trees, tables, tolerance)
    return trees[root]


def _tree(node: Node, trees: dict[Node, Tree], tables: Tables, tolerance: float) -> Tree:
    if node.op == "input":
        return Variable(node.attrs.name)  # type: ignore[attr-defined]
    type = f"T{tables.type_id(node.result)}"
    value = full_value(node)
    if value is not None:
        loose = 0.0 if float(value * 8).is_integer() else tolerance  # 0.5, 1, 2 are written as they are
        return Number(Expression(ast.Constant(value)), loose, type)
    assert not is_opaque(node), f"a definition holds {node}, which no rule sees"
    slots = tuple(Expression(ast.Constant(s)) for s in slots_of(node.op, node.attrs, tables))
    return Apply(node.op, tuple(trees[i] for i in node.inputs), slots, type)
