"""Profile of a program: the ranks, axes, widths, dtypes, constants and types for which composites are instantiated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, below
from wholestep.compiler.ir.type_rules.layers import values_per_channel
from wholestep.compiler.ir.types import DType, Extent, Shape, TensorType, product
from wholestep.compiler.passes.egraph.encode import full_value

VIEWS = ("permute", "reshape")


@dataclass(frozen=True)
class Scores:
    """The shapes of one attention: of its scores, of its head, and of its values."""

    lead: Shape
    queries: Extent
    keys: Extent
    width: Extent
    value_width: Extent
    dtype: DType


@dataclass(frozen=True)
class InstanceProfile:
    """The profile of a program, from its reductions, composites and constants."""

    dtypes: tuple[DType, ...]
    labels: tuple[DType, ...]  # integer dtypes
    reduced: tuple[tuple[int, int], ...]  # (rank, axis) of sums and maxima over one axis
    rows: tuple[tuple[int, int], ...]  # (rank, width) of reductions over a last axis of known width
    numbers: tuple[float, ...]  # the constants, as a user would write them
    added: tuple[float, ...]  # those that are added to something
    scales: tuple[float, ...]  # the constants that scale a product
    biased: bool  # is a term added to a product, as a mask is added to scores?
    projected: tuple[TensorType, ...]  # rows of known width with sums of products, as in gradients of norms
    scores: tuple[Scores, ...]  # products with sums of products over their rows, as in gradients of attention
    grouped: tuple[tuple[TensorType, int], ...]  # (x, groups) of reshapes of x that split its channels into groups
    batched: tuple[TensorType, ...]  # (N, C, ...) whose squares are summed over all axes but the second
    draws: tuple[at.RandomAttrs, ...]


def profile(graph: IRGraph) -> InstanceProfile:
    """The profile of a graph; deterministic."""
    dtypes: set[DType] = set()
    reduced: set[tuple[int, int]] = set()
    rows: set[tuple[int, int]] = set()
    numbers: set[float] = set()
    added: set[float] = set()
    for n in graph.nodes:
        dtypes |= {i.result.dtype for i in n.inputs if isinstance(i.result, TensorType)}
        for rank, axis in _reductions(n):
            reduced.add((rank, axis))
            width = n.inputs[0].type.shape[axis]
            if axis == rank - 1 and isinstance(width, int):
                rows.add((rank, width))
        if (value := full_value(n)) is not None:
            numbers.add(_shortest_decimal(value, n.type.dtype))
        for i in n.inputs if n.op in ("add", "sub") else ():
            if (value := full_value(i)) is not None:
                added.add(_shortest_decimal(value, i.type.dtype))
    by_name = sorted(dtypes, key=lambda d: d.name)
    projected = dict.fromkeys(_projections(graph))
    return InstanceProfile(
        tuple(d for d in by_name if _laws_hold(d)),
        tuple(d for d in by_name if d.is_integer),
        tuple(sorted(reduced)),
        tuple(sorted(rows)),
        tuple(sorted(numbers)),
        tuple(sorted(added)),
        tuple(sorted(set(_scales(graph)))),
        any(n.op == "add" and any(_is_scaled_product(i) for i in n.inputs) for n in graph.nodes),
        tuple(t for t in projected if isinstance(t.shape[-1], int)),
        tuple(dict.fromkeys(_scores(graph, frozenset(projected)))),
        tuple(dict.fromkeys(_groupings(graph))),
        tuple(dict.fromkeys(_batches(graph))),
        tuple(dict.fromkeys(attrs_of(n, at.RandomAttrs) for n in graph.nodes if n.op == "random")),
    )


def _laws_hold(dtype: DType) -> bool:
    """Do the laws hold for this dtype?  Half types round at every op, so the laws do not hold."""
    return dtype.is_float and not dtype.is_half


def _reductions(n: Node) -> list[tuple[int, int]]:
    if isinstance(n.attrs, at.ReduceAttrs) and len(n.attrs.axes) == 1:
        return [(n.inputs[0].type.rank, n.attrs.axes[0])]
    if isinstance(n.attrs, at.SoftmaxAttrs):
        return [(n.inputs[0].type.rank, n.attrs.axis)]
    return [(n.inputs[0].type.rank, n.type.rank)] if n.op == "cross_entropy" else []


def _shortest_decimal(value: float, dtype: DType) -> float:
    """The shortest decimal that rounds to the value: 1e-5, not the nearest float32, as attributes hold it."""
    return float(str(dtype.numpy.type(value))) if dtype.is_float else value


# -- attention ---------------------------------------------------------------------------------------------------


def _scales(graph: IRGraph) -> Iterator[float]:
    """Constants that scale a product or an operand of one; 1 if scores may be unscaled."""
    for n in graph.nodes:
        if n.op in ("softmax", "max", "where") and any(_is_unscaled_product(i) for i in n.inputs):
            yield 1.0
        scaled = [below(i, VIEWS) for i in n.inputs] if n.op == "matmul" else []
        for node in (n, *scaled) if any(i.op == "matmul" for i in n.inputs) else scaled:
            yield from _factors(node)


def _factors(node: Node) -> Iterator[float]:
    """The positive constant factors of a node; for a divisor, its reciprocal."""
    for value in (full_value(i) for i in node.inputs) if node.op in ("mul", "div") else ():
        if value is not None and value > 0:
            written = _shortest_decimal(value, node.type.dtype)
            yield written if node.op == "mul" else 1.0 / written


def _is_unscaled_product(node: Node) -> bool:
    """A product, possibly plus a mask, of unscaled operands."""
    if node.op == "add":
        return any(i.op == "matmul" and _is_unscaled_product(i) for i in node.inputs)
    return node.op == "matmul" and not any(list(_factors(below(i, VIEWS))) for i in node.inputs)


def _is_scaled_product(node: Node) -> bool:
    return node.op == "matmul" or (node.op in ("mul", "div") and any(i.op == "matmul" for i in node.inputs))


def _projections(graph: IRGraph) -> Iterator[TensorType]:
    """Types with sums over rows of products, such as Σ p·dp or Σ g·n."""
    for n in graph.nodes:
        if n.op == "sum" and n.inputs[0].op == "mul" and len(set(n.inputs[0].inputs)) == 2:
            (x,) = n.inputs
            if attrs_of(n, at.SumAttrs).axes == (x.type.rank - 1,) and _laws_hold(x.type.dtype):
                yield x.type


def _scores(graph: IRGraph, projected: frozenset[TensorType]) -> Iterator[Scores]:
    """Pairs of products of equal shape: q·kᵀ, and g·vᵀ in the gradient, in both assignments of their inner widths."""
    products = [n for n in graph.nodes if n.op == "matmul"]
    for t in dict.fromkeys(n.type for n in products if n.type in projected):
        widths = list(dict.fromkeys(_inner(n) for n in products if n.type == t))
        for width, value_width in permutations(widths, 2) if len(widths) > 1 else ((widths[0], widths[0]),):
            yield Scores(t.shape[:-2], t.shape[-2], t.shape[-1], width, value_width, t.dtype)


def _inner(node: Node) -> Extent:
    return node.inputs[0].type.shape[-2 if _flags(node).transpose_a else -1]


def _flags(node: Node) -> at.MatmulAttrs:
    return attrs_of(node, at.MatmulAttrs)


# -- groups ------------------------------------------------------------------------------------------------------


def _groupings(graph: IRGraph) -> Iterator[tuple[TensorType, int]]:
    """The reshapes of (N, C, ...) to (N, groups, elements of a group) or (N, groups, C / groups, ...)."""
    for n in graph.nodes:
        if n.op != "reshape" or n.inputs[0].type.rank < 2 or n.type.rank < 3 or not _laws_hold(n.type.dtype):
            continue
        x, (batch, groups, *rest) = n.inputs[0].type, n.type.shape
        channels = x.shape[1]
        if batch == x.shape[0] and isinstance(channels, int) and isinstance(groups, int) and groups > 0:
            each = (channels // groups, *x.shape[2:])
            if channels % groups == 0 and tuple(rest) in (each, (product(each),)):
                yield x, groups


def _batches(graph: IRGraph) -> Iterator[TensorType]:
    """Types of products that are summed over all axes but the second, at once or trailing axes first."""
    for n in graph.nodes:
        x, axes = _summand(n)
        if x.op not in ("mul", "pow") or x.type.rank < 2 or not _laws_hold(x.type.dtype):
            continue
        if axes == (0, *range(2, x.type.rank)) and values_per_channel(x.type.shape) != 1:
            yield x.type


def _summand(node: Node) -> tuple[Node, tuple[int, ...]]:
    """The operand and the axes of a sum, or of a sum of a sum."""
    if node.op != "sum":
        return node, ()
    (x,), axes = node.inputs, attrs_of(node, at.SumAttrs).axes
    if axes == (0,) and x.op == "sum" and attrs_of(x, at.SumAttrs).axes[0] == 2:
        return x.inputs[0], (0, *attrs_of(x, at.SumAttrs).axes)
    return x, axes
