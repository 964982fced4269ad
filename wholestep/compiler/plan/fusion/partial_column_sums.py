"""Two-stage column sums, for targets whose kernels iterate over rows: partial sums in a producer, then a small kernel.

The gradients of a layer's bias and of a norm's two vectors sum a batch-sized matrix over its rows.  A kernel that
computes this matrix, or reads the operands it is computed from, also adds up the rows that each of its blocks handles
and stores one partial sum per block; a small kernel adds those.  A matrix that a library routine wrote, and that
otherwise only products read, gets a kernel of its own for the partial sums.  Invariant: the number of parts follows
from the row length alone, so the order of additions, and with it the bits, does not depend on the batch size.

    sum over rows of v = sum over parts of (sum over the rows of a part of v)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.types import TensorType, evaluate, float32
from wholestep.compiler.plan.fusion.clusters import (
    PARTIAL_SUM,
    REDUCTIONS,
    Cluster,
    absorb,
    accesses,
    column_sum_inputs,
    is_column_sum,
    reach_of,
    reduced_axis,
)
from wholestep.compiler.plan.lower.routine_ops import Assembled, is_result
from wholestep.compiler.plan.model.access import identity, resolve
from wholestep.compiler.plan.model.kernel import Kind
from wholestep.compiler.target import Fusion

# The number of columns of the summed matrix is between these bounds, and a multiple of STEP.
LEAST_COLUMNS, MOST_COLUMNS, STEP = 256, 8192, 8
LEAST_ELEMENTS = 600_000  # elements of the matrix at capacity; with fewer, a second launch costs more than it saves
# Number of parts: for rows of up to SHORT_ROW columns, which one warp handles, and for longer rows.
SHORT_ROW, PARTS, MORE_PARTS = 1024, 264, 528
MOST_SUMS = 3  # partial sums in one kernel: each occupies registers
# A kernel that only computes partial sums: its number of blocks, the columns of one part that a block handles, and the
# bytes (at capacity) that it must read; a smaller sum can wait for the launch of all updates.
BLOCKS, BLOCK_COLUMNS, LEAST_ALONE = 288, 256, 8 << 20


class PartialSum(Node):
    """The partial column sums of a matrix, one row per part; not an op of the IR, it exists only while planning."""

    __slots__ = ("alone",)  # does the kernel of this sum compute nothing else?

    def __init__(self, values: Node, alone: bool) -> None:
        columns = values.type.shape[-1]
        assert isinstance(columns, int), "candidates have a fixed number of columns"
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


def split_column_sums(graph: IRGraph, fusion: Fusion, sizes: Mapping[str, int]) -> IRGraph:
    """The graph with eligible column sums in two stages; unchanged if the target has no kernels for partial sums."""
    if not fusion.partial_sums:
        return graph
    readers, summed = graph.consumers(), column_sum_inputs(graph)
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        new[node] = node.with_inputs([new[i] for i in node.inputs])
        if (
            _is_candidate(node, sizes)
            and (values := _Summands(node.inputs[0], readers, summed, sizes)).is_worth_splitting
        ):
            new[node] = new[node].with_inputs([PartialSum(new[node.inputs[0]], not values.is_in_a_pass)])
    if all(a is b for a, b in new.items()):
        return graph
    return graph.with_nodes(new)


def _is_candidate(node: Node, sizes: Mapping[str, int]) -> bool:
    if node.op != "sum" or not is_column_sum(node) or reduced_axis(node) != 0:
        return False
    shape, dtype = node.inputs[0].type.shape, node.inputs[0].type.dtype
    columns = shape[-1]
    fits = isinstance(columns, int) and columns % STEP == 0 and LEAST_COLUMNS <= columns <= MOST_COLUMNS
    many = evaluate(node.inputs[0].type.elements, sizes) >= LEAST_ELEMENTS
    return len(shape) == 2 and dtype == float32 and fits and many and not isinstance(shape[0], int)


class _Summands:
    """The summed expression: `intermediates` that only column sums read, computed from `sources` of the same shape."""

    def __init__(
        self, values: Node, readers: dict[Node, list[Node]], summed: set[Node], sizes: Mapping[str, int]
    ) -> None:
        self.shape, self.readers, self.summed, self.sizes = values.type.shape, readers, summed, sizes
        self.intermediates, self.sources = set[Node](), set[Node]()
        todo = [resolve(values, identity(values.type.rank))]
        while todo:
            access = todo.pop()
            node = access.base
            if access.shape != self.shape or node in self.intermediates:
                continue
            if node in summed and node.type.shape == self.shape:
                self.intermediates.add(node)
                todo += accesses(node)
            else:
                self.sources.add(node)
        self.is_in_a_pass = any(map(self._is_in_a_pass, {values, *self.sources} - summed))

    def _is_in_a_pass(self, node: Node) -> bool:
        """Does an elementwise kernel over this shape compute or read the value anyway?"""
        passes = (r for r in self.readers[node] if r.is_elementwise and r not in self.summed)
        same = node.type.shape == self.shape
        return same and (node.is_elementwise or any(r.type.shape == self.shape for r in passes))

    @property
    def is_worth_splitting(self) -> bool:
        """Is the sum worth two stages: either in an existing kernel, or over enough bytes that a routine wrote?"""
        alone = all(len(self.readers[n]) == 1 for n in self.intermediates)  # sums of shared values get one kernel
        written = all(is_result(n) or isinstance(n, Assembled) for n in self.sources)
        bytes = sum(evaluate(n.type.elements, self.sizes) * n.type.dtype.size for n in self.sources)
        return self.is_in_a_pass or (alone and written and bytes > LEAST_ALONE)


def fuse_partial_sums(clusters: list[Cluster]) -> list[Cluster]:
    """Horizontal fusion: clusters that compute partial sums only join one over the same rows with a common operand."""
    alone = [c for c in clusters if c.nodes[-1].op == PARTIAL_SUM and all(_only_for_parts(n, c) for n in c.nodes)]
    if not alone:
        return clusters
    reach, merged = reach_of(clusters), set[Cluster]()
    for guest in alone:
        operands = full_shape_operands(guest)
        for home in clusters:
            if home is guest or home in merged or home.kind is not Kind.NEST or home.shape != guest.shape:
                continue
            if not operands & full_shape_operands(home) or len(_sums(home)) + len(_sums(guest)) > MOST_SUMS:
                continue
            if home.loop != guest.loop or _are_alone(home) != _are_alone(guest):
                continue
            # A merged kernel runs both at once; a path between them, in either direction, would become a cycle.
            if reach.depends(home, guest) or reach.depends(guest, home):
                continue
            absorb(home, guest, clusters, reach)
            merged.add(guest)
            break
    return [c for c in clusters if c not in merged]


def _only_for_parts(node: Node, cluster: Cluster) -> bool:
    return node.op == PARTIAL_SUM or (node.op not in REDUCTIONS and node.is_elementwise)


def full_shape_operands(cluster: Cluster) -> set[Node]:
    """The operands of a cluster that have its own shape."""
    inside = set(cluster.nodes)
    return {a.base for n in cluster.nodes for a in accesses(n) if a.shape == cluster.shape} - inside


def _sums(cluster: Cluster) -> list[PartialSum]:
    return [n for n in cluster.nodes if isinstance(n, PartialSum)]


def _are_alone(cluster: Cluster) -> bool:
    """Does a cluster compute nothing but partial sums of values that a routine wrote?"""
    return any(n.alone for n in _sums(cluster))
