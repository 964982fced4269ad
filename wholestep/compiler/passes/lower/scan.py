"""Loop (`scan`) optimizations: passes over loop bodies, fusion of equal loops, and loop-invariant code motion.

Projections x_t·W of all steps become one GEMM before the loop, casts are hoisted, and embedding lookups are sunk into
the body.  Invariant: parameters of a body are ordered carries, sequences (one slice per step), loop-invariant values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, body_of, toposort, with_body
from wholestep.compiler.ir.types import TensorType

Pass = Callable[[IRGraph], IRGraph]


def map_over_bodies(rewrite: Pass) -> Pass:
    """A pass that is applied to the bodies of loops and custom gradients first, innermost first, and then to the graph
    around them."""

    def everywhere(graph: IRGraph) -> IRGraph:
        return rewrite(_with_bodies(graph, everywhere))

    everywhere.__name__ = getattr(rewrite, "__name__", "rewrite")
    return everywhere


def _with_bodies(graph: IRGraph, rewrite: Pass) -> IRGraph:
    if not any(n.op in ("scan", "custom_gradient") for n in graph.nodes):
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        rebuilt = node.with_inputs([new[i] for i in node.inputs])
        body = body_of(node) if node.op != "call" else None
        new[node] = rebuilt if body is None else with_body(rebuilt, rewrite(body))
    return graph.with_nodes(new)


def has_loops(graph: IRGraph) -> bool:
    return any(n.op == "scan" for n in graph.nodes)


# -- loop fusion -------------------------------------------------------------------------------------------------


def merge_scans(graph: IRGraph) -> IRGraph:
    """Merge loops over the same inputs with the same body into one loop, which returns all results that are read.

    Autodiff creates such pairs: the user's forward loop, and a loop that also stacks values for the backward loop.
    """
    if not has_loops(graph):
        return graph
    equal_loops: dict[tuple[object, ...], list[Node]] = {}
    for node in graph.nodes:
        if node.op == "scan":
            a = attrs_of(node, at.ScanAttrs)
            equal_loops.setdefault((node.inputs, a.graph.inputs, a.reverse), []).append(node)
    merged = {node: _MergedLoop(group, graph) for group in equal_loops.values() for node in group[:1]}
    loop_of = {node: merged[group[0]] for group in equal_loops.values() for node in group}
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op == "scan":
            new[node] = loop_of[node].merged_node(node, new)
        elif node.op == "item" and node.inputs[0] in loop_of:
            new[node] = loop_of[node.inputs[0]].item(node)
        else:
            new[node] = node.with_inputs([new[i] for i in node.inputs])
    return graph.with_nodes(new)


class _MergedLoop:
    """The merged loop of several equal loops; inputs that it no longer needs are dropped."""

    def __init__(self, group: Sequence[Node], graph: IRGraph) -> None:
        attrs = attrs_of(group[0], at.ScanAttrs)
        self.carries = attrs.carries
        carried = list(attrs.graph.outputs[: attrs.carries])
        self.numbers: dict[Node, int] = {}  # stacked value -> index of the result
        for node in graph.nodes:
            if node.op == "item" and node.inputs[0] in group:
                index = attrs_of(node, at.ItemAttrs).index
                stacked = attrs_of(node.inputs[0], at.ScanAttrs).graph.outputs[index].node
                if index >= attrs.carries:
                    self.numbers.setdefault(stacked, attrs.carries + len(self.numbers))
        outputs = (*carried, *(Output(f"y{i}", n) for n, i in self.numbers.items()))
        reached = set(toposort([o.node for o in outputs]))
        self.kept_inputs = [i for i, leaf in enumerate(attrs.graph.inputs) if i < attrs.carries or leaf in reached]
        last = attrs.carries + attrs.sequences
        self.attrs = replace(
            attrs,
            graph=IRGraph(outputs, (), tuple(attrs.graph.inputs[i] for i in self.kept_inputs)),
            sequences=sum(attrs.carries <= i < last for i in self.kept_inputs),
        )
        self.node: Node | None = None

    def merged_node(self, node: Node, new: dict[Node, Node]) -> Node:
        if self.node is None:
            self.node = Node("scan", [new[node.inputs[i]] for i in self.kept_inputs], self.attrs, node.name, node.line)
        return self.node

    def item(self, node: Node) -> Node:
        assert self.node is not None
        index = attrs_of(node, at.ItemAttrs).index
        if index >= self.carries:
            index = self.numbers[attrs_of(node.inputs[0], at.ScanAttrs).graph.outputs[index].node]
        return Node("item", (self.node,), at.ItemAttrs(index), node.name, node.line)


# -- hoisting ------------------------------------------------------------------------------------------------------


def hoist_projections(graph: IRGraph) -> IRGraph:
    """Compute products of a sequence's slice with a loop-invariant matrix for all steps at once, before the loop.

    x_t·W for 64 steps of 32 rows is one GEMM of 2048 rows, which fills its tiles; the loop keeps the recurrent part.
    """
    return _rewrite_loops(graph, _hoist_from_loop)


def hoist_casts(graph: IRGraph) -> IRGraph:
    """Hoist casts of slices and of loop-invariant values out of the loop: weights are cast once, not once per step."""
    return _rewrite_loops(graph, _hoist_casts_from_loop)


def _rewrite_loops(graph: IRGraph, rule: Callable[[Node], Node]) -> IRGraph:
    if not has_loops(graph):
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        rebuilt = node.with_inputs([new[i] for i in node.inputs])
        new[node] = rule(rebuilt) if node.op == "scan" else rebuilt
    return graph.with_nodes(new)


def _hoist_casts_from_loop(node: Node) -> Node:
    """The loop with a new parameter for each cast of a sequence or of a loop-invariant value."""
    attrs = attrs_of(node, at.ScanAttrs)
    body, first, last = attrs.graph, attrs.carries, attrs.carries + attrs.sequences
    position = {leaf: i for i, leaf in enumerate(body.inputs) if i >= first}
    casts = [n for n in body.nodes if n.op == "cast" and n.inputs[0] in position]
    if not casts:
        return node
    leaves = {n: Node("input", (), at.InputAttrs(f"cast{i}", n.type), n.name, n.line) for i, n in enumerate(casts)}
    sliced, invariant = ([n for n in casts if (position[n.inputs[0]] < last) is part] for part in (True, False))

    def with_new(parameters: tuple[Node, ...], casts_by_node: dict[Node, Node]) -> tuple[Node, ...]:
        return (
            *parameters[:last],
            *(casts_by_node[n] for n in sliced),
            *parameters[last:],
            *(casts_by_node[n] for n in invariant),
        )

    new_body = _replace_in_body(body, leaves, with_new(body.inputs, leaves))
    outside = {n: build.cast(node.inputs[position[n.inputs[0]]], n.type.dtype) for n in casts}
    changed = replace(attrs, graph=new_body, sequences=attrs.sequences + len(sliced))
    return Node("scan", with_new(node.inputs, outside), changed, node.name, node.line)


def _hoist_from_loop(node: Node) -> Node:
    attrs = attrs_of(node, at.ScanAttrs)
    body, first, last = attrs.graph, attrs.carries, attrs.carries + attrs.sequences
    outside = dict(zip(body.inputs[first:], node.inputs[first:], strict=True))
    slices, hoisted = set(body.inputs[first:last]), dict[Node, Node]()
    for inner in body.nodes:
        if inner.op == "matmul" and inner.type.rank == 2 and inner.inputs[0] in slices:
            weight = _rebuild_outside(inner.inputs[1], outside, slices)
            if weight is not None and not attrs_of(inner, at.MatmulAttrs).transpose_a:
                with build.origin(inner):
                    hoisted[inner] = _for_all_steps(inner, outside[inner.inputs[0]], weight)
    if not hoisted:
        return node
    leaves = {
        inner: Node("input", (), at.InputAttrs(f"projection{i}", inner.type), inner.name, inner.line)
        for i, inner in enumerate(hoisted)
    }
    new_body = _replace_in_body(body, leaves, [*body.inputs[:last], *leaves.values(), *body.inputs[last:]])
    inputs = [*node.inputs[:last], *hoisted.values(), *node.inputs[last:]]
    return Node(
        "scan", inputs, replace(attrs, graph=new_body, sequences=attrs.sequences + len(hoisted)), node.name, node.line
    )


def _rebuild_outside(node: Node, outside: dict[Node, Node], slices: set[Node]) -> Node | None:
    """A loop-invariant node of the body, rebuilt outside of the loop; None if it depends on the step."""
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


def _replace_in_body(body: IRGraph, replacements: dict[Node, Node], parameters: Sequence[Node]) -> IRGraph:
    """The body with some nodes replaced, and with other parameters."""
    new: dict[Node, Node] = {}
    for n in body.nodes:
        new[n] = replacements.get(n) or n.with_inputs([new[i] for i in n.inputs])
    return body.with_roots([new[n] for n in body.roots], parameters)


# -- sinking -------------------------------------------------------------------------------------------------------


def sink_lookups(graph: IRGraph) -> IRGraph:
    """Sink lookups that only a loop reads into its body: the rows of all steps are never in memory at once."""
    if not has_loops(graph):
        return graph
    single_use = graph.single_use_nodes()
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        rebuilt = node.with_inputs([new[i] for i in node.inputs])
        if node.op == "scan":
            rebuilt = _sink_into_loop(rebuilt, [i in single_use for i in node.inputs])
        new[node] = rebuilt
    return graph.with_nodes(new)


def _sink_into_loop(node: Node, has_single_reader: Sequence[bool]) -> Node:
    attrs = attrs_of(node, at.ScanAttrs)
    inputs, invariant = list(node.inputs), list[Node]()
    body, leaves, tables = attrs.graph, dict[Node, Node](), list[Node]()
    for i in range(attrs.carries, attrs.carries + attrs.sequences):
        x = node.inputs[i]
        if not (
            has_single_reader[i]
            and x.op == "gather"
            and attrs_of(x, at.GatherAttrs).axis == 0
            and x.inputs[1].type.rank > 1
        ):
            continue
        table, index = x.inputs
        inputs[i] = index
        invariant.append(table)
        tables.append(Node("input", (), at.InputAttrs(f"table{i}", table.type)))
        step = TensorType(index.type.shape[1:], index.type.dtype)
        rows = Node("input", (), at.InputAttrs(f"index{i}", step))
        leaves[body.inputs[i]] = build.gather(tables[-1], rows, 0)
    if not leaves:
        return node
    parameters = [leaves[p].inputs[1] if p in leaves else p for p in body.inputs]
    new_body = _replace_in_body(body, leaves, [*parameters, *tables])
    return Node("scan", [*inputs, *invariant], replace(attrs, graph=new_body), node.name, node.line)
