"""Operator fusion: partitions the graph into clusters, the ops of one kernel each.

Greedy producer-consumer fusion in topological order.  An op joins the cluster of one of its producers if it reads
everything inside that cluster at its own position (the value then stays in a register, or in the row that the kernel
works on) and if no other input of the op depends on the cluster.  Invariant: the graph of clusters stays acyclic, so
that the kernels can run one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from math import prod

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.ops import LEAVES, OPS, Family, Trait, ops_with
from wholestep.compiler.ir.types import Extent, Shape, boolean, evaluate
from wholestep.compiler.passes.rematerialize.copies import is_in_reader, is_late
from wholestep.compiler.plan.fusion.reachability import Reach
from wholestep.compiler.plan.lower.convolution_ops import (
    KERNELS,
    POOLED,
    POOLS,
    WEIGHTS,
    WINDOWS,
    pool_of,
    stays_inside,
    tiles,
)
from wholestep.compiler.plan.lower.materialize import broadcast_half_bias, is_generated, is_state
from wholestep.compiler.plan.lower.routine_ops import ROUTINES, call_of
from wholestep.compiler.plan.model.access import VIEWS, Access, identity, resolve
from wholestep.compiler.plan.model.kernel import Kind
from wholestep.compiler.target import Fusion

GATHERS = ops_with(Trait.GATHERS)
MAPS = GATHERS | {
    name for name, op in OPS.items() if op.family in (Family.POINTWISE, Family.COMPOSITE) and name not in ROUTINES
}
PARTIAL_SUM = "partial_sum"  # op name of `PartialSum` in partial_column_sums.py
REDUCTIONS = frozenset(name for name, op in OPS.items() if op.family is Family.REDUCE)


@dataclass(eq=False)
class Cluster:
    """The ops of one kernel.  `rows` are the extents of the outer loops, `vector` is the extent of the innermost.

    The first op of a DOT or COLUMNS cluster is its head: the contraction or the column sum.  The `prologue` of a column
    sum are pointwise ops that compute its summands on the fly; several column sums may each compute the same ones.
    A contraction may also compute `sums`: column sums of its right operand, a COLUMNS cluster without its own kernel.
    """

    kind: Kind
    rows: Shape
    vector: Extent | None
    nodes: list[Node] = field(default_factory=list)
    prologue: list[Node] = field(default_factory=list)
    reads: set[Cluster] = field(default_factory=set)  # clusters whose values this one loads
    # Anti-dependences (write after read): clusters that must have read a state before this one overwrites it.
    waits: set[Cluster] = field(default_factory=set)
    sums: Cluster | None = None
    loop: int | None = None  # index of the scan whose body contains it: it runs once per iteration

    @property
    def results(self) -> list[Node]:
        """The ops that this cluster alone computes: all but the prologue."""
        return self.nodes if self.sums is None else [*self.nodes, *self.sums.nodes]

    @property
    def members(self) -> list[Node]:
        """All ops that this cluster computes, the prologue included."""
        return [*self.prologue, *self.results]

    @property
    def heads(self) -> list[Node]:
        """The reductions of a COLUMNS cluster: all over one iteration space, in one loop."""
        return [n for n in self.nodes if n.op in REDUCTIONS]

    @property
    def shape(self) -> Shape:
        return self.rows if self.vector is None else (*self.rows, self.vector)

    def is_row(self, node: Node) -> bool:
        """Does the node have one value per row, rather than one per element?"""
        return len(node.type.shape) == len(self.rows) and self.vector is not None


def is_op(node: Node) -> bool:
    """Is the node computed by a kernel?  Views, leaves and values generated where they are read are not."""
    return not (node.op in VIEWS or node.op in LEAVES or is_generated(node))


def reduced_axis(node: Node) -> int:
    if node.op == "argmax":
        return node.attrs.axis  # type: ignore[attr-defined, no-any-return]
    (axis,) = node.attrs.axes  # type: ignore[attr-defined]
    return axis  # type: ignore[no-any-return]


def accesses(node: Node) -> list[Access]:
    """The access of each input, views resolved, at the op's own position (a reduction: at its input's position)."""
    if node.op in REDUCTIONS:
        return [resolve(node.inputs[0], identity(node.inputs[0].type.rank))]
    if node.op in ("item", "assembled"):
        return []  # the routine call that computes the value also writes it
    if node.op in ("matmul", "scatter_add"):
        return [resolve(i, identity(i.type.rank)) for i in node.inputs]
    if node.op == "write_rows":  # in place: the op does not read the rows that it overwrites
        return [resolve(i, identity(i.type.rank)) for i in node.inputs[1:]]
    if node.op == "gather":
        axis, index = node.attrs.axis, node.inputs[1]  # type: ignore[attr-defined]
        at = identity(node.type.rank)[axis : axis + index.type.rank]
        return [resolve(node.inputs[0], identity(node.inputs[0].type.rank)), resolve(index, at)]
    return [resolve(i, identity(i.type.rank)) for i in node.inputs]


class Fuser:
    """Assigns ops to clusters in topological order.

    Three kinds of op are deferred until their first reader is placed, and then join its cluster: expressions of leaves
    alone (`m * beta1`), comparisons (cheaper to recompute than to store), and ops that only column sums read.
    """

    def __init__(self, graph: IRGraph, fusion: Fusion, fuse: bool, sizes: Mapping[str, int] | None = None) -> None:
        self.fusion, self.fuse, self.sizes = fusion, fuse, sizes
        self.clusters: list[Cluster] = []
        self.of: dict[Node, Cluster] = {}
        self.deferred: set[Node] = set()
        self.calls: dict[object, Cluster] = {}  # key of a routine call with several results -> its cluster
        self.position: dict[Cluster, int] = {}
        self.operands: dict[Cluster, set[Node]] = {}  # cluster -> values that the cluster reads from outside
        self.reach = Reach[Cluster]()
        self.summed = column_sum_inputs(graph) if fuse else set()
        self.readers = graph.consumers()
        self.roots = set(graph.roots)
        self.updated = {u.node: u.name for u in graph.updates}
        for node in graph.nodes:
            if is_op(node):
                if fuse and self.may_wait(node):
                    self.deferred.add(node)
                else:
                    self.place(node)
        for node in graph.roots:
            if node in self.deferred:
                self.place(node)

    def may_wait(self, node: Node) -> bool:
        """May the op be deferred until its first reader is placed?"""
        if node.op not in MAPS:
            return False
        return (
            node in self.summed
            or node.type.dtype == boolean
            or is_in_reader(node)
            or all((a.base in self.deferred and not is_in_reader(a.base)) or not is_op(a.base) for a in accesses(node))
        )

    def place(self, node: Node) -> None:
        """Assign an op, and the deferred ops that it needs, to a cluster; open a new one if none takes it."""
        waiting = self.deferred_ops_of(node)
        # The deferred ops may join the same cluster: their producers are candidates too, and may cause cycles.
        needed = [a.base for n in (*waiting, node) for a in accesses(n)]
        producers = dict.fromkeys(self.of[base] for base in needed if base in self.of)
        cluster = self.choose(node, waiting, producers) if self.fuse else None
        call = call_of(node) or pool_of(node)
        if call is not None:
            cluster = self.calls.get(call, cluster)
        if cluster is None:
            cluster = new_cluster(node)
            self.position[cluster], self.operands[cluster] = len(self.clusters), set()
            self.clusters.append(cluster)
            self.reach.add(cluster)
        if call is not None:
            self.calls[call] = cluster
        joining = self.ops_to_join(waiting, node, cluster)
        if cluster.kind is Kind.COLUMNS and not cluster.nodes:
            # The prologue stays deferred: another column sum over the same values may compute it as well.
            cluster.prologue = self.prologue(waiting, node)
            waiting = [n for n in waiting if n not in cluster.prologue]
        self.deferred.difference_update(waiting, [node])
        for n in waiting:
            if n in joining:
                self.join(n, cluster)
            elif n not in self.of:
                self.place(n)
        self.join(node, cluster)

    def ops_to_join(self, waiting: list[Node], node: Node, cluster: Cluster) -> set[Node]:
        """The deferred ops that join the cluster of their reader: those whose readers among these are all in it."""
        joined: set[Node] = set()
        if not cluster.nodes and cluster.kind is not Kind.NEST:
            return joined  # the head of a contraction or a column sum reads from memory
        for n in reversed(waiting):
            if self.fits(n, accesses(n), cluster) and all(
                (r is node or r in joined) and self.reads_only_in_place(r, n, cluster)
                for r in (*waiting, node)
                if reads(r, n)
            ):
                joined.add(n)
        return joined

    def prologue(self, waiting: list[Node], head: Node) -> list[Node]:
        """The deferred ops that a column sum computes on the fly: pointwise ops over its space, read by it alone."""
        shape = head.inputs[0].type.shape
        prologue: set[Node] = set()
        for n in reversed(waiting):
            readers = [r for r in (*waiting, head) if reads(r, n)]
            inside = all(r is head or r in prologue for r in readers) and all(
                is_at_own_position(a) for r in readers for a in accesses(r) if a.base is n
            )
            if n in self.summed and n.type.shape == shape and n.op not in GATHERS and inside:
                prologue.add(n)
        return [n for n in waiting if n in prologue]

    def reads_only_in_place(self, reader: Node, base: Node, cluster: Cluster) -> bool:
        if reader.op in GATHERS:
            return False
        row = reader.op not in REDUCTIONS and cluster.is_row(reader)
        return all(self.reads_in_place(a, row, cluster) for a in accesses(reader) if a.base is base)

    def deferred_ops_of(self, node: Node) -> list[Node]:
        """The deferred ops that a node depends on, in topological order."""
        needed: dict[Node, None] = {}

        def visit(n: Node) -> None:
            for a in accesses(n):
                if a.base in self.deferred and a.base not in needed:
                    visit(a.base)
                    needed[a.base] = None

        visit(node)
        return list(needed)

    def choose(self, node: Node, waiting: list[Node], producers: dict[Cluster, None]) -> Cluster | None:
        """The latest producing cluster that can take an op; None if the op needs a cluster of its own."""
        for cluster in sorted(producers, key=self.position.__getitem__, reverse=True):
            if is_late(node) and not is_rematerialized(cluster):
                continue  # next to its inputs, a rematerialized value would be computed too early
            fits = self.fits(node, accesses(node), cluster) and self.is_acyclic(cluster, producers)
            fits = fits and not self.is_full(cluster, node, waiting)
            if fits and self.is_read_from_inside_only(cluster, node, waiting):
                return cluster
        return None

    def is_full(self, cluster: Cluster, node: Node, waiting: list[Node]) -> bool:
        """Would the kernel exceed the target's limit of operands?"""
        most = self.fusion.most_operands
        if most is None or cluster.kind is not Kind.NEST:
            return False
        ops = {*waiting, node}
        added = {a.base for n in ops for a in accesses(n)} - ops
        return len(self.operands[cluster] | {base for base in added if self.of.get(base) is not cluster}) > most

    def is_read_from_inside_only(self, cluster: Cluster, node: Node, waiting: list[Node]) -> bool:
        """Is the cluster read by no deferred op outside?  Such an op would have to run both before and after it."""
        outside = set(waiting) - self.ops_to_join(waiting, node, cluster)
        return not any(self.of.get(a.base) is cluster for n in outside for a in accesses(n))

    def join(self, node: Node, cluster: Cluster) -> None:
        cluster.nodes.append(node)
        self.of[node] = cluster
        if node.op in POOLS:  # ops after the pool iterate over the pool's smaller result
            cluster.rows, cluster.vector = node.type.shape[:-1], node.type.shape[-1]
        needed = [a.base for n in (*cluster.prologue, node) for a in accesses(n)]
        self.operands[cluster].update(base for base in needed if self.of.get(base) is not cluster)
        producers = {self.of[base] for base in needed if base in self.of} - {cluster}
        self.reach.link(cluster, producers - cluster.reads)
        cluster.reads |= producers

    def is_acyclic(self, cluster: Cluster, producers: Iterable[Cluster]) -> bool:
        """Does no other producer depend on the cluster?  Such a producer would have to run both before and after it."""
        return not any(p is not cluster and self.reach.depends(p, cluster) for p in producers)

    def fits(self, node: Node, input_accesses: list[Access], cluster: Cluster) -> bool:
        """Can the op be computed in the loops of the cluster, reading the cluster's values at its own position?"""
        if node.op in REDUCTIONS:
            return self.fits_reduction(node, input_accesses[0], cluster)
        if node.op in POOLS:
            return self.fits_pool(node, input_accesses[0], cluster)
        if node.op == PARTIAL_SUM:
            shape = node.inputs[0].type.shape
            aligned = all(
                self.reads_in_place(a, False, cluster) for a in input_accesses if self.of.get(a.base) is cluster
            )
            return cluster.kind is Kind.NEST and shape == cluster.shape and aligned
        if node.op not in MAPS or cluster.kind in (Kind.SCATTER, Kind.CALL, Kind.LOOP):
            return False
        if cluster.kind is Kind.DOT and self.is_plain(cluster) and not self.ends_product(node, cluster):
            return False
        if cluster.kind is Kind.WINDOW and not self.follows_window(node, cluster.nodes[0]):
            return False
        if cluster.kind is Kind.COLUMNS and self.overwrites_summand(node, cluster):
            return False
        shape = node.type.shape
        row = cluster.is_row(node)
        if shape != (cluster.rows if row else cluster.shape) or (row and cluster.kind is not Kind.NEST):
            return False
        # In a fused loop a value of the cluster exists only at the current position, in a register.  So each operand
        # that the cluster computes must be read at that position; other operands are in memory and may be read
        # anywhere.
        special = node.op in GATHERS
        for position, access in enumerate(input_accesses):
            if self.of.get(access.base) is not cluster:
                continue
            if special and not (node.op == "gather" and position == 1):
                return False  # the op reads other elements than the one at its own position
            if not self.reads_in_place(access, row, cluster):
                return False
        return True

    def follows_window(self, node: Node, head: Node) -> bool:
        """Does the target fuse this op into the convolution as an epilogue?

        A weight's gradient, summed over all images, is complete only at the end of its kernel; it may be rounded there.
        """
        rule = self.fusion.convolution_epilogues
        if head.op in WEIGHTS and isinstance(rule, bool):
            return False
        only_reader = len(self.readers[head]) == 1 and head not in self.roots
        return not (head.op in KERNELS or head.op in WEIGHTS) or ask_target(rule, head, node, only_reader)

    def overwrites_summand(self, node: Node, cluster: Cluster) -> bool:
        """Is an op the update of a state from which sums compute their summands?  Other sums may share their kernel."""
        name = self.updated.get(node)
        read = (a.base for n in cluster.prologue for a in accesses(n)) if name is not None else ()
        return any(is_state(base) and base.attrs.name == name for base in read)  # type: ignore[attr-defined]

    def is_plain(self, cluster: Cluster) -> bool:
        """Is the contraction computed without an epilogue, because the target has none or the product is large?"""
        if not self.fusion.dot_epilogues:
            return True
        head, least = cluster.nodes[0], dict(self.fusion.plain_products)
        dtype = head.inputs[0].type.dtype.name
        return self.sizes is not None and dtype in least and flops_of(head, self.sizes) >= least[dtype]

    def ends_product(self, node: Node, cluster: Cluster) -> bool:
        """May the op end a plain contraction?  Only a bias may, and a cast to a half type that is the only result."""
        head, last = cluster.nodes[0], cluster.nodes[-1]
        if not self.fusion.dot_epilogues or head in self.roots:
            return False
        if broadcast_half_bias(node) is not None:
            return len(cluster.nodes) == 1
        only_reader = len(self.readers[node.inputs[0]]) == 1 if node.inputs else False
        if node.op == "cast" and node.type.dtype.is_half:
            return only_reader and node.inputs[0] is last and (last is head or last.op == "add")
        return node.op == "add" and head in node.inputs and any(broadcast_half_bias(i) is not None for i in node.inputs)

    def reads_in_place(self, access: Access, row: bool, cluster: Cluster) -> bool:
        """Is the value read at the reader's own position?  An op per row cannot read a value per element."""
        base_row = cluster.is_row(access.base)
        if row and not base_row:
            return False
        return is_at_own_position(access)

    def fits_pool(self, node: Node, access: Access, cluster: Cluster) -> bool:
        """Can a pool follow the convolution in its kernel?  Its windows must not overlap, and it is the only reader."""
        return (
            cluster.kind is Kind.WINDOW
            and cluster.nodes[0].op in POOLED
            and tiles(node)
            and self.of.get(access.base) is cluster
            and access.base.type.shape == cluster.nodes[0].type.shape == cluster.shape
            and is_at_own_position(access)
            and stays_inside(cluster.nodes, node, self.readers, self.roots)
            and ask_target(self.fusion.pools_in_convolutions, cluster.nodes[0], node)
        )

    def fits_reduction(self, node: Node, access: Access, cluster: Cluster) -> bool:
        """Can a reduction along rows join the nest that computes its input?"""
        return (
            cluster.kind is Kind.NEST
            and self.of.get(access.base) is cluster
            and reduced_axis(node) == node.inputs[0].type.rank - 1
            and node.inputs[0].type.shape == cluster.shape
            and not cluster.is_row(access.base)
            and self.reads_in_place(access, False, cluster)
        )


