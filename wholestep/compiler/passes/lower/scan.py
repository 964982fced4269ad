"""Loops among the passes: bodies are rewritten as graphs of their own, twins become one loop, projections leave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update, body_of, toposort, with_held_graph
from wholestep.compiler.ir.types import TensorType

Pass = Callable[[IRGraph], IRGraph]


def in_bodies(rewrite: Pass) -> Pass:
    """A pass that is applied to the bodies of loops and to gradients of a user's own first, innermost first, and then
    to the graph around them."""

    def everywhere(graph: IRGraph) -> IRGraph:
        return rewrite(_with_bodies(graph, everywhere))

    everywhere.__name__ = getattr(rewrite, "__name__", "rewrite")
    return everywhere


def _with_bodies(graph: IRGraph, rewrite: Pass) -> IRGraph:
    if not any(n.op in ("scan", "custom_gradient") for n in graph.nodes):
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        moved = node.with_inputs([new[i] for i in node.inputs])
        body = body_of(node) if node.op != "call" else None
        new[node] = moved if body is None else with_held_graph(moved, rewrite(body))
    return _rebuilt(graph, new)


def has_loops(graph: IRGraph) -> bool:
    return any(n.op == "scan" for n in graph.nodes)


def _rebuilt(graph: IRGraph, new: dict[Node, Node]) -> IRGraph:
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


# -- twins -------------------------------------------------------------------------------------------------------


def merge_scans(graph: IRGraph) -> IRGraph:
    """Loops over the same inputs with the same body become one, which gives what any of them gave and somebody reads.

    A gradient makes such twins: the forward loop as the user wrote it, and the one that also stacks what it needs.
    """
    if not has_loops(graph):
        return graph
    twins: dict[tuple[object, ...], list[Node]] = {}
    for node in graph.nodes:
        if node.op == "scan":
            a = attrs_of(node, at.ScanAttrs)
            twins.setdefault((node.inputs, a.graph.inputs, a.reverse), []).append(node)
    merged = {node: _Merged(group, graph) for group in twins.values() for node in group[:1]}
    of = {node: merged[group[0]] for group in twins.values() for node in group}
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op == "scan":
            new[node] = of[node].made(node, new)
        elif node.op == "item" and node.inputs[0] in of:
            new[node] = of[node.inputs[0]].item(node)
        else:
            new[node] = node.with_inputs([new[i] for i in node.inputs])
    return _rebuilt(graph, new)


class _Merged:
    """The one loop that stands for several."""

    def __init__(self, group: Sequence[Node], graph: IRGraph) -> None:
        attrs = attrs_of(group[0], at.ScanAttrs)
        self.carries = attrs.carries
        carried = list(attrs.graph.outputs[: attrs.carries])
        self.numbers: dict[Node, int] = {}  # what is stacked -> number of the result
        for node in graph.nodes:
            if node.op == "item" and node.inputs[0] in group:
                index = attrs_of(node, at.ItemAttrs).index
                stacked = attrs_of(node.inputs[0], at.ScanAttrs).graph.outputs[index].node
                if index >= attrs.carries:
                    self.numbers.setdefault(stacked, attrs.carries + len(self.numbers))
        outputs = (*carried, *(Output(f"y{i}", n) for n, i in self.numbers.items()))
        reached = set(toposort([o.node for o in outputs]))
        self.kept = [i for i, leaf in enumerate(attrs.graph.inputs) if i < attrs.carries or leaf in reached]
        last = attrs.carries + attrs.sequences
        self.attrs = replace(
            attrs,
            graph=IRGraph(outputs, (), tuple(attrs.graph.inputs[i] for i in self.kept)),
            sequences=sum(attrs.carries <= i < last for i in self.kept),
        )
        self.node: Node | None = None

    def made(self, node: Node, new: dict[Node, Node]) -> Node:
        if self.node is None:
            self.node = Node("scan", [new[node.inputs[i]] for i in self.kept], self.attrs, node.name, node.line)
        return self.node

    def item(self, node: Node) -> Node:
        assert self.node is not None
        index = attrs_of(node, at.ItemAttrs).index
        if index >= self.carries:
            index = self.numbers[attrs_of(node.inputs[0], at.ScanAttrs).graph.outputs[index].node]
        return Node("item", (self.node,), at.ItemAttrs(index), node.name, node.line)


# -- what leaves the loop ------------------------------------------------------------------------------------------


def hoist_projections(graph: IRGraph) -> IRGraph:
    """Products of a slice with something steady are taken for all steps at once, before the loop.

    x_t·W for 64 steps of 32 rows is one product of 2048 rows: its blocks are full, and the loop keeps the rest.
    """
    if not has_loops(graph):
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        moved = node.with_inputs([new[i] for i in node.inputs])
        new[node] = _hoist(moved) if node.op == "scan" else moved
    return _rebuilt(graph, new)


def hoist_casts(graph: IRGraph) -> IRGraph:
    """Casts of slices and of what is steady are taken before the loop: of weights once, not once per step."""
    if not has_loops(graph):
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        moved = node.with_inputs([new[i] for i in node.inputs])
        new[node] = _without_casts(moved) if node.op == "scan" else moved
    return _rebuilt(graph, new)


def _without_casts(node: Node) -> Node:
    """The loop with a parameter for each cast of one that is no carry; sequences stand before what is steady."""
    attrs = attrs_of(node, at.ScanAttrs)
    body, first, last = attrs.graph, attrs.carries, attrs.carries + attrs.sequences
    place = {leaf: i for i, leaf in enumerate(body.inputs) if i >= first}
    casts = [n for n in body.nodes if n.op == "cast" and n.inputs[0] in place]
    if not casts:
        return node
    leaves = {n: Node("input", (), at.InputAttrs(f"cast{i}", n.type), n.name, n.line) for i, n in enumerate(casts)}
    sliced, steady = ([n for n in casts if (place[n.inputs[0]] < last) is part] for part in (True, False))
    new: dict[Node, Node] = {}
    for n in body.nodes:
        new[n] = leaves[n] if n in leaves else n.with_inputs([new[i] for i in n.inputs])

    def around(whole: tuple[Node, ...], named: dict[Node, Node]) -> tuple[Node, ...]:
        return *whole[:last], *(named[n] for n in sliced), *whole[last:], *(named[n] for n in steady)

    held = IRGraph(tuple(Output(o.name, new[o.node]) for o in body.outputs), (), around(body.inputs, leaves))
    outside = {n: build.cast(node.inputs[place[n.inputs[0]]], n.type.dtype) for n in casts}
    changed = replace(attrs, graph=held, sequences=attrs.sequences + len(sliced))
    return Node("scan", around(node.inputs, outside), changed, node.name, node.line)


def _hoist(node: Node) -> Node:
    attrs = attrs_of(node, at.ScanAttrs)
    body, first, last = attrs.graph, attrs.carries, attrs.carries + attrs.sequences
    outside = dict(zip(body.inputs[first:], node.inputs[first:], strict=True))
    slices, found = set(body.inputs[first:last]), dict[Node, Node]()
    for inner in body.nodes:
        if inner.op == "matmul" and inner.type.rank == 2 and inner.inputs[0] in slices:
            weight = _outside(inner.inputs[1], outside, slices)
            if weight is not None and not attrs_of(inner, at.MatmulAttrs).transpose_a:
                with build.origin(inner):
                    found[inner] = _for_all_steps(inner, outside[inner.inputs[0]], weight)
    if not found:
        return node
    leaves = {
        inner: Node("input", (), at.InputAttrs(f"projection{i}", inner.type), inner.name, inner.line)
        for i, inner in enumerate(found)
    }
    held = _with_leaves(body, leaves, last)
    inputs = [*node.inputs[:last], *found.values(), *node.inputs[last:]]
    return Node(
        "scan", inputs, replace(attrs, graph=held, sequences=attrs.sequences + len(found)), node.name, node.line
    )


def _outside(node: Node, outside: dict[Node, Node], slices: set[Node]) -> Node | None:
    """A node of the body that does not depend on the step, as a node around the loop; None for any other."""
    order = toposort([node])
    if any(n.op == "input" and (n not in outside or n in slices) for n in order):
        return None
    new: dict[Node, Node] = {}
    for n in order:
        new[n] = outside[n] if n in outside else n.with_inputs([new[i] for i in n.inputs])
    return new[node]


def _for_all_steps(inner: Node, sequence: Node, weight: Node) -> Node:
    steps, rows, columns = sequence.type.shape
    flat = build.reshape(sequence, (steps * rows, columns))
    product = build.matmul(flat, weight, transpose_b=attrs_of(inner, at.MatmulAttrs).transpose_b)
    return build.reshape(product, (steps, *inner.type.shape))


def _with_leaves(body: IRGraph, leaves: dict[Node, Node], position: int) -> IRGraph:
    """The body with nodes replaced by new parameters, which stand before its parameter at `position`."""
    new: dict[Node, Node] = {}
    for n in body.nodes:
        new[n] = leaves[n] if n in leaves else n.with_inputs([new[i] for i in n.inputs])
    inputs = (*body.inputs[:position], *leaves.values(), *body.inputs[position:])
    return IRGraph(tuple(Output(o.name, new[o.node]) for o in body.outputs), (), inputs)


# -- what enters it ------------------------------------------------------------------------------------------------


def sink_lookups(graph: IRGraph) -> IRGraph:
    """Rows that only a loop reads are looked up inside it, step by step: they never lie in memory all at once."""
    if not has_loops(graph):
        return graph
    readers = graph.consumers()
    roots = {o.node for o in graph.outputs} | {u.node for u in graph.updates}
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        moved = node.with_inputs([new[i] for i in node.inputs])
        if node.op == "scan":
            alone = [len(readers[i]) == 1 and i not in roots for i in node.inputs]
            moved = _with_lookups(moved, alone)
        new[node] = moved
    return _rebuilt(graph, new)


def _with_lookups(node: Node, alone: Sequence[bool]) -> Node:
    attrs = attrs_of(node, at.ScanAttrs)
    inputs, steady = list(node.inputs), list[Node]()
    body, leaves, tables = attrs.graph, dict[Node, Node](), list[Node]()
    for i in range(attrs.carries, attrs.carries + attrs.sequences):
        x = node.inputs[i]
        if not (alone[i] and x.op == "gather" and attrs_of(x, at.GatherAttrs).axis == 0 and x.inputs[1].type.rank > 1):
            continue
        table, index = x.inputs
        inputs[i] = index
        steady.append(table)
        tables.append(Node("input", (), at.InputAttrs(f"table{i}", table.type)))
        step = TensorType(index.type.shape[1:], index.type.dtype)
        rows = Node("input", (), at.InputAttrs(f"index{i}", step))
        leaves[body.inputs[i]] = build.gather(tables[-1], rows, 0)
    if not leaves:
        return node
    new: dict[Node, Node] = {}
    for n in body.nodes:
        new[n] = leaves[n] if n in leaves else n.with_inputs([new[i] for i in n.inputs])
    parameters = [leaves[p].inputs[1] if p in leaves else p for p in body.inputs]
    held = IRGraph(tuple(Output(o.name, new[o.node]) for o in body.outputs), (), (*parameters, *tables))
    return Node("scan", [*inputs, *steady], replace(attrs, graph=held), node.name, node.line)
