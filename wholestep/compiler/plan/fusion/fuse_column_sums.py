"""Column sums move in with a kernel that reads the same memory anyway.

A layer's weight gradient Xᵀ·dY and its bias gradient, the column sums of dY, read the same dY; so do a norm's two
gradients.  The first becomes part of the contraction's kernel, which has the columns in its cache; the second share one
loop.  Each sum still adds in the order that its length gives it: no bit changes (decision 001).
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

COLUMN, DEPTH = Index.axis(0), Index.axis(1)  # of the space (columns, what is summed over), to compare accesses


def join_column_sums(clusters: Sequence[Cluster], updates: Sequence[Update], fusion: Fusion) -> list[Cluster]:
    """The clusters with every column sum in the kernel of a contraction or of another sum that reads what it reads."""
    joiner = _Joiner(clusters, updates, fusion)
    if fusion.sums_in_dots:
        joiner.with_contractions()
    joiner.with_each_other()
    return joiner.left()


class _Joiner:
    def __init__(self, clusters: Sequence[Cluster], updates: Sequence[Update], fusion: Fusion) -> None:
        self.clusters, self.fusion = clusters, fusion
        self.reach = reach_of(clusters)
        self.home: dict[Cluster, Cluster] = {}  # of those that have moved in with another
        writer = {n: c for c in clusters for n in c.nodes}
        self.written: dict[Cluster, set[str]] = {c: set() for c in clusters}
        for u in updates:
            self.written[writer[u.node]].add(u.name)
        self.read = {c: states_read(c) for c in clusters}

    def with_contractions(self) -> None:
        dots = {b: c for c in self.clusters if (b := right_operand(c, self.fusion.least_columns)) is not None}
        for c in self.clusters:
            summed = {plain_summand(h) for h in c.heads} if c.kind is Kind.COLUMNS and not c.prologue else {None}
            operand = summed.pop()
            if summed or operand not in dots or not self.may_share(dots[operand], c):
                continue
            dot = dots[operand]
            dot.sums = c if dot.sums is None else merge_clusters(dot.sums, c)
            self.move(c, dot)

    def with_each_other(self) -> None:
        """A sum takes in the later ones over its space that read what it reads, until it is full."""
        last: dict[tuple[object, ...], Cluster] = {}
        for c in self.clusters:
            if c.kind is not Kind.COLUMNS or c in self.home:
                continue
            places = [(space(c), base) for base in bases(c)]
            found = dict.fromkeys(last[p] for p in places if p in last)
            other = next(
                (o for o in found if self.may_share(o, c) and len(o.heads) + len(c.heads) <= self.fusion.most_sums),
                None,
            )
            if other is not None:
                merge_clusters(other, c)
                self.move(c, other)
            last |= dict.fromkeys(places, c if other is None else other)

    def may_share(self, a: Cluster, b: Cluster) -> bool:
        """Neither waits for the other but at its end, and neither overwrites a state that the other reads."""
        apart = self.reach.depends(a, b) or (self.reach.depends(b, a) and not self.waits_at_the_end(a, b))
        return not (apart or self.written[a] & self.read[b] or self.written[b] & self.read[a])

    def waits_at_the_end(self, a: Cluster, b: Cluster) -> bool:
        """Does only what stands behind a column sum need another one, and nothing between them?"""
        if a.kind is not Kind.COLUMNS or b.kind is not Kind.COLUMNS:
            return False
        added = {x.base for n in (*b.prologue, *b.heads) for x in accesses(n)}
        others = (b.reads | b.waits) - {a}
        return added.isdisjoint(a.results) and not any(self.reach.depends(o, a) for o in others)

    def move(self, guest: Cluster, home: Cluster) -> None:
        self.home[guest] = home
        self.reach.absorb(home, guest)
        self.written[home] |= self.written[guest]
        self.read[home] |= self.read[guest]
        home.reads |= guest.reads

    def left(self) -> list[Cluster]:
        left = [c for c in self.clusters if c not in self.home]
        for c in left:
            c.reads = {self.home.get(r, r) for r in c.reads} - {c}
        return left


def merge_clusters(a: Cluster, b: Cluster) -> Cluster:
    """Two column sums over one space: what both compute before they add is computed once."""
    a.prologue += [n for n in b.prologue if n not in a.prologue]
    a.nodes += b.nodes
    return a


def right_operand(cluster: Cluster, least_columns: int) -> Access | None:
    """What a matrix product reads by columns, in the space of its columns and its depth."""
    if cluster.kind is not Kind.DOT or len(cluster.rows) != 1:
        return None
    if not isinstance(cluster.vector, int) or cluster.vector < least_columns:
        return None
    head = cluster.nodes[0]
    assert isinstance(head.attrs, at.MatmulAttrs)
    access = resolve(head.inputs[1], (COLUMN, DEPTH) if head.attrs.transpose_b else (DEPTH, COLUMN))
    return None if is_state(access.base) else access  # a state may be read from its stored transpose


def plain_summand(head: Node) -> Access | None:
    """What a sum over the rows of a matrix reads, in the same space."""
    (source,) = head.inputs
    if head.op != "sum" or source.type.rank != 2:
        return None
    return resolve(source, (DEPTH, COLUMN))


def space(cluster: Cluster) -> tuple[Shape, int]:
    """Over which shape a column sum runs, and along which axis."""
    head = cluster.nodes[0]
    return head.inputs[0].type.shape, reduced_axis(head)


def bases(cluster: Cluster) -> list[Node]:
    """The values as large as the space that a column sum loads."""
    shape, _ = space(cluster)
    inside = set(cluster.prologue)
    found = [a.base for n in (*cluster.prologue, *cluster.heads) for a in accesses(n) if a.shape == shape]
    return [b for b in dict.fromkeys(found) if b not in inside and not is_generated(b)]


def states_read(cluster: Cluster) -> set[str]:
    bases = (a.base for n in cluster.members for a in accesses(n))
    return {b.attrs.name for b in bases if is_state(b)}  # type: ignore[attr-defined]
