"""Laws of reductions: factors that are constant along the reduced axes leave the sum; broadcast values; variances.

Laws that depend on sizes (how often a value is repeated, which divisor is a mean) are instantiated per program.
"""

from __future__ import annotations

from collections.abc import Iterator

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import Dim, Extent, TensorType, float64, product
from wholestep.compiler.passes.egraph.rules.from_nodes import InstanceLaw, Pair, fold_sizes, leaf
from wholestep.compiler.passes.egraph.rules.rule import Exactness, FamilyRows, RuleScope, Sample
from wholestep.compiler.passes.egraph.terms import pack_axes

B, R, A = Exactness.BITWISE, Exactness.REASSOCIATING, Exactness.APPROXIMATE

rows = FamilyRows("reductions")
rule = rows.rule

_ROWS: dict[str, Sample] = {"x": (3, 4), "y": (3,), "A": 0b10, "P": pack_axes((0,)), "T": (3, 4)}

rule(
    "sum-scaled",
    "sum(x * const(c), A) = sum(x, A) * const(c)",
    "one product instead of one per term; a factor below 1 may be needed to keep the sum in range",
    R,
    guard="c * c >= 1.0",
    refused=({"c": 0.25},),
    samples=({"x": (3, 4), "A": 0b10, "c": -1.7},),
)
rule(
    "sum-neg",
    "sum(-x, A) = -sum(x, A)",
    "rounding is symmetric in the sign, except for the sign of a zero sum",
    R,
    samples=({"x": (3, 4), "A": 0b01},),
)
rule(
    "neg-sum",
    "-sum(x, A) = sum(-x, A)",
    "rounding is symmetric in the sign, except for the sign of a zero sum",
    R,
    scope=RuleScope.ANYWHERE,
    samples=({"x": (3, 4), "A": 0b01},),
)
rule("neg-ratio", "-ratio(x, y) = ratio(-x, y)", "the sign of a quotient", B, scope=RuleScope.ANYWHERE, positive=("y",))
rule(
    "sum-factor",
    "sum(x * expand(y, P, T), A, R) = sum(x, A, R) * y",
    "a common factor of all terms leaves the sum; without it the sum may overflow",
    A,
    guard="repeats(A, P, T)",
    refused=({"A": 0b01, "P": pack_axes((0,)), "T": (3, 4)}, {"A": 0b10, "P": pack_axes((0,)), "T": (3, 4, 5)}),
    samples=(_ROWS,),
)

RULES = tuple(rows.rows)


# -- broadcast values --------------------------------------------------------------------------------------------


def _reductions_of_expands(graph: IRGraph, op: str) -> Iterator[tuple[Node, Node, tuple[int, ...]]]:
    """(expand, reduction of it, axes) over leaves, for every expand and every reduction of its type in a program."""
    reductions: dict[TensorType, dict[tuple[int, ...], Node]] = {}
    for n in graph.nodes:
        if n.op == op:
            reductions.setdefault(n.inputs[0].type, {}).setdefault(b.attrs_of(n, at.ReduceAttrs).axes, n)
    for n in graph.nodes:
        if n.op == "expand" and n.inputs[0].type.rank > 0 and n.type.dtype.is_float and not n.type.dtype.is_half:
            for axes, reduction in reductions.get(n.type, {}).items():
                expanded = b.make("expand", (leaf("x", n.inputs[0].type),), n.attrs)
                yield expanded, b.make(op, (expanded,), reduction.attrs), axes


def _reduce_before_expand(expand: Node, axes: tuple[int, ...], op: str) -> Node:
    """Reduce the expand's input over the axes that it has, then broadcast it to the remaining axes."""
    (x,), axis_map = expand.inputs, attrs_of(expand, at.ExpandAttrs).axes
    inner = tuple(d for d, axis in enumerate(axis_map) if axis in axes)
    reduced = b.sum_axes(x, inner) if op == "sum" else b.max_axes(x, inner)
    remaining = [d for d in range(expand.type.rank) if d not in axes]
    new_axes = [remaining.index(p) for p in axis_map if p not in axes]
    return b.expand_to(reduced, tuple(expand.type.shape[d] for d in remaining), new_axes)


def _sums_of_expands(graph: IRGraph) -> Iterator[Pair]:
    for expanded, total, axes in _reductions_of_expands(graph, "sum"):
        repeated = [d for d in axes if d not in attrs_of(expanded, at.ExpandAttrs).axes]
        if repeated:
            reduced = _reduce_before_expand(expanded, axes, "sum")
            yield total, b.mul(reduced, _number_like(reduced, product(expanded.type.shape[d] for d in repeated)))


