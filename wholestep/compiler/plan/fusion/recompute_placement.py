"""Where what is made again is made: in a kernel that reads what it is made of, else just before it is needed."""

from __future__ import annotations

from wholestep.compiler.passes.rematerialize.memory_budget import Recomputed
from wholestep.compiler.plan.fusion.clusters import Cluster, absorb, makes_again, reach_of
from wholestep.compiler.plan.fusion.fuse_updates import count_buffers
from wholestep.compiler.plan.fusion.partial_column_sums import read_whole
from wholestep.compiler.plan.memory.cluster_order import topological
from wholestep.compiler.plan.model.kernel import Kind
from wholestep.compiler.target import Fusion


def join_recomputed(clusters: list[Cluster], fusion: Fusion) -> list[Cluster]:
    """Clusters that make something again move in with the first one behind the peak that reads what it is made of."""
    guests = [
        c
        for c in clusters
        if c.kind is Kind.NEST and c.loop is None and all(isinstance(n, Recomputed) for n in c.nodes)
    ]
    if not guests:
        return clusters
    reach, due, gone = reach_of(clusters), _due(clusters), set[Cluster]()
    place = {c: i for i, c in enumerate(topological(clusters))}
    rows = [c for c in clusters if c.kind is Kind.NEST and c.loop is None and not makes_again(c)]
    for guest in guests:
        wanted = read_whole(guest)
        homes = [
            c
            for c in rows
            if c.shape == guest.shape and place[c] > due[guest] and wanted & read_whole(c)
            if count_buffers([*c.nodes, *guest.nodes]) < fusion.most_buffers
            if not (reach.depends(c, guest) or reach.depends(guest, c))
        ]
        if not homes:
            continue
        home = min(homes, key=place.__getitem__)
        absorb(home, guest, clusters, reach)
        gone.add(guest)
    return [c for c in clusters if c not in gone]


def just_in_time(clusters: list[Cluster]) -> list[Cluster]:
    """The clusters in an order in which what is made again stands where its first reader has all the rest."""
    if not any(makes_again(c) for c in clusters):
        return clusters
    due = _due(clusters)
    ordered = topological(clusters)
    place = {c: float(i) for i, c in enumerate(ordered)} | {c: at + 0.5 for c, at in due.items()}
    return sorted(ordered, key=place.__getitem__)


def _due(clusters: list[Cluster]) -> dict[Cluster, float]:
    """Of each cluster that makes something again, behind which place in the order its first reader waits for it."""
    ordered = topological(clusters)
    place = {c: i for i, c in enumerate(ordered)}
    readers: dict[Cluster, list[Cluster]] = {c: [] for c in clusters}
    for c in clusters:
        for r in c.reads:
            readers[r].append(c)
    due: dict[Cluster, float] = {}
    for c in reversed(ordered):
        if makes_again(c):
            due[c] = min((due[r] if r in due else _ready(r, place) for r in readers[c]), default=place[c])
    return due


def _ready(cluster: Cluster, place: dict[Cluster, int]) -> int:
    """Behind which one a cluster could run, if it did not wait for what is made again."""
    return max((place[r] for r in cluster.reads if not makes_again(r)), default=place[cluster])
