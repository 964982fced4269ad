"""Loops: the body of a `scan` is planned like any graph, and its kernels run once per step.

The number of the step is a symbol.  A slice of a sequence is a view that begins at that symbol, a carry is a view of
its trail, a stack of all values that it has: so every access of a step is affine, and the planner sees nothing new.
What a step computes is stored in the stack at the step's place; values that stay within a step have a buffer each.
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
from wholestep.compiler.plan.fusion.concat_elimination import in_place_concats, lay_beside, parts
from wholestep.compiler.plan.fusion.fuse_updates import merge_maps
from wholestep.compiler.plan.lower.materialize import ReadableViews, copy_of, prepare
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

Place = tuple[Node, Extent]  # a stack, and the slot in it


@dataclass
class Opened:
    """What planning a program with its loops opened needs to know about them."""

    clusters: list[Cluster] = field(default_factory=list)  # all kernels to be, in order
    closed: list[Cluster] = field(default_factory=list)  # each loop as one: what it reads and gives
    loops: list[Loop] = field(default_factory=list)
    outside: dict[Node, Node] = field(default_factory=dict)  # leaf of a body -> the value that it is
    places: dict[Node, list[Place]] = field(default_factory=dict)  # computed in a step -> where it is stacked

    parts: dict[Node, tuple[Node, Indices]] = field(default_factory=dict)  # -> what it is stored in, and where

    @property
    def stacks(self) -> list[Node]:
        return list(dict.fromkeys(stack for places in self.places.values() for stack, _ in places))


def open_loops(clusters: Sequence[Cluster], fusion: Fusion, rules: ReadableViews, fused: bool) -> Opened:
    """Put the kernels of its body in the place of each loop."""
    opened = Opened()
    for cluster in clusters:
        if cluster.kind is Kind.LOOP:
            opened.closed.append(cluster)
            _Body(cluster, opened, fusion, rules, fused).open()
        else:
            opened.clusters.append(cluster)
    return opened


class _Body:
    def __init__(self, cluster: Cluster, opened: Opened, fusion: Fusion, rules: ReadableViews, fused: bool) -> None:
        self.cluster, self.opened, self.fusion, self.rules, self.fused = cluster, opened, fusion, rules, fused
        self.scan = cluster.nodes[0]
        self.attrs = attrs_of(self.scan, at.ScanAttrs)
        id = len(opened.loops)
        self.loop = Loop(id, f"%{id}", self.attrs.length, self.attrs.reverse)
        self.step = Dim.symbol(self.loop.symbol)
        opened.loops.append(self.loop)
        self.leaves: dict[Node, Node] = {}
        self.items = self._items()

    def _items(self) -> list[Node]:
        """Every result, read or not: a carry is read by the loop itself."""
        known = {attrs_of(n, at.ItemAttrs).index: n for n in self.cluster.nodes if n.op == "item"}
        missing = [i for i in range(len(self.scan.results)) if i not in known]
        made = {i: Node("item", (self.scan,), at.ItemAttrs(i), self.scan.name, self.scan.line) for i in missing}
        self.cluster.nodes.extend(made.values())
        return [(known | made)[i] for i in range(len(self.scan.results))]

    # -- what a step reads -----------------------------------------------------------------------------------------
    def leaf(self, node: Node) -> Node:
        """Something in memory outside, as a leaf of the body."""
        if not is_op(node):
            return node  # states, constants and scalars are leaves already
        if node not in self.leaves:
            number = len(self.opened.outside)
            leaf = Node("input", (), at.InputAttrs(f"%{number}", node.type), node.name, node.line)
            self.leaves[node] = leaf
            self.opened.outside[leaf] = node
        return self.leaves[node]

    def view(self, node: Node) -> Node:
        """A view of something outside, as a view of a leaf."""
        if node.op not in VIEWS:
            return self.leaf(node)
        return node.with_inputs([self.view(node.inputs[0])])

    def slot(self, stack: Node, number: Extent) -> Node:
        """One slice of a stack."""
        shape = stack.type.shape
        cut = build.slice_axes(stack, (number, *(0,) * (len(shape) - 1)), (number + 1, *shape[1:]))
        return build.reshape(cut, shape[1:])

    def graph(self) -> IRGraph:
        """One step; its updates are what is stacked."""
        a, before = self.attrs, self.step + (1 if self.attrs.reverse else 0)
        after = self.step + (0 if self.attrs.reverse else 1)
        given = [self.slot(self.leaf(item), before) for item in self.items[: a.carries]]
        given += [self.slot(self.view(x), self.step) for x in self.scan.inputs[a.carries : a.carries + a.sequences]]
        given += [self.view(x) for x in self.scan.inputs[a.carries + a.sequences :]]
        new = dict(zip(a.graph.inputs, given, strict=True))
        for node in a.graph.nodes:
            if node not in new:
                new[node] = node.with_inputs([new[i] for i in node.inputs])
        slots = [after if i < a.carries else self.step for i in range(len(self.items))]
        results = [copy_of(new[o.node]) if new[o.node].op == "scatter_add" else new[o.node] for o in a.graph.outputs]
        one = prepare(IRGraph((), tuple(Update(f"y{i}", n) for i, n in enumerate(results))), self.rules)
        for update, item, slot in zip(one.updates, self.items, slots, strict=True):
            self.opened.places.setdefault(update.node, []).append((item, slot))
        return one

    # -- the kernels -----------------------------------------------------------------------------------------------
    def open(self) -> None:
        self.first_values()
        graph = self.graph()
        clusters = fuse(graph, self.fusion, self.fused)
        if self.fused:
            clusters = lay_beside(merge_maps(clusters, (), self.fusion), graph)
        for whole in (n for c in clusters for n in in_place_concats(c)):
            self.opened.parts.update({part: (whole, index) for part, index in parts(whole)})
        inside = topological(clusters)
        steady = self.steady(inside)
        for cluster in inside:
            if cluster not in steady:
                cluster.loop = self.loop.id
        self.opened.clusters += sorted(inside, key=lambda c: c.loop is not None)

    def first_values(self) -> None:
        """Each carry's trail begins with its first value."""
        for i in range(self.attrs.carries):
            copy = copy_of(self.scan.inputs[i])
            self.opened.places[copy] = [(self.items[i], self.attrs.length if self.attrs.reverse else 0)]
            shape = copy.type.shape
            self.opened.clusters.append(Cluster(Kind.NEST, shape[:-1], shape[-1] if shape else None, [copy]))

    def steady(self, clusters: Sequence[Cluster]) -> set[Cluster]:
        """Those that compute the same in every step: they run once, before the loop."""
        found: set[Cluster] = set()
        for c in clusters:
            stacked = any(n in self.opened.places for n in c.results)
            moving = any(
                symbols_of([i.offset for i in a.index]) & {self.loop.symbol} for n in c.members for a in accesses(n)
            )
            if not stacked and not moving and c.reads <= found:
                found.add(c)
        return found


def in_slots(kernel: Kernel, slots: Mapping[int, Extent], buffers: Sequence[Buffer]) -> Kernel:
    """The kernel with every access of a step's own value, where that lies in a stack, at its slot in the stack."""

    def moved(value: Any) -> Any:
        if isinstance(value, Load):
            stack = buffers[value.buffer].type
            if value.buffer not in slots or product(value.shape) == stack.elements:
                return value
            return Load(value.buffer, (stack.shape[0], *value.shape), (Index(offset=slots[value.buffer]), *value.index))
        if isinstance(value, tuple):
            return tuple(map(moved, value))
        if isinstance(value, Instr | Store | Level | Operand | Body):
            return replace(value, **{f.name: moved(getattr(value, f.name)) for f in fields(value)})
        return value

    return replace(kernel, body=moved(kernel.body))