def _number_like(x: Node, count: Extent) -> Node:
    return fold_sizes(b.expand_to(b.count(count, x.type.dtype), x.type.shape, ()))


def _maxima_of_expands(graph: IRGraph) -> Iterator[Pair]:
    for expanded, largest, axes in _reductions_of_expands(graph, "max"):
        if any(d not in attrs_of(expanded, at.ExpandAttrs).axes for d in axes):
            yield largest, _reduce_before_expand(expanded, axes, "max")


# -- variances ---------------------------------------------------------------------------------------------------


def _variances(graph: IRGraph) -> Iterator[Pair]:
    """Σx²/n - (Σx/n)² for every sum of squares of a program."""
    squared: dict[tuple[TensorType, tuple[int, ...]], None] = {}
    for n in graph.nodes:
        if n.op == "sum" and _is_square(n.inputs[0]) and n.type.dtype.is_float and not n.inputs[0].type.dtype.is_half:
            squared[n.inputs[0].type, attrs_of(n, at.SumAttrs).axes] = None
    for type, axes in squared:
        x = leaf("x", type)
        mean, squares = _mean(x, axes), _mean(b.mul(x, x), axes)
        centred = b.sub(x, b.restore_axes(mean, axes, type.shape))
        yield b.sub(squares, b.mul(mean, mean)), _mean(b.mul(centred, centred), axes)


def _is_square(node: Node) -> bool:
    if node.op == "pow":
        return b.constant_value(node.inputs[1]) == 2
    return node.op == "mul" and node.inputs[0] is node.inputs[1]


def _mean(x: Node, axes: tuple[int, ...]) -> Node:
    """A mean in the form that other rules produce: a product with 1/n if n is known, else a ratio."""
    total, count = b.sum_axes(x, axes), product(x.type.shape[d] for d in axes)
    if isinstance(count, int):
        return b.scale(total, 1.0 / count)
    return b.make("ratio", (total, b.expand_to(b.count(count, x.type.dtype), total.type.shape, ())))


# -- samples -----------------------------------------------------------------------------------------------------


def _sample(*nodes: Node) -> IRGraph:
    outputs = tuple(Output(f"y{i}", n) for i, n in enumerate(nodes))
    return IRGraph(outputs, (), tuple(n for n in IRGraph(outputs).nodes if n.op == "input"))


def _tensor(name: str, *shape: Extent) -> Node:
    return b.make("input", (), at.InputAttrs(name, TensorType(shape, float64)))


_N = Dim.symbol("n")


def _repeat_samples() -> list[Node]:
    x, y = _tensor("x", _N, 4), _tensor("y", 3)
    return [b.expand_to(x, (_N, 5, 4), (0, 2)), b.expand_to(y, (_N, 3), (1,))]


def _sum_sample() -> IRGraph:
    wide, rows = _repeat_samples()
    return _sample(*(b.sum_axes(wide, axes) for axes in ((1,), (1, 2), (0, 1))), b.sum_axes(rows, (0,)))


def _max_sample() -> IRGraph:
    wide, rows = _repeat_samples()
    return _sample(*(b.max_axes(wide, axes) for axes in ((1,), (1, 2))), b.max_axes(rows, (0,)))


def _variance_sample() -> IRGraph:
    x, y = _tensor("x", _N, 6), _tensor("y", _N, 2, 3)
    nodes = [(x, (1,)), (y, (1, 2)), (x, (0,))]
    return _sample(*(b.sub(_mean(b.mul(v, v), a), b.mul(_mean(v, a), _mean(v, a))) for v, a in nodes))


LAWS: tuple[InstanceLaw, ...] = (
    InstanceLaw(
        "sum-of-expand",
        "reductions",
        "sum(expand(x)) = x * n",
        "a value that is repeated n times is counted, not added n times",
        R,
        _sums_of_expands,
        _sum_sample,
    ),
    InstanceLaw(
        "max-of-expand",
        "reductions",
        "max(expand(x)) = x",
        "the largest of equal values",
        B,
        _maxima_of_expands,
        _max_sample,
    ),
    # The reverse would save a pass, but cancellation loses all digits if the mean is large compared with the deviation:
    # no level of exactness allows it.
    InstanceLaw(
        "variance-of-moments",
        "reductions",
        "mean(x²) - mean(x)² = mean((x - mean(x))²)",
        "no cancellation, and it is never negative",
        R,
        _variances,
        _variance_sample,
        RuleScope.ANYWHERE,
        replaces=True,
    ),
)
