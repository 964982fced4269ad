"""Concat elimination: the kernel that computes all parts stores each at its offset in the concatenated buffer.

The gates of a recurrent cell are slices of one product, so the gradient of that product is a concatenation of four
values over one iteration space.  One kernel computes the four and stores them in place; nothing is copied.

Outside of loops this holds for values that are generated, such as the noise of a private step: kernels that load
nothing are joined, so that the four words of a block of random numbers are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.types import Extent
from wholestep.compiler.plan.fusion.clusters import MAPS, Cluster, accesses
from wholestep.compiler.plan.fusion.fuse_updates import is_pure
from wholestep.compiler.plan.lower.materialize import is_generated
from wholestep.compiler.plan.model.kernel import Index, Kind


def eliminate_concats(
    clusters: Sequence[Cluster], graph: IRGraph, candidates: Sequence[Cluster] | None = None
) -> list[Cluster]:
    """The clusters without those that only concatenate values of one other cluster, which stores them in place."""
    single_use = graph.single_use_nodes()
    of = {n: c for c in clusters for n in c.results}
    removed: dict[Cluster, Cluster] = {}
    for cluster in clusters if candidates is None else candidates:
        node = cluster.nodes[0]
        if node.op != "concat" or len(cluster.nodes) > 1:
            continue
        # All parts must come from one kernel over one iteration space, and have no other reader: then none is stored
        # twice.
        producers = {of.get(part) for part in node.inputs}
        only_reader = all(part in single_use for part in node.inputs)
        (producer, *others) = producers
        if only_reader and not others and producer is not None and _computes_all_parts(producer, node):
            producer.nodes.append(node)
            removed[cluster] = producer
    for cluster in clusters:
        cluster.reads = {removed.get(r, r) for r in cluster.reads} - {cluster}
    return [c for c in clusters if c not in removed]


def generate_in_place(clusters: Sequence[Cluster], graph: IRGraph) -> list[Cluster]:
    """The clusters with all generated parts of a concatenation in one, which stores them in place."""
    of = {n: c for c in clusters for n in c.results}
    homes: dict[Cluster, Cluster] = {}  # a joined cluster -> the cluster that computes its values
    concats = []
    for cluster in clusters:
        if cluster.nodes[0].op != "concat" or len(cluster.nodes) > 1:
            continue
        producers = dict.fromkeys(of.get(part) for part in cluster.nodes[0].inputs)
        generated = [p for p in producers if p is not None and p not in homes and _is_generated(p)]
        if len(generated) == len(producers) and len({p.shape for p in generated}) == 1:
            first, *others = generated
            first.nodes += [n for other in others for n in other.nodes]
            homes |= dict.fromkeys(others, first)
            concats.append(cluster)
    remaining = [c for c in clusters if c not in homes]
    for cluster in remaining:
        cluster.reads = {homes.get(r, r) for r in cluster.reads}
    return eliminate_concats(remaining, graph, concats)


def _is_generated(cluster: Cluster) -> bool:
    """Is the cluster pointwise, and does it load nothing?"""
    inside = set(cluster.nodes)
    bases = {a.base for n in cluster.nodes for a in accesses(n)} - inside
    scalars = all(is_generated(x) or x.host or (x.op == "constant" and x.type.rank == 0) for x in bases)
    return is_pure(cluster) and not cluster.reads and scalars


def _computes_all_parts(producer: Cluster, node: Node) -> bool:
    same_space = all(part.type.shape == producer.shape and part.op in MAPS for part in node.inputs)
    return producer.kind is Kind.NEST and same_space and len(set(node.inputs)) == len(node.inputs)


def in_place_concats(cluster: Cluster) -> list[Node]:
    """The concatenations among a cluster's ops whose parts are stored in place."""
    inside = set(cluster.nodes)
    return [n for n in cluster.nodes if n.op == "concat" and all(i in inside for i in n.inputs)]


def parts(node: Node) -> list[tuple[Node, tuple[Index, ...]]]:
    """Each part of a concatenation, with the index of its elements in the result."""
    axis, start, indexed = attrs_of(node, at.ConcatAttrs).axis, _zero(), []
    for part in node.inputs:
        index = [Index.axis(d) for d in range(part.type.rank)]
        index[axis] = Index(((axis, 1),), start)
        indexed.append((part, tuple(index)))
        start = start + part.type.shape[axis]
    return indexed


def _zero() -> Extent:
    return 0
