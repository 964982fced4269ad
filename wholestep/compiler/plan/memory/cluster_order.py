"""The order of clusters, and where a state may be overwritten in place.

Every read in a step sees the value a state had at its start.  An update is stored straight into the state when every
other reader can run before it; else its value is kept and copied in once all have read.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node, Update
from wholestep.compiler.plan.fusion.clusters import GATHERS, REDUCTIONS, Cluster, accesses, reach_of
from wholestep.compiler.plan.lower.convolution_ops import WINDOWS
from wholestep.compiler.plan.lower.materialize import is_state
from wholestep.compiler.plan.model.access import identity
from wholestep.compiler.plan.model.kernel import Kind

# Ops whose inputs are not read at the position of the result, whatever the index of the access says.
MOVING = GATHERS | {"matmul", "scatter_add"} | REDUCTIONS | WINDOWS


def place_updates(graph: IRGraph, clusters: list[Cluster]) -> list[Update]:
    """Decide where each update is stored; appends clusters that copy, and makes writers wait for readers."""
    of = {n: c for c in clusters for n in c.results}
    reach = reach_of(clusters)
    readers: dict[str, list[Cluster]] = {}
    for c in clusters:
        names = {a.base.attrs.name for n in c.members for a in accesses(n) if is_state(a.base)}  # type: ignore[attr-defined]
        for name in names:
            readers.setdefault(name, []).append(c)
    placed = []
    for update in graph.updates:
        writer, node = of[update.node], update.node
        others = [r for r in readers.get(update.name, []) if r is not writer]
        if reads_elsewhere(writer, update) or any(reach.depends(r, writer) for r in others):
            node = Node("cast", (node,), at.CastAttrs(node.type.dtype), node.name, node.line)
            writer = copy_cluster(node, writer)
            clusters.append(writer)
            reach.add(writer)
            reach.link(writer, writer.reads)
            others = readers.get(update.name, [])
        writer.waits |= set(others)
        reach.link(writer, others)
        placed.append(Update(update.name, node))
    return placed


def copy_cluster(node: Node, source: Cluster) -> Cluster:
    shape = node.type.shape
    cluster = Cluster(Kind.NEST, shape[:-1], shape[-1] if shape else None, [node])
    cluster.reads.add(source)
    return cluster


def reads_elsewhere(writer: Cluster, update: Update) -> bool:
    """Does the cluster read the state at another place or in another pass than the one where it would be stored?"""
    state, passes = update.name, has_passes(writer, update.node)
    for n in writer.members:
        for a in accesses(n):
            if is_state(a.base) and a.base.attrs.name == state:  # type: ignore[attr-defined]
                at_own_place = a.shape == a.base.type.shape and a.index == identity(len(a.shape))
                if passes or not at_own_place or n.op in MOVING or n in writer.prologue:
                    return True
    return False


def has_passes(cluster: Cluster, node: Node) -> bool:
    """May a nest come back to an element after its sum: does it compute elements, or the node itself, from a sum?"""
    if cluster.kind is not Kind.NEST or not any(n.op in REDUCTIONS for n in cluster.results):
        return False
    late: set[Node] = set()
    for n in cluster.nodes:
        if n.op in REDUCTIONS or any(a.base in late for a in accesses(n)):
            late.add(n)
    return cluster.is_row(node) or any(n.op not in REDUCTIONS and not cluster.is_row(n) for n in late)


def topological(clusters: list[Cluster]) -> list[Cluster]:
    """Each cluster after those it reads or waits for; otherwise in the order of their first op."""
    position = {c: i for i, c in enumerate(clusters)}
    waiting = {c: len(c.reads | c.waits) for c in clusters}
    after: dict[Cluster, list[Cluster]] = {c: [] for c in clusters}
    for c in clusters:
        for before in c.reads | c.waits:
            after[before].append(c)
    ready = sorted((c for c in clusters if not waiting[c]), key=position.__getitem__)
    out = []
    while ready:
        c = min(ready, key=position.__getitem__)
        ready.remove(c)
        out.append(c)
        for later in after[c]:
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
    assert len(out) == len(clusters), "clusters depend on each other in a circle"
    return out
