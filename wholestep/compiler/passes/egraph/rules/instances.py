"""What the definitions of composites may be applied to in a program: ranks, axes, widths, dtypes, numbers, types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.type_rules.layers import values_per_channel
from wholestep.compiler.ir.types import DType, Extent, Shape, TensorType, product
from wholestep.compiler.passes.egraph.encode import full_value


@dataclass(frozen=True)
class Scores:
    """A product of queries and keys, and the width of the values that it weighs: the types of one attention."""

    lead: Shape
    queries: Extent
    keys: Extent
    width: Extent
    value_width: Extent
    dtype: DType


@dataclass(frozen=True)
class InstanceProfile:
    """Read from the reductions, the named ops and the constants of a graph."""

    dtypes: tuple[DType, ...]
    labels: tuple[DType, ...]  # of integers
    reduced: tuple[tuple[int, int], ...]  # (rank, axis) of sums and maxima over one axis
    rows: tuple[tuple[int, int], ...]  # (rank, width) of those over a last axis of known width
    numbers: tuple[float, ...]  # the constants, as a user would write them
    scales: tuple[float, ...]  # those that a product is scaled by
    biased: bool  # is something added to a product, as a mask is to scores?
    projected: tuple[TensorType, ...]  # rows of known width with sums of products: gradients of norms have them
    scores: tuple[Scores, ...]  # of products whose products with others are summed: gradients of attention have them
    grouped: tuple[tuple[TensorType, int], ...]  # (x, groups) of reshapes of x that cut its channels into groups
    batched: tuple[TensorType, ...]  # (N, C, ...) whose squares are summed over all axes but the second
    draws: tuple[at.RandomAttrs, ...]


def profile(graph: IRGraph) -> InstanceProfile:
    """The profile of a graph; equal graphs have equal ones."""
    dtypes: set[DType] = set()
    reduced: set[tuple[int, int]] = set()
    rows: set[tuple[int, int]] = set()
    numbers: set[float] = set()
    for n in graph.nodes:
        dtypes |= {i.result.dtype for i in n.inputs if isinstance(i.result, TensorType)}
        for rank, axis in _reductions(n):
            reduced.add((rank, axis))
            width = n.inputs[0].type.shape[axis]
            if axis == rank - 1 and isinstance(width, int):
                rows.add((rank, width))
        if (value := full_value(n)) is not None:
            numbers.add(_as_written(value, n.type.dtype))
    by_name = sorted(dtypes, key=lambda d: d.name)
    projected = dict.fromkeys(_projections(graph))
    return InstanceProfile(
        tuple(d for d in by_name if _is_law_abiding(d)),
        tuple(d for d in by_name if d.is_integer),
        tuple(sorted(reduced)),
        tuple(sorted(rows)),
        tuple(sorted(numbers)),
        tuple(sorted(set(_scales(graph)))),
        any(n.op == "add" and any(_is_scaled_product(i) for i in n.inputs) for n in graph.nodes),
        tuple(t for t in projected if isinstance(t.shape[-1], int)),
        tuple(dict.fromkeys(_scores(graph, frozenset(projected)))),
        tuple(dict.fromkeys(_groupings(graph))),
        tuple(dict.fromkeys(_batches(graph))),
        tuple(dict.fromkeys(attrs_of(n, at.RandomAttrs) for n in graph.nodes if n.op == "random")),
    )


def _is_law_abiding(dtype: DType) -> bool:
    """A float of whose arithmetic rules speak; half types round at every op, and are left alone."""
    return dtype.is_float and not dtype.is_half


def _reductions(n: Node) -> list[tuple[int, int]]:
    if n.op in ("sum", "max") and len(n.attrs.axes) == 1:  # type: ignore[attr-defined]
        return [(n.inputs[0].type.rank, n.attrs.axes[0])]  # type: ignore[attr-defined]
    if n.op in ("softmax", "log_softmax", "logsumexp"):
        return [(n.inputs[0].type.rank, n.attrs.axis)]  # type: ignore[attr-defined]
    return [(n.inputs[0].type.rank, n.type.rank)] if n.op == "cross_entropy" else []


def _as_written(value: float, dtype: DType) -> float:
    """1e-5, not the float32 nearest to it: attributes hold what the user wrote."""
    return float(str(dtype.numpy.type(value))) if dtype.is_float else value


# -- attention ---------------------------------------------------------------------------------------------------


def _scales(graph: IRGraph) -> Iterator[float]:
    """Numbers that a product, or an operand of one, is multiplied with or divided by; 1 where scores may be plain."""
    for n in graph.nodes:
        if n.op in ("softmax", "max", "where") and any(_plain_product(i) for i in n.inputs):
            yield 1.0
        scaled = [_skip_views(i) for i in n.inputs] if n.op == "matmul" else []
        for node in (n, *scaled) if any(i.op == "matmul" for i in n.inputs) else scaled:
            yield from _factors(node)


def _factors(node: Node) -> Iterator[float]:
    """The positive numbers that a node multiplies with, or divides by."""
    for value in (full_value(i) for i in node.inputs) if node.op in ("mul", "div") else ():
        if value is not None and value > 0:
            written = _as_written(value, node.type.dtype)
            yield written if node.op == "mul" else 1.0 / written


def _skip_views(node: Node) -> Node:
    while node.op in ("permute", "reshape"):
        (node,) = node.inputs
    return node


def _plain_product(node: Node) -> bool:
    """A product, maybe with a mask, of operands that are not scaled themselves."""
    if node.op == "add":
        return any(i.op == "matmul" and _plain_product(i) for i in node.inputs)
    return node.op == "matmul" and not any(list(_factors(_skip_views(i))) for i in node.inputs)


def _is_scaled_product(node: Node) -> bool:
    return node.op == "matmul" or (node.op in ("mul", "div") and any(i.op == "matmul" for i in node.inputs))


def _projections(graph: IRGraph) -> Iterator[TensorType]:
    """Types whose rows are multiplied with other rows and summed: Σ p·dp, Σ g·n."""
    for n in graph.nodes:
        if n.op == "sum" and n.inputs[0].op == "mul" and len(set(n.inputs[0].inputs)) == 2:
            (x,) = n.inputs
            if attrs_of(n, at.SumAttrs).axes == (x.type.rank - 1,) and _is_law_abiding(x.type.dtype):
                yield x.type


def _scores(graph: IRGraph, projected: frozenset[TensorType]) -> Iterator[Scores]:
    """Products with as many rows and columns: q·kᵀ, and g·vᵀ in the gradient, of which either may be the wider."""
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
    """(N, C, ...) as (N, groups, elements of a group), or as (N, groups, C / groups, ...)."""
    for n in graph.nodes:
        if n.op != "reshape" or n.inputs[0].type.rank < 2 or n.type.rank < 3 or not _is_law_abiding(n.type.dtype):
            continue
        x, (batch, groups, *rest) = n.inputs[0].type, n.type.shape
        channels = x.shape[1]
        if batch == x.shape[0] and isinstance(channels, int) and isinstance(groups, int) and groups > 0:
            each = (channels // groups, *x.shape[2:])
            if channels % groups == 0 and tuple(rest) in (each, (product(each),)):
                yield x, groups


def _batches(graph: IRGraph) -> Iterator[TensorType]:
    """Types of products that are summed over all axes but the second, at once or those behind it first."""
    for n in graph.nodes:
        x, axes = _summand(n)
        if x.op not in ("mul", "pow") or x.type.rank < 2 or not _is_law_abiding(x.type.dtype):
            continue
        if axes == (0, *range(2, x.type.rank)) and values_per_channel(x.type.shape) != 1:
            yield x.type


def _summand(node: Node) -> tuple[Node, tuple[int, ...]]:
    """What a sum, or one of a sum, adds up, and along which axes."""
    if node.op != "sum":
        return node, ()
    (x,), axes = node.inputs, attrs_of(node, at.SumAttrs).axes
    if axes == (0,) and x.op == "sum" and attrs_of(x, at.SumAttrs).axes[0] == 2:
        return x.inputs[0], (0, *attrs_of(x, at.SumAttrs).axes)
    return x, axes
