"""Collectives that may run at once are one exchange: a bucket costs one round of messages, however many tensors it has.

What depends on a collective stands a level above it; those of one level, axis, kind and dtype go together, in the order
in which a step has them, gradients of the last layers first, up to a size from which on a round costs nothing any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.ops import OPS, Family

BUCKET_BYTES = 16 << 20
MOVED = frozenset({"reshape", "permute"})  # the same elements: exchanged before they are moved
ELEMENTWISE = frozenset({"all_reduce", "broadcast"})  # wherever an element lies


def bucket(graph: IRGraph) -> IRGraph:
    """The graph with its collectives in buckets."""
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
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def _levels(graph: IRGraph) -> dict[Node, int]:
    """How many collectives stand before a node, itself counted, on the longest way."""
    levels: dict[Node, int] = {}
    for node in graph.nodes:
        own = OPS[node.op].family is Family.COLLECTIVE
        levels[node] = max((levels[i] for i in node.inputs), default=0) + own
    return levels


def _buckets(nodes: Sequence[Node]) -> list[list[Node]]:
    """Those that go together, in order."""
    found: dict[tuple[str, at.Attrs, str], list[list[Node]]] = {}
    full: dict[int, int] = {}  # the bytes of each bucket
    for node in nodes:
        of_kind = found.setdefault((node.op, attrs_of(node, at.GroupAttrs), node.type.dtype.name), [[]])
        if full.get(id(of_kind[-1]), 0) >= BUCKET_BYTES:
            of_kind.append([])
        of_kind[-1].append(node)
        elements = node.inputs[0].type.elements
        size = elements * node.type.dtype.size if isinstance(elements, int) else BUCKET_BYTES
        full[id(of_kind[-1])] = full.get(id(of_kind[-1]), 0) + size
    return [members for of_kind in found.values() for members in of_kind]


def _exchange(members: Sequence[Node], new: dict[Node, Node]) -> None:
    moves = [_before_moves(n) for n in members]
    sources = [new[source] for source, _ in moves]
    group = attrs_of(members[0], at.GroupAttrs)
    with b.origin(members[0]):
        made = b.make("exchange", sources, at.ExchangeAttrs(members[0].op, group.ranks, group.axis))
    for i, (member, (_, moved)) in enumerate(zip(members, moves, strict=True)):
        with b.origin(member):
            result = b.make("item", (made,), at.ItemAttrs(i))
            for move in reversed(moved):
                result = Node(move.op, (result,), move.attrs, move.name, move.line)
        new[member] = result


def _before_moves(node: Node) -> tuple[Node, list[Node]]:
    """What is exchanged, and the moves of its elements that follow."""
    (source,), moved = node.inputs, list[Node]()
    while node.op in ELEMENTWISE and source.op in MOVED and not source.inputs[0].is_state:
        moved.append(source)
        (source,) = source.inputs
    return source, moved