def is_rematerialized(cluster: Cluster) -> bool:
    """Does a cluster consist of rematerialized ops only?"""
    return all(map(is_late, cluster.nodes))


def ask_target(rule: bool | str, *arguments: object) -> bool:
    """Evaluate a target's fusion rule: a constant, or a function of the nodes, named as `Fusion` describes."""
    if isinstance(rule, bool):
        return rule
    module, name, *text = rule.split(":")
    return bool(getattr(import_module(module), name)(*arguments, *text))


def flops_of(head: Node, sizes: Mapping[str, int]) -> int:
    """Floating-point operations of one product; of all products along the last axis of a batch with two axes."""
    assert isinstance(head.attrs, at.MatmulAttrs)
    k = head.inputs[0].type.shape[-2 if head.attrs.transpose_a else -1]
    return 2 * prod(evaluate(e, sizes) for e in (*head.type.shape[-3:], k))


def is_at_own_position(access: Access) -> bool:
    """Is a value read at the reader's own position?"""
    return access.shape == access.base.type.shape and access.index == identity(len(access.shape))


def is_column_sum(node: Node) -> bool:
    return node.op == PARTIAL_SUM or (node.op in ("sum", "max") and reduced_axis(node) != node.inputs[0].type.rank - 1)


def column_sum_inputs(graph: IRGraph) -> set[Node]:
    """Pointwise ops whose every reader is a sum along an outer axis, or another op of this set."""
    results = set(graph.roots)
    summed: set[Node] = set()
    for node, readers in reversed(graph.consumers().items()):
        if (
            node.op in MAPS
            and node not in results
            and readers
            and all(is_column_sum(r) or r in summed for r in readers)
        ):
            summed.add(node)
    return summed


