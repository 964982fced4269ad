"""Sums over columns begin in the kernel that has the values at hand anyway, where a target's kernels go over rows.

A layer's bias and a norm's two vectors have gradients that are sums over all rows of something as large as the batch.
A kernel that computes it, or reads what it is made of, adds up the rows that each of its blocks has and leaves these
parts; a small kernel adds them.  What a routine has written and only products read besides is added up by a kernel
that does nothing else.  How many parts there are follows from the length of a row alone, and so do the bits.

    sum over rows of v = sum over parts of (parts of v)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.types import TensorType, evaluate, float32
from wholestep.compiler.plan.fusion.clusters import (
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
from wholestep.compiler.plan.lower.routine_ops import Assembled, is_result
from wholestep.compiler.plan.model.access import identity, resolve
from wholestep.compiler.plan.model.kernel import Kind
from wholestep.compiler.target import Fusion

LEAST_COLUMNS, MOST_COLUMNS, STEP = 256, 8192, 8  # of what is summed
LEAST_ELEMENTS = 600_000  # at capacity: else the launch that adds the parts takes longer than what it saves
SHORT_ROW, PARTS, MORE_PARTS = 1024, 264, 528  # parts of a row that one warp has, and of a longer one
MOST_SUMS = 3  # of one kernel: each takes registers
# A kernel that does nothing else: its blocks, each with so many columns of one part; bytes that it reads at capacity,
# of which fewer can wait for the launch of all updates.
BLOCKS, BLOCK_COLUMNS, LEAST_ALONE = 288, 256, 8 << 20


class PartialSum(Node):
    """What each part of the rows of a matrix adds up to; no op of the IR, it exists while planning."""

    __slots__ = ("alone",)  # does its kernel do nothing else?

    def __init__(self, values: Node, alone: bool) -> None:
        columns = values.type.shape[-1]
        assert isinstance(columns, int), "it is a candidate"
        parts = PARTS if columns <= SHORT_ROW else MORE_PARTS
        if alone:
            parts = max(1, BLOCKS // -(-columns // BLOCK_COLUMNS))
        self.op, self.inputs, self.attrs, self.name, self.line = (
            PARTIAL_SUM,
            (values,),
            at.NONE,
            values.name,
            values.line,
        )
        self.result, self.host, self.alone = TensorType((parts, columns), float32), False, alone

    def with_inputs(self, inputs: Sequence[Node]) -> PartialSum:
        (values,) = inputs
        return PartialSum(values, self.alone)


def leave_parts(graph: IRGraph, fusion: Fusion, sizes: Mapping[str, int]) -> IRGraph:
    """The graph with such sums in two steps; the same one where a target has no kernels for that."""
    if not fusion.partial_sums:
        return graph
    readers, summed = graph.consumers(), only_in_column_sums(graph)
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        new[node] = node.with_inputs([new[i] for i in node.inputs])
        if _is_candidate(node, sizes) and (found := _Values(node.inputs[0], readers, summed, sizes)).leave_parts:
            new[node] = new[node].with_inputs([PartialSum(new[node.inputs[0]], not found.at_hand)])
    if all(a is b for a, b in new.items()):
        return graph
    return IRGraph(
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


class _Values:
    """What a sum adds up: `made` for sums alone, of `sources` that are as large."""

    def __init__(
        self, values: Node, readers: dict[Node, list[Node]], summed: set[Node], sizes: Mapping[str, int]
    ) -> None:
        self.shape, self.readers, self.summed, self.sizes = values.type.shape, readers, summed, sizes
        self.made, self.sources = set[Node](), set[Node]()
        todo = [resolve(values, identity(values.type.rank))]
        while todo:
            access = todo.pop()
            node = access.base
            if access.shape != self.shape or node in self.made:
                continue
            if node in summed and node.type.shape == self.shape:
                self.made.add(node)
                todo += accesses(node)
            else:
                self.sources.add(node)
        self.at_hand = any(map(self._is_at_hand, {values, *self.sources} - summed))

    def _is_at_hand(self, node: Node) -> bool:
        """Is it made by a pass over elements, or does such a pass read it?"""
        reads = (r for r in self.readers[node] if r.is_elementwise and r not in self.summed)
        same = node.type.shape == self.shape
        return same and (node.is_elementwise or any(r.type.shape == self.shape for r in reads))

    @property
    def leave_parts(self) -> bool:
        """Has a kernel them at hand, or has a routine written them, for this sum and for products?"""
        alone = all(len(self.readers[n]) == 1 for n in self.made)  # sums that read the same are one kernel
        written = all(is_result(n) or isinstance(n, Assembled) for n in self.sources)
        bytes = sum(evaluate(n.type.elements, self.sizes) * n.type.dtype.size for n in self.sources)
        return self.at_hand or (alone and written and bytes > LEAST_ALONE)


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
            if not wanted & read_whole(home) or len(_sums(home)) + len(_sums(guest)) > MOST_SUMS:
                continue
            if home.loop != guest.loop or _are_alone(home) != _are_alone(guest):
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


def _sums(cluster: Cluster) -> list[PartialSum]:
    return [n for n in cluster.nodes if isinstance(n, PartialSum)]


def _are_alone(cluster: Cluster) -> bool:
    """Does a cluster only add up what a routine has written?"""
    return any(n.alone for n in _sums(cluster))
