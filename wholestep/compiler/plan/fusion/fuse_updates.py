"""Pointwise kernels over one space become one where the second reads what the first makes, or what it overwrites.

Fusion places an op with one of its producers.  An update has several: Adam's step reads the new m and the new v, Lion's
step and its momentum both read the old momentum.  One loop that does all of it reads every buffer once and keeps what
passes between them in registers.  No bit changes: each element is computed as before.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir.graph import Node, Update
from wholestep.compiler.plan.fusion.clusters import GATHERS, MAPS, Cluster, accesses, is_whole, reach_of
from wholestep.compiler.plan.fusion.fuse_column_sums import states_read
from wholestep.compiler.plan.lower.materialize import is_state
from wholestep.compiler.plan.model.kernel import Kind
from wholestep.compiler.target import Fusion


def merge_maps(clusters: Sequence[Cluster], updates: Sequence[Update], fusion: Fusion) -> list[Cluster]:
    """The clusters with pointwise ones joined where that saves a pass over memory."""
    merger = _UpdateFuser(clusters, updates, fusion.most_buffers)
    for cluster in clusters:
        if cluster in merger.pure and cluster not in merger.home:
            merger.take_in(cluster)
    return merger.left()


class _UpdateFuser:
    def __init__(self, clusters: Sequence[Cluster], updates: Sequence[Update], most_buffers: int) -> None:
        self.clusters, self.most_buffers = clusters, most_buffers
        self.pure = {c for c in clusters if is_pure(c)}
        self.reach = reach_of(clusters)
        self.home: dict[Cluster, Cluster] = {}
        self.of = {n: c for c in clusters for n in c.results}
        self.writer = {u.name: self.of[u.node] for u in updates if u.node in self.of}
        self.readers: dict[str, list[Cluster]] = {}
        for c in clusters:
            for name in states_read(c):
                self.readers.setdefault(name, []).append(c)

    def take_in(self, later: Cluster) -> None:
        """Everything that this cluster reads from, or shares a state with that one of them overwrites."""
        found = {self.now(r) for r in later.reads} | self.sharers(later)
        for other in sorted(found & self.pure, key=self.clusters.index):
            if other is not later and self.may_join(other, later):
                self.join(other, later)

    def now(self, cluster: Cluster) -> Cluster:
        while cluster in self.home:
            cluster = self.home[cluster]
        return cluster

    def sharers(self, cluster: Cluster) -> set[Cluster]:
        """Clusters that overwrite a state that this one reads, or read one that it overwrites."""
        written = [name for name, c in self.writer.items() if self.now(c) is cluster]
        writers = {self.now(self.writer[name]) for name in states_read(cluster) if name in self.writer}
        return (writers | {self.now(r) for name in written for r in self.readers.get(name, [])}) - {cluster}

    def may_join(self, other: Cluster, later: Cluster) -> bool:
        if other.shape != later.shape or self.reach.depends(other, later):
            return False
        if any(r is not other and self.reach.depends(r, other) for r in map(self.now, later.reads)):
            return False  # a third one stands between them
        ops = [*other.nodes, *later.nodes]
        return is_read_in_place(ops, set(other.nodes)) and count_buffers(ops) <= self.most_buffers

    def join(self, other: Cluster, later: Cluster) -> None:
        later.nodes = [*other.nodes, *later.nodes]
        later.reads = {self.now(r) for r in later.reads | other.reads} - {other, later}
        self.home[other] = later
        self.reach.absorb(later, other)

    def left(self) -> list[Cluster]:
        left = [c for c in self.clusters if c not in self.home]
        for c in left:
            c.reads = {self.now(r) for r in c.reads} - {c}
        return left


def is_pure(cluster: Cluster) -> bool:
    """Pointwise over its space or its rows: no reduction, no state read at another position."""
    return (
        cluster.kind is Kind.NEST
        and cluster.vector is not None
        and not cluster.prologue
        and all(n.op in MAPS and n.op not in GATHERS for n in cluster.nodes)
        and all(is_whole(a) for n in cluster.nodes for a in accesses(n) if is_state(a.base))
    )


def is_read_in_place(ops: Sequence[Node], made: set[Node]) -> bool:
    """Does everyone read what is made here at his own position?"""
    return all(is_whole(a) for n in ops for a in accesses(n) if a.base in made)


def count_buffers(ops: Sequence[Node]) -> int:
    """How many buffers a loop over these ops may read."""
    inside = set(ops)
    return len({a.base for n in ops for a in accesses(n)} - inside)
