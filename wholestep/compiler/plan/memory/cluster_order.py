"""Topological order of clusters, and whether an update can overwrite its state in place.

Invariant: every read in a step sees the value that a state had at the start of the step.  An update is stored directly
into the state if all other readers can run before it (anti-dependences enforce that order); otherwise its value is
stored in a temporary, and a copy into the state runs after the last reader.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node, Update
from wholestep.compiler.plan.fusion.clusters import GATHERS, REDUCTIONS, Cluster, accesses, reach_of
from wholestep.compiler.plan.lower.convolution_ops import WINDOWS
from wholestep.compiler.plan.lower.materialize import is_state
from wholestep.compiler.plan.model.access import identity
from wholestep.compiler.plan.model.kernel import Kind

# Ops that read their inputs at other positions than they write their result at, even if the access has the same index.
MOVING = GATHERS | {"matmul", "scatter_add"} | REDUCTIONS | WINDOWS


def place_updates(graph: IRGraph, clusters: list[Cluster]) -> list[Update]:
    """Decide where each update is stored; appends copying clusters and adds anti-dependences on readers."""
    of = {n: c for c in clusters for n in c.results}
    reach = reach_of(clusters)
    readers: dict[str, list[Cluster]] = {}
    for c in clusters:
        names = {a.base.attrs.name for n in c.members for a in accesses(n) if is_state(a.base)}  # type: ignore[attr-defined]
        for name in names:
            readers.setdefault(name, []).append(c)
    updates = []
    for update in graph.updates:
        writer, node = of[update.node], update.node
        others = [r for r in readers.get(update.name, []) if r is not writer]
        # In place is impossible if the writer still reads old elements at other positions, or if a reader of the old
        # value depends on the writer.  Then the new value gets a buffer, and a copy is the last kernel that touches the
        # state.
        if reads_elsewhere(writer, update) or any(reach.depends(r, writer) for r in others):
            node = Node("cast", (node,), at.CastAttrs(node.type.dtype), node.name, node.line)
            writer = copy_cluster(node, writer)
            clusters.append(writer)
            reach.add(writer)
            reach.link(writer, writer.reads)
            others = readers.get(update.name, [])
        # Anti-dependence: every reader of the old value runs before the kernel that stores the new one.
        writer.waits |= set(others)
        reach.link(writer, others)
        updates.append(Update(update.name, node))
    return updates


def copy_cluster(node: Node, source: Cluster) -> Cluster:
    shape = node.type.shape
    cluster = Cluster(Kind.NEST, shape[:-1], shape[-1] if shape else None, [node])
    cluster.reads.add(source)
    return cluster


def reads_elsewhere(writer: Cluster, update: Update) -> bool:
    """Does the cluster read the state at another position, or in another pass, than it stores it?"""
    state, passes = update.name, revisits_elements(writer, update.node)
    for n in writer.members:
        for a in accesses(n):
            if is_state(a.base) and a.base.attrs.name == state:  # type: ignore[attr-defined]
                at_own_position = a.shape == a.base.type.shape and a.index == identity(len(a.shape))
                if passes or not at_own_position or n.op in MOVING or n in writer.prologue:
                    return True
    return False


def revisits_elements(cluster: Cluster, node: Node) -> bool:
    """May a nest visit an element again after a reduction: does it compute elements, or the node, from the result?"""
    if cluster.kind is not Kind.NEST or not any(n.op in REDUCTIONS for n in cluster.results):
        return False
    late: set[Node] = set()  # reductions, and the ops that depend on one: they run in a later pass over the row
    for n in cluster.nodes:
        if n.op in REDUCTIONS or any(a.base in late for a in accesses(n)):
            late.add(n)
    return cluster.is_row(node) or any(n.op not in REDUCTIONS and not cluster.is_row(n) for n in late)


def topological(clusters: list[Cluster]) -> list[Cluster]:
    """Kahn's algorithm: each cluster after those it reads or waits for, otherwise in the given order."""
    position = {c: i for i, c in enumerate(clusters)}
    unfinished = {c: len(c.reads | c.waits) for c in clusters}
    after: dict[Cluster, list[Cluster]] = {c: [] for c in clusters}
    for c in clusters:
        for before in c.reads | c.waits:
            after[before].append(c)
    ready = sorted((c for c in clusters if not unfinished[c]), key=position.__getitem__)
    ordered = []
    while ready:
        c = min(ready, key=position.__getitem__)
        ready.remove(c)
        ordered.append(c)
        for later in after[c]:
            unfinished[later] -= 1
            if not unfinished[later]:
                ready.append(later)
    assert len(ordered) == len(clusters), "the dependences of clusters contain a cycle"
    return ordered