def reads(reader: Node, base: Node) -> bool:
    return any(a.base is base for a in accesses(reader))


def new_cluster(node: Node) -> Cluster:
    """An empty cluster of the kind and with the loops that its first op needs."""
    if node.op in ROUTINES:
        return Cluster(Kind.CALL, (), None)
    if node.op == "scan":
        return Cluster(Kind.LOOP, (), None)
    shape = node.inputs[1].type.shape if node.op == "write_rows" else node.type.shape
    if node.op == PARTIAL_SUM:
        shape = node.inputs[0].type.shape
    if node.op == "matmul":
        return Cluster(Kind.DOT, shape[:-1], shape[-1])
    if node.op == "scatter_add":
        return Cluster(Kind.SCATTER, shape, None)
    if node.op in WINDOWS:
        return Cluster(Kind.WINDOW, shape[:-1], shape[-1])
    if node.op in REDUCTIONS:
        source = node.inputs[0].type.shape
        if reduced_axis(node) == len(source) - 1:
            return Cluster(Kind.NEST, shape, source[-1])
        return Cluster(Kind.COLUMNS, shape[:-1], shape[-1])
    return Cluster(Kind.NEST, shape[:-1], shape[-1]) if shape else Cluster(Kind.NEST, (), None)


def fuse(graph: IRGraph, fusion: Fusion, enabled: bool = True, sizes: Mapping[str, int] | None = None) -> list[Cluster]:
    """The clusters of a prepared graph, each with its ops in topological order, by the rules of the target.

    Args:
        sizes: capacity of each symbolic extent; needed if the target computes large products without epilogues.
    """
    return Fuser(graph, fusion, enabled, sizes).clusters


def absorb(home: Cluster, guest: Cluster, clusters: Iterable[Cluster], reach: Reach[Cluster]) -> None:
    """Merge `guest` into `home` (horizontal fusion); neither may depend on the other."""
    home.nodes += guest.nodes
    home.reads |= guest.reads
    reach.merge(home, guest)
    for other in clusters:
        if guest in other.reads:
            other.reads = (other.reads - {guest}) | {home}


def reach_of(clusters: Iterable[Cluster]) -> Reach[Cluster]:
    """The transitive dependences among finished clusters, anti-dependences included."""
    reach = Reach[Cluster]()
    clusters = list(clusters)
    for c in clusters:
        reach.add(c)
    for c in clusters:
        reach.link(c, c.reads | c.waits)
    return reach
