"""Placement of rematerialized values: in a later kernel that reads their operands anyway, else just before their use.

Recomputing a value saves memory only if it happens late.  `join_recomputed` fuses it horizontally into a kernel after
the point of need, so that its operands are not read a second time; `just_in_time` orders what remains.
"""

from __future__ import annotations

from wholestep.compiler.passes.rematerialize.copies import is_in_reader, is_late
from wholestep.compiler.plan.fusion.clusters import Cluster, absorb, is_rematerialized, reach_of
from wholestep.compiler.plan.fusion.fuse_updates import count_buffers
from wholestep.compiler.plan.fusion.partial_column_sums import full_shape_operands
from wholestep.compiler.plan.memory.cluster_order import topological
from wholestep.compiler.plan.model.kernel import Kind
from wholestep.compiler.target import Fusion


def join_recomputed(clusters: list[Cluster], fusion: Fusion) -> list[Cluster]:
    """Merge clusters of recomputed ops into the first cluster after their due position that reads the same operands."""
    guests = [
        c
        for c in clusters
        if c.kind is Kind.NEST and c.loop is None and all(is_in_reader(n) and is_late(n) for n in c.nodes)
    ]
    if not guests:
        return clusters
    reach, due, merged = reach_of(clusters), _due(clusters), set[Cluster]()
    position = {c: i for i, c in enumerate(topological(clusters))}
    nests = [c for c in clusters if c.kind is Kind.NEST and c.loop is None and not is_rematerialized(c)]
    for guest in guests:
        operands = full_shape_operands(guest)
        # A home runs after the point of need, reads an operand of the same shape anyway, and has room for the
        # arguments.
        homes = [
            c
            for c in nests
            if c.shape == guest.shape and position[c] > due[guest] and operands & full_shape_operands(c)
            if count_buffers([*c.nodes, *guest.nodes]) < fusion.most_buffers
            if not (reach.depends(c, guest) or reach.depends(guest, c))
        ]
        if not homes:
            continue
        home = min(homes, key=position.__getitem__)
        absorb(home, guest, clusters, reach)
        merged.add(guest)
    return [c for c in clusters if c not in merged]


def just_in_time(clusters: list[Cluster]) -> list[Cluster]:
    """A topological order in which a recomputed value comes directly before its first reader could run."""
    if not any(is_rematerialized(c) for c in clusters):
        return clusters
    due = _due(clusters)
    ordered = topological(clusters)
    # Half a position later: after the cluster at the due position, before the next one.  The sort is stable.
    position = {c: float(i) for i, c in enumerate(ordered)} | {c: at + 0.5 for c, at in due.items()}
    return sorted(ordered, key=position.__getitem__)


def _due(clusters: list[Cluster]) -> dict[Cluster, float]:
    """For each rematerialized cluster, the position after which all other operands of its first reader exist."""
    ordered = topological(clusters)
    position = {c: i for i, c in enumerate(ordered)}
    readers: dict[Cluster, list[Cluster]] = {c: [] for c in clusters}
    for c in clusters:
        for r in c.reads:
            readers[r].append(c)
    due: dict[Cluster, float] = {}
    for c in reversed(ordered):  # readers first: a rematerialized reader is itself moved to its due position
        if is_rematerialized(c):
            due[c] = min((due[r] if r in due else _ready(r, position) for r in readers[c]), default=position[c])
    return due


def _ready(cluster: Cluster, position: dict[Cluster, int]) -> int:
    """The position after which a cluster could run if it did not depend on rematerialized values."""
    return max((position[r] for r in cluster.reads if not is_rematerialized(r)), default=position[cluster])
