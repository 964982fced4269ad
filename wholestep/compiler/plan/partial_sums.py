"""Sums over columns begin in the kernel that has the values at hand anyway, where a target's kernels go over rows.

A layer's bias and a norm's two vectors have gradients that are sums over all rows of something as large as the batch.
A kernel that computes it, or reads what it is made of, adds up the rows that each of its blocks has and leaves these
parts; a small kernel adds them.  How many parts there are follows from the length of a row alone, and so do the bits.

    sum over rows of v = sum over parts of (parts of v)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Graph, Node, Output, Update
from wholestep.compiler.ir.types import TensorType, evaluate, float32
from wholestep.compiler.plan.fuse import (
    PARTIAL_SUM,
    REDUCTIONS,
    Cluster,
    absorb,
    accesses,
    is_column_sum,
    only_in_column_sums,
    reach_of,
    reduced_axis,
)
from wholestep.compiler.plan.kernel import Kind
from wholestep.compiler.target import Fusion

LEAST_COLUMNS, MOST_COLUMNS, STEP = 256, 8192, 8  # of what is summed
LEAST_ELEMENTS = 600_000  # at capacity: else the launch that adds the parts takes longer than what it saves
SHORT_ROW, PARTS, MORE_PARTS = 1024, 264, 528  # parts of a row that one warp has, and of a longer one
MOST_SUMS = 3  # of one kernel: each takes registers


class PartialSum(Node):
    """What each part of the rows of a matrix adds up to; no op of the IR, it exists while planning."""

    __slots__ = ()

    def __init__(self, values: Node) -> None:
        columns = values.type.shape[-1]
        parts = PARTS if isinstance(columns, int) and columns <= SHORT_ROW else MORE_PARTS
        self.op, self.inputs, self.attrs, self.name, self.line = (
            PARTIAL_SUM,
            (values,),
            at.NONE,
            values.name,
            values.line,
        )
        self.result, self.host = TensorType((parts, columns), float32), False

    def with_inputs(self, inputs: Sequence[Node]) -> PartialSum:
        (values,) = inputs
        return PartialSum(values)


def leave_parts(graph: Graph, fusion: Fusion, sizes: Mapping[str, int]) -> Graph:
    """The graph with such sums in two steps; the same one where a target has no kernels for that."""
    if not fusion.partial_sums:
        return graph
    readers, summed = graph.consumers(), only_in_column_sums(graph)
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        new[node] = node.with_inputs([new[i] for i in node.inputs])
        if _is_candidate(node, sizes) and _is_at_hand(node.inputs[0], readers, summed):
            new[node] = new[node].with_inputs([PartialSum(new[node.inputs[0]])])
    if all(a is b for a, b in new.items()):
        return graph
    return Graph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def _is_candidate(node: Node, sizes: Mapping[str, int]) -> bool:
    if node.op != "sum" or not is_column_sum(node) or reduced_axis(node) != 0:
        return False
    shape, dtype = node.inputs[0].type.shape, node.inputs[0].type.dtype
    columns = shape[-1]
    fits = isinstance(columns, int) and columns % STEP == 0 and LEAST_COLUMNS <= columns <= MOST_COLUMNS
    many = evaluate(node.inputs[0].type.elements, sizes) >= LEAST_ELEMENTS
    return len(shape) == 2 and dtype == float32 and fits and many and not isinstance(shape[0], int)


def _is_at_hand(values: Node, readers: dict[Node, list[Node]], summed: set[Node]) -> bool:
    """Is what is added up made by a pass over elements, or of what such a pass reads?"""
    shape, todo, seen = values.type.shape, [values], set[Node]()
    while todo:
        node = todo.pop()
        if node in seen or node.type.shape != shape:
            continue
        seen.add(node)
        if node in summed:
            todo += [a.base for a in accesses(node)]
        elif node.is_elementwise or any(
            r.is_elementwise and r.type.shape == shape and r not in summed for r in readers[node]
        ):
            return True
    return False


def join_parts(clusters: list[Cluster]) -> list[Cluster]:
    """Clusters that leave nothing but parts move in with one over the same rows that reads what they read."""
    alone = [c for c in clusters if c.nodes[-1].op == PARTIAL_SUM and all(_only_for_parts(n, c) for n in c.nodes)]
    if not alone:
        return clusters
    reach, gone = reach_of(clusters), set[Cluster]()
    for guest in alone:
        wanted = read_whole(guest)
        for home in clusters:
            if home is guest or home in gone or home.kind is not Kind.NEST or home.shape != guest.shape:
                continue
            if not wanted & read_whole(home) or _sums(home) + _sums(guest) > MOST_SUMS or home.loop != guest.loop:
                continue
            if reach.depends(home, guest) or reach.depends(guest, home):
                continue
            absorb(home, guest, clusters, reach)
            gone.add(guest)
            break
    return [c for c in clusters if c not in gone]


def _only_for_parts(node: Node, cluster: Cluster) -> bool:
    return node.op == PARTIAL_SUM or (node.op not in REDUCTIONS and node.is_elementwise)


def read_whole(cluster: Cluster) -> set[Node]:
    """What a cluster reads of its own shape."""
    inside = set(cluster.nodes)
    return {a.base for n in cluster.nodes for a in accesses(n) if a.shape == cluster.shape} - inside


def _sums(cluster: Cluster) -> int:
    return sum(n.op == PARTIAL_SUM for n in cluster.nodes)
