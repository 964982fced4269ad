"""Values that are put side by side are written there by the kernel that computes them all.

The gates of a recurrent cell are slices of one product, so the gradient of that product is a concatenation of four
values over one space.  Their kernel stores each at its place; nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.types import Extent
from wholestep.compiler.plan.fusion.clusters import MAPS, Cluster
from wholestep.compiler.plan.model.kernel import Index, Kind


def lay_beside(clusters: Sequence[Cluster], graph: IRGraph) -> list[Cluster]:
    """The clusters without those that only put values of one other cluster side by side."""
    readers = graph.consumers()
    roots = {o.node for o in graph.outputs} | {u.node for u in graph.updates}
    of = {n: c for c in clusters for n in c.results}
    gone: dict[Cluster, Cluster] = {}
    for cluster in clusters:
        node = cluster.nodes[0]
        if node.op != "concat" or len(cluster.nodes) > 1:
            continue
        makers = {of.get(part) for part in node.inputs}
        alone = all(len(readers[part]) == 1 and part not in roots for part in node.inputs)
        (maker, *others) = makers
        if alone and not others and maker is not None and _makes_each(maker, node):
            maker.nodes.append(node)
            gone[cluster] = maker
    for cluster in clusters:
        cluster.reads = {gone.get(r, r) for r in cluster.reads} - {cluster}
    return [c for c in clusters if c not in gone]


def _makes_each(maker: Cluster, node: Node) -> bool:
    whole = all(part.type.shape == maker.shape and part.op in MAPS for part in node.inputs)
    return maker.kind is Kind.NEST and whole and len(set(node.inputs)) == len(node.inputs)


def in_place_concats(cluster: Cluster) -> list[Node]:
    """The concatenations among a cluster's ops whose parts are stored in place."""
    inside = set(cluster.nodes)
    return [n for n in cluster.nodes if n.op == "concat" and all(i in inside for i in n.inputs)]


def parts(node: Node) -> list[tuple[Node, tuple[Index, ...]]]:
    """Each part of a concatenation, and where its elements are in the whole."""
    axis, start, found = attrs_of(node, at.ConcatAttrs).axis, _zero(), []
    for part in node.inputs:
        index = [Index.axis(d) for d in range(part.type.rank)]
        index[axis] = Index(((axis, 1),), start)
        found.append((part, tuple(index)))
        start = start + part.type.shape[axis]
    return found


def _zero() -> Extent:
    return 0
