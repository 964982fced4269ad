"""Fuses pointwise kernels of optimizer updates: two over one iteration space become one if that saves memory traffic.

Operator fusion assigns an op to one of its producers.  An update has several: Adam's step reads the new m and the new
v, Lion's step and its momentum both read the old momentum.  One loop over all of them reads every buffer once and keeps
the intermediate values in registers.  Two kernels are merged if the second reads results of the first, or overwrites a
state that the first reads.  Invariant: each element is computed by the same operations, so no bit changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir.graph import Node, Update
from wholestep.compiler.plan.fusion.clusters import GATHERS, MAPS, Cluster, accesses, is_at_own_position
from wholestep.compiler.plan.fusion.fuse_column_sums import ClusterMerger, states_read
from wholestep.compiler.plan.lower.materialize import is_state
from wholestep.compiler.plan.model.kernel import Kind
from wholestep.compiler.target import Fusion


def fuse_pointwise(clusters: Sequence[Cluster], updates: Sequence[Update], fusion: Fusion) -> list[Cluster]:
    """The clusters; pointwise clusters are merged if that saves a pass over memory."""
    fuser = _UpdateFuser(clusters, updates, fusion.most_buffers)
    for cluster in clusters:
        if cluster in fuser.pure and cluster not in fuser.merged_into:
            fuser.fuse_producers(cluster)
    return fuser.merged_clusters()


class _UpdateFuser(ClusterMerger):
    def __init__(self, clusters: Sequence[Cluster], updates: Sequence[Update], most_buffers: int) -> None:
        super().__init__(clusters)
        self.most_buffers = most_buffers
        self.pure = {c for c in clusters if is_pure(c)}
        self.of = {n: c for c in clusters for n in c.results}
        self.writer = {u.name: self.of[u.node] for u in updates if u.node in self.of}
        self.readers: dict[str, list[Cluster]] = {}
        for c in clusters:
            for name in states_read(c):
                self.readers.setdefault(name, []).append(c)

    def fuse_producers(self, later: Cluster) -> None:
        """Merge into `later` the clusters that it reads, or that share with it a state which one of them overwrites."""
        candidates = {self.current(r) for r in later.reads} | self.clusters_sharing_states(later)
        for other in sorted(candidates & self.pure, key=self.clusters.index):
            if other is not later and self.may_join(other, later):
                self.merge(other, later)

    def clusters_sharing_states(self, cluster: Cluster) -> set[Cluster]:
        """Clusters that overwrite a state that this cluster reads, or read a state that it overwrites."""
        written = [name for name, c in self.writer.items() if self.current(c) is cluster]
        writers = {self.current(self.writer[name]) for name in states_read(cluster) if name in self.writer}
        return (writers | {self.current(r) for name in written for r in self.readers.get(name, [])}) - {cluster}

    def may_join(self, other: Cluster, later: Cluster) -> bool:
        if other.shape != later.shape or self.reach.depends(other, later):
            return False
        if any(r is not other and self.reach.depends(r, other) for r in map(self.current, later.reads)):
            return False  # a third cluster has to run between the two
        ops = [*other.nodes, *later.nodes]
        return is_read_in_place(ops, set(other.nodes)) and count_buffers(ops) <= self.most_buffers

    def merge(self, other: Cluster, later: Cluster) -> None:
        later.nodes = [*other.nodes, *later.nodes]
        later.reads = {self.current(r) for r in later.reads | other.reads} - {other, later}
        self.record_merge(other, later)


def is_pure(cluster: Cluster) -> bool:
    """Is the cluster pointwise over its space or rows: no reduction, and states read at the element's position?"""
    return (
        cluster.kind is Kind.NEST
        and cluster.vector is not None
        and not cluster.prologue
        and all(n.op in MAPS and n.op not in GATHERS for n in cluster.nodes)
        and all(is_at_own_position(a) for n in cluster.nodes for a in accesses(n) if is_state(a.base))
    )


def is_read_in_place(ops: Sequence[Node], results: set[Node]) -> bool:
    """Does each op read these results at its own position?"""
    return all(is_at_own_position(a) for n in ops for a in accesses(n) if a.base in results)


def count_buffers(ops: Sequence[Node]) -> int:
    """Upper bound of the buffers that a loop over these ops reads."""
    inside = set(ops)
    return len({a.base for n in ops for a in accesses(n)} - inside)
