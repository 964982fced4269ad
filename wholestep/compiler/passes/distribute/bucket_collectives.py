"""Gradient bucketing: independent collectives are merged into one `exchange`, which costs one round of messages.

A node's level is the number of collectives on the longest path to it, so collectives of one level are independent.
Those of equal level, mesh axis, op and dtype are concatenated in graph order (gradients of the last layers first), up
to `BUCKET_BYTES`.  Invariant: every element is reduced exactly as by its own collective, so the bits do not change.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.ops import OPS, Family

BUCKET_BYTES = 16 << 20  # bytes per bucket: at this size the latency of a round of messages is negligible
# Views that commute with collectives, so that the views are applied after the exchange.
VIEWS = frozenset({"reshape", "permute"})
ELEMENTWISE = frozenset({"all_reduce", "broadcast"})  # collectives whose result does not depend on element positions


def bucket(graph: IRGraph) -> IRGraph:
    """Merge the collectives of a graph into buckets."""
    single = [n for n in graph.nodes if OPS[n.op].family is Family.COLLECTIVE and n.op != "exchange"]
    if not single:
        return graph
    levels = _levels(graph)
    new: dict[Node, Node] = {}
    for level in range(max(levels.values()) + 1):
        for members in _buckets([n for n in single if levels[n] == level]):
            _exchange(members, new)
        for node in graph.nodes:
            if levels[node] == level and node not in new:
                new[node] = node.with_inputs([new[i] for i in node.inputs])
    return graph.with_nodes(new)


def _levels(graph: IRGraph) -> dict[Node, int]:
    """The number of collectives on the longest path that ends in each node, the node itself included."""
    levels: dict[Node, int] = {}
    for node in graph.nodes:
        is_collective = OPS[node.op].family is Family.COLLECTIVE
        levels[node] = max((levels[i] for i in node.inputs), default=0) + is_collective
    return levels


def _buckets(nodes: Sequence[Node]) -> list[list[Node]]:
    """Group the collectives of one level by op, attributes and dtype, in order; a full bucket starts a new one."""
    buckets: dict[tuple[str, at.Attrs, str], list[list[Node]]] = {}
    bytes_of: dict[int, int] = {}  # id of a bucket -> its bytes
    for node in nodes:
        same_kind = buckets.setdefault((node.op, attrs_of(node, at.GroupAttrs), node.type.dtype.name), [[]])
        if bytes_of.get(id(same_kind[-1]), 0) >= BUCKET_BYTES:
            same_kind.append([])
        same_kind[-1].append(node)
        elements = node.inputs[0].type.elements
        size = elements * node.type.dtype.size if isinstance(elements, int) else BUCKET_BYTES
        bytes_of[id(same_kind[-1])] = bytes_of.get(id(same_kind[-1]), 0) + size
    return [members for same_kind in buckets.values() for members in same_kind]


def _exchange(members: Sequence[Node], new: dict[Node, Node]) -> None:
    operands = [_hoist_above_views(n) for n in members]
    sources = [new[source] for source, _ in operands]
    group = attrs_of(members[0], at.GroupAttrs)
    with b.origin(members[0]):
        exchanged = b.make("exchange", sources, at.ExchangeAttrs(members[0].op, group.ranks, group.axis))
    for i, (member, (_, views)) in enumerate(zip(members, operands, strict=True)):
        with b.origin(member):
            result = b.make("item", (exchanged,), at.ItemAttrs(i))
            for move in reversed(views):
                result = Node(move.op, (result,), move.attrs, move.name, move.line)
        new[member] = result


def _hoist_above_views(node: Node) -> tuple[Node, list[Node]]:
    """The operand of the merged exchange, and the reshapes and permutes to apply to its result, last one first."""
    (source,), views = node.inputs, list[Node]()
    while node.op in ELEMENTWISE and source.op in VIEWS and not source.inputs[0].is_state:
        views.append(source)
        (source,) = source.inputs
    return source, views
