"""The definitions of composites, read from passes/decompose.py: what is written out gets its name.

The other direction is no rule: the encoder gives each composite of a program with its definition.  A definition depends
on the rank, the axis and the dtype of what it is applied to, so it becomes one rule per instance that a program can
hold: INSTANCES says which.  The types inside are variables; numbers are those of the dtype.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from itertools import chain

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Graph, Node, Output, toposort
from wholestep.compiler.ir.types import Dim, DType, Shape, TensorType, float32
from wholestep.compiler.passes.decompose import decomposition_of
from wholestep.compiler.passes.egraph.encode import Tables, full_value, is_opaque, slots_of
from wholestep.compiler.passes.egraph.rules.expression import Expression
from wholestep.compiler.passes.egraph.rules.profile import Profile
from wholestep.compiler.passes.egraph.rules.rule import Exactness, Rule, Scope
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable
from wholestep.compiler.passes.fold import fold

# -- instances: composites over symbolic inputs -------------------------------------------------------------------

Instances = Callable[[Profile], Iterator[tuple[str, Node]]]


def _tensor(name: str, rank: int, dtype: DType, width: int | None = None) -> Node:
    """A leaf whose dimensions are all different symbols, so that types are equal only where they must be."""
    shape: Shape = tuple(Dim.symbol(f"{name}{d}") for d in range(rank))
    if width is not None:
        shape = (*shape[:-1], width)
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


SMALLEST_EPS, LARGEST_EPS = 1e-12, 1e-2


def _norm(op: str, affine: int) -> Instances:
    """Over rows of a width that the program divides by, with every small number that it holds as eps."""

    def instances(p: Profile) -> Iterator[tuple[str, Node]]:
        for dtype in p.dtypes:
            for rank, width in p.rows:
                for eps in p.numbers if float(width) in p.numbers else ():
                    if SMALLEST_EPS <= eps <= LARGEST_EPS:
                        x = _tensor("x", rank, dtype, width)
                        others = [_tensor(name, 1, dtype, width) for name in ("weight", "bias")[:affine]]
                        node = b.make(op, (x, *others), at.NormAttrs(eps))
                        yield f"{dtype} rank {rank} width {width} eps {eps:g} inputs {affine + 1}", node

    return instances


def _attention(p: Profile) -> Iterator[tuple[str, Node]]:
    """With every number that the program holds as the scale."""
    for dtype in p.dtypes:
        for rank in sorted({rank for rank, axis in p.reduced if axis == rank - 1 and rank >= 2}):
            for scale in (n for n in p.numbers if 0 < n <= 1):
                for causal in (False, True):
                    lead = tuple(Dim.symbol(f"d{d}") for d in range(rank - 2))
                    time, keys = (Dim.symbol("t"), Dim.symbol("t")) if causal else (Dim.symbol("t"), Dim.symbol("k"))
                    shapes = {"q": (time, Dim.symbol("w")), "k": (keys, Dim.symbol("w")), "v": (keys, Dim.symbol("u"))}
                    qkv = [
                        b.make("input", (), at.InputAttrs(n, TensorType((*lead, *s), dtype))) for n, s in shapes.items()
                    ]
                    node = b.make("attention", qkv, at.AttentionAttrs(causal, scale))
                    yield f"{dtype} rank {rank} scale {scale:g} causal {causal}", node


def _cross_entropy(p: Profile) -> Iterator[tuple[str, Node]]:
    for rank, axis in p.reduced:
        if axis == rank - 1 and p.labels:
            x = _tensor("x", rank, (p.dtypes or (float32,))[0])
            shape = x.type.shape[:-1]
            labels = b.make("input", (), at.InputAttrs("y", TensorType(shape, p.labels[0])))
            yield f"rank {rank}", b.make("cross_entropy", (x, labels))


def _all(*several: Instances) -> Instances:
    return lambda p: chain.from_iterable(instances(p) for instances in several)


INSTANCES: dict[str, Instances] = {
    "relu": _elementwise("relu"),
    "sigmoid": _elementwise("sigmoid"),
    "silu": _elementwise("silu"),
    "gelu": _elementwise("gelu", at.GeluAttrs(False), at.GeluAttrs(True)),
    "softmax": _along_axis("softmax"),
    "log_softmax": _along_axis("log_softmax"),
    "cross_entropy": _cross_entropy,
    "layer_norm": _all(_norm("layer_norm", 0), _norm("layer_norm", 2)),
    "rms_norm": _all(_norm("rms_norm", 0), _norm("rms_norm", 1)),
    "attention": _attention,
}
# Written out these would go through memory, which the cost model does not see yet: they keep their names.
_NEVER_WRITTEN_OUT = frozenset({"layer_norm", "rms_norm", "attention"})

# Those with kernels of their own may differ from their definitions in the last bit; the others are lowered to them.
_OWN_KERNEL = frozenset({"relu", "sigmoid", "tanh"})
# max(x, 0) shares its gradient at 0 between both; relu gives none: recognising it before autodiff would change it.
_OTHER_GRADIENT = frozenset({"relu"})


def composite_rules(p: Profile, exactness: Exactness, tables: Tables) -> list[Rule]:
    """definition = name for every instance; equal ones once.  Attributes are numbered in the program's own tables."""
    found: dict[tuple[Tree, Tree], Rule] = {}
    for op, instances in INSTANCES.items():
        for label, node in instances(p):
            rule = naming_rule(op, label, node, exactness, tables)
            found.setdefault((rule.left, rule.right), rule)
    return list(found.values())


def defined_composites(exactness: Exactness) -> frozenset[str]:
    """The composites whose definition may stand in for them; the encoder adds it for each that a program holds."""
    return frozenset(INSTANCES) - _NEVER_WRITTEN_OUT - (_OWN_KERNEL if exactness is Exactness.BITWISE else frozenset())


def naming_rule(op: str, label: str, node: Node, exactness: Exactness, tables: Tables) -> Rule:
    """The rule of one instance."""
    dtype = node.inputs[0].type.dtype
    # Users round a constant such as 1/√2 in their own way.
    tolerance = 0.0 if exactness is Exactness.BITWISE else 4 * (1.2e-7 if dtype == float32 else 2.3e-16)
    name, (definition,) = _side(node, tables, 0.0), decomposition_of(node)
    definition = fold(Graph((Output("y", definition),))).outputs[0].node  # sizes that are known become numbers
    level = Exactness.REASSOCIATING if op in _OWN_KERNEL or tolerance else Exactness.BITWISE
    scope = Scope.STEP if op in _OTHER_GRADIENT else Scope.ANYWHERE
    left = _side(definition, tables, tolerance)
    kept = op in _NEVER_WRITTEN_OUT
    return Rule(f"name-{op}@{label}", "composites", left, name, "its definition", level, scope=scope, replaces=kept)


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
        plain = math.isinf(value) or float(value * 8).is_integer()  # 0.5, 1, 2 are written as they are
        loose = 0.0 if plain else tolerance
        return Number(Expression(ast.Constant(value)), loose, type)
    assert not is_opaque(node), f"a definition holds {node}, which no rule sees"
    slots = tuple(Expression(ast.Constant(s)) for s in slots_of(node.op, node.attrs, tables))
    return Apply(node.op, tuple(trees[i] for i in node.inputs), slots, type)
