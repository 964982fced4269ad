"""Weights read as `x @ w.T` are stored transposed; their gradients and updates are computed in that layout.

See [021](../../../../../docs/decisions/021-transposed-weights.md).
Elementwise values computed from such a state, or stored into it, are computed transposed too; the product that computes
its gradient has its operands exchanged, (aᵀ b)ᵀ = bᵀ a; a product that reads it has one transpose flag inverted.
A step transposes nothing.  Each element of a product is the same sum in the same order, so its bits do not change.
"""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.backends.cpu.layout.stored_layout import is_stored_transposed
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.types import transpose_type
from wholestep.compiler.plan.model.kernel import Draft, Space

REDUCTIONS = ("sum", "max")
SWAPPED = (1, 0)  # the permutation of a matrix's axes that transposes it


def transpose_states(graph: IRGraph) -> tuple[IRGraph, frozenset[str]]:
    """The graph in terms of the stored states, and the names of the states that are stored transposed."""
    leaves = [n for n in graph.nodes if isinstance(n.attrs, at.StateAttrs) and _is_transposed(n.attrs)]
    if not leaves:
        return graph, frozenset()
    names = frozenset(attrs_of(n, at.StateAttrs).name for n in leaves)
    return _Transposer(graph, names).result(), names


def _is_transposed(state: at.StateAttrs) -> bool:
    # A shard is cut along the stored layout.
    return not state.parts and is_stored_transposed(state.type, state.by_columns)


def mark_transposed(draft: Draft, names: frozenset[str]) -> Draft:
    """The draft with the transposed states marked."""
    marked = [x.transposed or (x.space is Space.STATE and x.name in names) for x in draft.buffers]
    buffers = [replace(x, transposed=mark) for x, mark in zip(draft.buffers, marked, strict=True)]
    return replace(draft, buffers=tuple(buffers))


def _is_pointwise(node: Node) -> bool:
    return node.is_elementwise and node.type.rank == 2 and bool(node.inputs) and not node.host


class _Transposer:
    """Rewrites a graph; `plain` and `transposed` map a node to its replacement and to that replacement's transpose."""

    def __init__(self, graph: IRGraph, names: frozenset[str]) -> None:
        self.graph, self.names = graph, names
        self.plain: dict[Node, Node] = {}
        self.transposed: dict[Node, Node] = {}
        self.transposed_nodes = self._find_transposed()

    def _is_leaf(self, node: Node) -> bool:
        return isinstance(node.attrs, at.StateAttrs) and node.attrs.name in self.names

    def _find_transposed(self) -> set[Node]:
        """The nodes computed transposed: the states, their new values, and elementwise values connected to them."""
        followers = self.graph.consumers()
        transposed: set[Node] = set()
        stack = [n for n in self.graph.nodes if self._is_leaf(n)]
        stack += [u.node for u in self.graph.updates if u.name in self.names]
        while stack:
            node = stack.pop()
            product = node.op == "matmul" and node.type.rank == 2
            if node in transposed or not (self._is_leaf(node) or product or _is_pointwise(node)):
                continue
            transposed.add(node)
            stack += [n for n in followers[node] if _is_pointwise(n)]
            if not product:
                stack += node.inputs
        return transposed

    def result(self) -> IRGraph:
        for node in self.graph.nodes:
            if node in self.transposed_nodes:
                self.transposed[node] = self._transpose_node(node)
            else:
                self.plain[node] = self._plain_node(node)
        updates = [
            Update(u.name, (self._transposed_replacement if u.name in self.names else self._replacement)(u.node))
            for u in self.graph.updates
        ]
        outputs = tuple(Output(o.name, self._replacement(o.node)) for o in self.graph.outputs)
        return IRGraph(outputs, tuple(updates), tuple(self._replacement(i) for i in self.graph.inputs))

    def _replacement(self, node: Node) -> Node:
        if node not in self.plain:
            self.plain[node] = b.permute(self.transposed[node], SWAPPED)
        return self.plain[node]

    def _transposed_replacement(self, node: Node) -> Node:
        if node not in self.transposed:
            self.transposed[node] = self._transpose_expand(node) or b.permute(self._replacement(node), SWAPPED)
        return self.transposed[node]

    def _transpose_expand(self, node: Node) -> Node | None:
        """An expanded scalar or vector, expanded to the transposed shape."""
        if node.op != "expand" or node.inputs[0].type.rank > 1:
            return None
        a = attrs_of(node, at.ExpandAttrs)
        axes = [1 - axis for axis in a.axes]
        return b.expand_to(self._replacement(node.inputs[0]), tuple(reversed(a.shape)), axes)

    def _transpose_node(self, node: Node) -> Node:
        if self._is_leaf(node):
            attrs = attrs_of(node, at.StateAttrs)
            return Node(node.op, (), replace(attrs, type=transpose_type(attrs.type)), node.name, node.line)
        if node.op == "matmul":
            (x, flip_x), (y, flip_y) = (self._operand(i) for i in node.inputs)
            a = attrs_of(node, at.MatmulAttrs)
            flags = at.MatmulAttrs(not (a.transpose_b ^ flip_y), not (a.transpose_a ^ flip_x), a.accumulate)
            return node.copy((y, x), flags)
        return node.copy([self._transposed_replacement(i) for i in node.inputs], node.attrs)

    def _operand(self, node: Node) -> tuple[Node, bool]:
        """The replacement that a product reads for a node, and whether it is the node's transpose."""
        return (self.transposed[node], True) if node in self.transposed_nodes else (self._replacement(node), False)

    def _plain_node(self, node: Node) -> Node:
        if node.op == "matmul":
            (x, flip_x), (y, flip_y) = (self._operand(i) for i in node.inputs)
            a = attrs_of(node, at.MatmulAttrs)
            flags = at.MatmulAttrs(a.transpose_a ^ flip_x, a.transpose_b ^ flip_y, a.accumulate)
            return node.copy((x, y), flags)
        if node.op in REDUCTIONS and (node.inputs[0] in self.transposed_nodes or self._is_full_reduction(node)):
            return self._transpose_reduction(node)
        if node.op == "permute" and node.inputs[0] in self.transposed_nodes:
            return (
                self.transposed[node.inputs[0]]
                if attrs_of(node, at.PermuteAttrs).order == SWAPPED
                else self._replacement(node.inputs[0])
            )
        return node.with_inputs([self._replacement(i) for i in node.inputs])

    def _is_full_reduction(self, node: Node) -> bool:
        """Is the node the second of two reductions that reduce both axes of a matrix?"""
        (x,) = node.inputs
        return x.type.rank == 1 and x.op == node.op and x.inputs[0] in self.transposed_nodes

    def _transpose_reduction(self, node: Node) -> Node:
        """Reduce along the other axis of the transpose; over both axes, in the axis order that kernels support."""
        (x,) = node.inputs
        if x in self.transposed_nodes:
            (axis,) = _axes(node)
            return _sum_like(node, self.transposed[x], 1 - axis)
        return _sum_like(node, _sum_like(x, self.transposed[x.inputs[0]], *_axes(x)), 0)


def _axes(node: Node) -> tuple[int, ...]:
    return node.attrs.axes  # type: ignore[attr-defined, no-any-return]


def _sum_like(like: Node, x: Node, axis: int) -> Node:
    return Node(like.op, (x,), replace(like.attrs, axes=(axis,)), like.name, like.line)  # type: ignore[call-arg]
