"""What a step may be given, checked before it writes anything: indices below which size, extents of which least one."""

from __future__ import annotations

from wholestep.compiler.ir.build import constant_value
from wholestep.compiler.ir.graph import Graph, Node, held_graph
from wholestep.compiler.ir.layers import values_per_channel
from wholestep.compiler.ir.types import Extent, evaluate, symbols_of
from wholestep.compiler.plan.kernel import Bound, Least

TRANSPARENT = ("reshape", "permute", "expand", "slice", "cast", "stop_gradient")


def _indexed(node: Node) -> tuple[Node, Extent] | None:
    """(index tensor, size of the axis it points into) of an op that looks something up."""
    if node.op == "cross_entropy":
        return node.inputs[1], node.inputs[0].type.shape[-1]
    if node.op == "gather":
        return node.inputs[1], node.inputs[0].type.shape[node.attrs.axis]  # type: ignore[attr-defined]
    if node.op == "scatter_add":
        return node.inputs[1], node.attrs.size  # type: ignore[attr-defined]
    return None


def index_bounds(graph: Graph) -> tuple[Bound, ...]:
    """Bounds of the inputs that reach an index unchanged; computed indices are clamped instead."""
    found: dict[Bound, None] = {}
    for node in graph.nodes:
        inner, looked_up = held_graph(node), _indexed(node)
        bounded: list[tuple[Node, Extent, int | None]] = [] if looked_up is None else [(*looked_up, None)]
        if inner is not None:  # a bound on a parameter of its own is one on what is passed for it
            passed = dict(zip((i.attrs.name for i in inner.inputs), node.inputs, strict=True))  # type: ignore[attr-defined]
            bounded += [(passed[b.input], b.size, b.excused) for b in index_bounds(inner)]
        for index, size, excused in bounded:
            index, excused = _origin(index, excused)
            if index.op == "input" and index.type.dtype.is_integer:
                found[Bound(index.attrs.name, size, excused)] = None  # type: ignore[attr-defined]
    return tuple(found)


def _origin(index: Node, excused: int | None) -> tuple[Node, int | None]:
    """Where an index comes from unchanged, but for one value: where(x != excused, x, 0) is x."""
    while True:
        if index.op in TRANSPARENT:
            index = index.inputs[0]
            continue
        replaced = _replaced(index)
        if replaced is None or excused not in (None, replaced):
            return index, excused
        index, excused = index.inputs[1], replaced


def _replaced(node: Node) -> int | None:
    """The value that a choice between an index and 0 leaves out."""
    if node.op != "where" or node.inputs[0].op != "not_equal" or constant_value(node.inputs[2]) != 0:
        return None
    tested, value = node.inputs[0].inputs
    left_out = constant_value(value)
    return int(left_out) if tested is node.inputs[1] and left_out is not None else None


def least_sizes(graph: Graph) -> tuple[Least, ...]:
    """The extents of which an op needs more elements than the smallest call would give it."""
    found: dict[Least, None] = {}
    for node in graph.nodes:
        inner = held_graph(node)
        if inner is not None:
            found |= dict.fromkeys(least_sizes(inner))
        if node.op in ("batch_norm", "batch_norm_grad"):
            count = values_per_channel(node.inputs[0].type.shape)
            if evaluate(count, dict.fromkeys(symbols_of((count,)), 1)) < 2:
                found[Least(count, 2, "a batch norm has no variance of one value per channel")] = None
    return tuple(found)
