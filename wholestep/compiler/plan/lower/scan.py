"""Loops: the body of a `scan` is planned like any graph, and its kernels run once per iteration.

The iteration number is a symbol.  A slice of a sequence is a view at an offset of that symbol; a carry is a view of its
stack, which holds the carry's value before and after every iteration.  So every access is affine, and the rest of the
planner needs no special case.  Results of an iteration are stored in their slot of the stack; a value that is used
within one iteration only has one buffer, which every iteration reuses.  Kernels that compute the same in every
iteration run once, before the loop (loop-invariant code motion).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Update
from wholestep.compiler.ir.types import Dim, Extent, product, symbols_of
from wholestep.compiler.plan.fusion.clusters import Cluster, accesses, fuse, is_op
from wholestep.compiler.plan.fusion.concat_elimination import eliminate_concats, in_place_concats, parts
from wholestep.compiler.plan.fusion.fuse_updates import fuse_pointwise
from wholestep.compiler.plan.lower.materialize import ReadableViews, materialize_copies, stored_copy
from wholestep.compiler.plan.memory.cluster_order import topological
from wholestep.compiler.plan.model.access import VIEWS, Indices
from wholestep.compiler.plan.model.bodies import Body
from wholestep.compiler.plan.model.kernel import (
    Buffer,
    Index,
    Instr,
    Kernel,
    Kind,
    Level,
    Load,
    Loop,
    Operand,
    Store,
)
from wholestep.compiler.target import Fusion

Slot = tuple[Node, Extent]  # a stack, and the position in it


@dataclass
class ExpandedLoops:
    """A program whose loops are expanded into the kernels of their bodies."""

    clusters: list[Cluster] = field(default_factory=list)  # clusters of all kernels, in execution order
    closed: list[Cluster] = field(default_factory=list)  # each loop as one cluster: its operands and results
    loops: list[Loop] = field(default_factory=list)
    outside: dict[Node, Node] = field(default_factory=dict)  # leaf of a body -> the outer value that it represents
    places: dict[Node, list[Slot]] = field(default_factory=dict)  # value of an iteration -> its slots in stacks

    # Part of an eliminated concat -> the concatenation, and the index of the part in it.
    parts: dict[Node, tuple[Node, Indices]] = field(default_factory=dict)

    @property
    def stacks(self) -> list[Node]:
        return list(dict.fromkeys(stack for places in self.places.values() for stack, _ in places))


def expand_loops(clusters: Sequence[Cluster], fusion: Fusion, rules: ReadableViews, fused: bool) -> ExpandedLoops:
    """Replace each loop by the clusters of its body."""
    opened = ExpandedLoops()
    for cluster in clusters:
        if cluster.kind is Kind.LOOP:
            opened.closed.append(cluster)
            _Body(cluster, opened, fusion, rules, fused).expand()
        else:
            opened.clusters.append(cluster)
    return opened


class _Body:
    """Expands one loop."""

    def __init__(
        self, cluster: Cluster, opened: ExpandedLoops, fusion: Fusion, rules: ReadableViews, fused: bool
    ) -> None:
        self.cluster, self.opened, self.fusion, self.rules, self.fused = cluster, opened, fusion, rules, fused
        self.scan = cluster.nodes[0]
        self.attrs = attrs_of(self.scan, at.ScanAttrs)
        id = len(opened.loops)
        self.loop = Loop(id, f"%{id}", self.attrs.length, self.attrs.reverse)
        self.iteration = Dim.symbol(self.loop.symbol)
        opened.loops.append(self.loop)
        self.leaves: dict[Node, Node] = {}
        self.items = self._items()

    def _items(self) -> list[Node]:
        """Every result of the scan, even if nothing outside reads it: the loop itself reads its carries."""
        existing = {attrs_of(n, at.ItemAttrs).index: n for n in self.cluster.nodes if n.op == "item"}
        missing = [i for i in range(len(self.scan.results)) if i not in existing]
        added = {i: Node("item", (self.scan,), at.ItemAttrs(i), self.scan.name, self.scan.line) for i in missing}
        self.cluster.nodes.extend(added.values())
        return [(existing | added)[i] for i in range(len(self.scan.results))]

    # -- operands of an iteration ----------------------------------------------------------------------------------
    def leaf(self, node: Node) -> Node:
        """A leaf of the body that represents a value computed outside of the loop."""
        if not is_op(node):
            return node  # states, constants and scalars are leaves anyway
        if node not in self.leaves:
            number = len(self.opened.outside)
            leaf = Node("input", (), at.InputAttrs(f"%{number}", node.type), node.name, node.line)
            self.leaves[node] = leaf
            self.opened.outside[leaf] = node
        return self.leaves[node]

    def view(self, node: Node) -> Node:
        """A view of an outer value, as a view of its leaf."""
        if node.op not in VIEWS:
            return self.leaf(node)
        return node.with_inputs([self.view(node.inputs[0])])

    def slot(self, stack: Node, number: Extent) -> Node:
        """The slice of a stack at one position."""
        shape = stack.type.shape
        cut = build.slice_axes(stack, (number, *(0,) * (len(shape) - 1)), (number + 1, *shape[1:]))
        return build.reshape(cut, shape[1:])

    def graph(self) -> IRGraph:
        """The graph of one iteration, whose updates store the iteration's results in stacks (iterations, ...)."""
        a, before = self.attrs, self.iteration + (1 if self.attrs.reverse else 0)
        after = self.iteration + (0 if self.attrs.reverse else 1)
        arguments = [self.slot(self.leaf(item), before) for item in self.items[: a.carries]]
        arguments += [
            self.slot(self.view(x), self.iteration) for x in self.scan.inputs[a.carries : a.carries + a.sequences]
        ]
        arguments += [self.view(x) for x in self.scan.inputs[a.carries + a.sequences :]]
        new = dict(zip(a.graph.inputs, arguments, strict=True))
        for node in a.graph.nodes:
            if node not in new:
                new[node] = node.with_inputs([new[i] for i in node.inputs])
        # Carry t is the slot t of a stack: an iteration reads slot t and writes slot t + 1 (in reverse, t + 1 and t).
        slots = [after if i < a.carries else self.iteration for i in range(len(self.items))]
        results = [
            stored_copy(new[o.node]) if new[o.node].op == "scatter_add" else new[o.node] for o in a.graph.outputs
        ]
        iteration = materialize_copies(
            IRGraph((), tuple(Update(f"y{i}", n) for i, n in enumerate(results))), self.rules
        )
        for update, item, slot in zip(iteration.updates, self.items, slots, strict=True):
            self.opened.places.setdefault(update.node, []).append((item, slot))
        return iteration

    # -- the kernels -----------------------------------------------------------------------------------------------
    def expand(self) -> None:
        """Add the clusters of the body: loop-invariant clusters first, then clusters that run in every iteration."""
        self.store_initial_carries()
        graph = self.graph()
        clusters = fuse(graph, self.fusion, self.fused)
        if self.fused:
            clusters = eliminate_concats(fuse_pointwise(clusters, (), self.fusion), graph)
        for concat in (n for c in clusters for n in in_place_concats(c)):
            self.opened.parts.update({part: (concat, index) for part, index in parts(concat)})
        inside = topological(clusters)
        invariant = self.invariant_clusters(inside)
        for cluster in inside:
            if cluster not in invariant:
                cluster.loop = self.loop.id
        self.opened.clusters += sorted(inside, key=lambda c: c.loop is not None)

    def store_initial_carries(self) -> None:
        """Copy the initial value of each carry into the first slot of its stack."""
        for i in range(self.attrs.carries):
            copy = stored_copy(self.scan.inputs[i])
            self.opened.places[copy] = [(self.items[i], self.attrs.length if self.attrs.reverse else 0)]
            shape = copy.type.shape
            self.opened.clusters.append(Cluster(Kind.NEST, shape[:-1], shape[-1] if shape else None, [copy]))

    def invariant_clusters(self, clusters: Sequence[Cluster]) -> set[Cluster]:
        """Loop-invariant clusters: they compute the same in every iteration, and run once before the loop."""
        invariant: set[Cluster] = set()
        for c in clusters:
            stacked = any(n in self.opened.places for n in c.results)
            varies = any(
                symbols_of([i.offset for i in a.index]) & {self.loop.symbol} for n in c.members for a in accesses(n)
            )
            if not stacked and not varies and c.reads <= invariant:
                invariant.add(c)
        return invariant


def in_slots(kernel: Kernel, slots: Mapping[int, Extent], buffers: Sequence[Buffer]) -> Kernel:
    """The kernel with accesses to values of the iteration redirected to their slots in stacks, if they have one."""

    def redirect(value: Any) -> Any:
        if isinstance(value, Load):
            stack = buffers[value.buffer].type
            if value.buffer not in slots or product(value.shape) == stack.elements:
                return value
            return Load(value.buffer, (stack.shape[0], *value.shape), (Index(offset=slots[value.buffer]), *value.index))
        if isinstance(value, tuple):
            return tuple(map(redirect, value))
        if isinstance(value, Instr | Store | Level | Operand | Body):
            return replace(value, **{f.name: redirect(getattr(value, f.name)) for f in fields(value)})
        return value

    return replace(kernel, body=redirect(kernel.body))
