"""Horizontal fusion of column sums with a kernel that reads the same memory.

A layer's weight gradient Xᵀ·dY and its bias gradient, the column sums of dY, both read dY; so do a norm's two
gradients.  A bias gradient becomes part of the contraction's kernel, which has the columns in its cache; a norm's two
sums share one loop.  Invariant: each sum adds in the order given by its length: no bit changes (decision 001).
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node, Update
from wholestep.compiler.ir.types import Shape
from wholestep.compiler.plan.fusion.clusters import Cluster, accesses, reach_of, reduced_axis
from wholestep.compiler.plan.lower.materialize import is_generated, is_state
from wholestep.compiler.plan.model.access import Access, resolve
from wholestep.compiler.plan.model.kernel import Index, Kind
from wholestep.compiler.target import Fusion

# Axes of the space (columns, summed axis), in which the operands of products and of sums are compared.
COLUMN, DEPTH = Index.axis(0), Index.axis(1)


def join_column_sums(clusters: Sequence[Cluster], updates: Sequence[Update], fusion: Fusion) -> list[Cluster]:
    """The clusters, with column sums merged into a contraction or another sum that reads the same operand."""
    fuser = _ColumnSumFuser(clusters, updates, fusion)
    if fusion.sums_in_dots:
        fuser.fuse_with_contractions()
    fuser.fuse_with_each_other()
    return fuser.merged_clusters()


class ClusterMerger:
    """Merges clusters into other clusters, and tracks the dependences of the remaining clusters."""

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        self.clusters, self.reach = clusters, reach_of(clusters)
        self.merged_into: dict[Cluster, Cluster] = {}  # merged cluster -> the cluster that computes it

    def current(self, cluster: Cluster) -> Cluster:
        """The cluster that now contains this one's ops."""
        while cluster in self.merged_into:
            cluster = self.merged_into[cluster]
        return cluster

    def record_merge(self, guest: Cluster, home: Cluster) -> None:
        """Note that `home` now computes the ops of `guest`."""
        self.merged_into[guest] = home
        self.reach.absorb(home, guest)

    def merged_clusters(self) -> list[Cluster]:
        """The clusters after all merges, with their operands updated."""
        clusters = [c for c in self.clusters if c not in self.merged_into]
        for c in clusters:
            c.reads = {self.current(r) for r in c.reads} - {c}
        return clusters


class _ColumnSumFuser(ClusterMerger):
    def __init__(self, clusters: Sequence[Cluster], updates: Sequence[Update], fusion: Fusion) -> None:
        super().__init__(clusters)
        self.fusion = fusion
        writer = {n: c for c in clusters for n in c.nodes}
        self.written: dict[Cluster, set[str]] = {c: set() for c in clusters}
        for u in updates:
            self.written[writer[u.node]].add(u.name)
        self.read = {c: states_read(c) for c in clusters}

    def fuse_with_contractions(self) -> None:
        dots = {b: c for c in self.clusters if (b := right_operand(c, self.fusion.least_columns)) is not None}
        for c in self.clusters:
            summed = {plain_summand(h) for h in c.heads} if c.kind is Kind.COLUMNS and not c.prologue else {None}
            operand = summed.pop()
            if summed or operand not in dots or not self.may_share(dots[operand], c):
                continue
            dot = dots[operand]
            dot.sums = c if dot.sums is None else merge_clusters(dot.sums, c)
            self.record_merge(c, dot)

    def fuse_with_each_other(self) -> None:
        """Merge later sums over the same space and operand into an earlier one, up to the target's limit of sums."""
        last: dict[tuple[object, ...], Cluster] = {}
        for c in self.clusters:
            if c.kind is not Kind.COLUMNS or c in self.merged_into:
                continue
            keys = [(space(c), base) for base in bases(c)]
            candidates = dict.fromkeys(last[p] for p in keys if p in last)
            other = next(
                (
                    o
                    for o in candidates
                    if self.may_share(o, c) and len(o.heads) + len(c.heads) <= self.fusion.most_sums
                ),
                None,
            )
            if other is not None:
                merge_clusters(other, c)
                self.record_merge(c, other)
            last |= dict.fromkeys(keys, c if other is None else other)

    def may_share(self, a: Cluster, b: Cluster) -> bool:
        """May `b` join the kernel of `a`?

        Not if one depends on the other before its end, or overwrites a state that the other reads.
        """
        ordered = self.reach.depends(a, b) or (self.reach.depends(b, a) and not self.depends_only_after_sums(a, b))
        return not (ordered or self.written[a] & self.read[b] or self.written[b] & self.read[a])

    def depends_only_after_sums(self, a: Cluster, b: Cluster) -> bool:
        """Do only the ops after the sums of `b` read `a`, directly and not through a third cluster?"""
        if a.kind is not Kind.COLUMNS or b.kind is not Kind.COLUMNS:
            return False
        added = {x.base for n in (*b.prologue, *b.heads) for x in accesses(n)}
        others = (b.reads | b.waits) - {a}
        return added.isdisjoint(a.results) and not any(self.reach.depends(o, a) for o in others)

    def record_merge(self, guest: Cluster, home: Cluster) -> None:
        super().record_merge(guest, home)
        self.written[home] |= self.written[guest]
        self.read[home] |= self.read[guest]
        home.reads |= guest.reads


def merge_clusters(a: Cluster, b: Cluster) -> Cluster:
    """Merge column sums over one space; a prologue op that both have is computed once."""
    a.prologue += [n for n in b.prologue if n not in a.prologue]
    a.nodes += b.nodes
    return a


def right_operand(cluster: Cluster, least_columns: int) -> Access | None:
    """The right operand of a matrix product, as an access over (columns, depth); None if no sums may join it."""
    if cluster.kind is not Kind.DOT or len(cluster.rows) != 1:
        return None
    if not isinstance(cluster.vector, int) or cluster.vector < least_columns:
        return None
    head = cluster.nodes[0]
    assert isinstance(head.attrs, at.MatmulAttrs)
    access = resolve(head.inputs[1], (COLUMN, DEPTH) if head.attrs.transpose_b else (DEPTH, COLUMN))
    return None if is_state(access.base) else access  # a state may be read from its stored transpose


def plain_summand(head: Node) -> Access | None:
    """The operand of a sum over the rows of a matrix, as an access over (columns, depth)."""
    (source,) = head.inputs
    if head.op != "sum" or source.type.rank != 2:
        return None
    return resolve(source, (DEPTH, COLUMN))


def space(cluster: Cluster) -> tuple[Shape, int]:
    """The iteration space of a column sum: the shape of its operand and the summed axis."""
    head = cluster.nodes[0]
    return head.inputs[0].type.shape, reduced_axis(head)


def bases(cluster: Cluster) -> list[Node]:
    """The values of the full shape of its space that a column sum loads."""
    shape, _ = space(cluster)
    inside = set(cluster.prologue)
    loaded = [a.base for n in (*cluster.prologue, *cluster.heads) for a in accesses(n) if a.shape == shape]
    return [b for b in dict.fromkeys(loaded) if b not in inside and not is_generated(b)]


def states_read(cluster: Cluster) -> set[str]:
    """The names of the states that a cluster reads."""
    bases = (a.base for n in cluster.members for a in accesses(n))
    return {b.attrs.name for b in bases if is_state(b)}  # type: ignore[attr-defined]
