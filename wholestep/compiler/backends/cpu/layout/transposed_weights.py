"""States whose transposes are stored in their place: a step computes their updates transposed, and moves nothing.

A weight that products read as `x @ w.T` is stored as they read it
([021](../../../../../docs/decisions/021-weights-by-columns.md)).
Whatever is computed element by element from it or into it is computed of transposes too; the product that makes its
gradient has its operands exchanged, (aᵀ b)ᵀ = bᵀ a; a product that reads it has one flag turned.  Each element is the
same sum in the same order, so no bit of these changes.
"""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.backends.cpu.layout.stored_layout import is_turned
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.types import transpose_type
from wholestep.compiler.plan.model.kernel import Draft, Space

REDUCTIONS = ("sum", "max")
OTHER = (1, 0)  # the order of a matrix's axes in its transpose


def turn_states(graph: IRGraph) -> tuple[IRGraph, frozenset[str]]:
    """The graph over states as they are stored, and the names of those that are turned."""
    leaves = [n for n in graph.nodes if isinstance(n.attrs, at.StateAttrs) and _is_turned(n.attrs)]
    if not leaves:
        return graph, frozenset()
    names = frozenset(attrs_of(n, at.StateAttrs).name for n in leaves)
    return _Turner(graph, names).result(), names


def _is_turned(state: at.StateAttrs) -> bool:
    return not state.parts and is_turned(state.type, state.by_columns)  # a part is cut as the whole is stored


def mark_turned(draft: Draft, names: frozenset[str]) -> Draft:
    """The draft that says of its states which are."""
    found = [replace(x, turned=x.turned or (x.space is Space.STATE and x.name in names)) for x in draft.buffers]
    return replace(draft, buffers=tuple(found))


def _is_pointwise(node: Node) -> bool:
    return node.is_elementwise and node.type.rank == 2 and bool(node.inputs) and not node.host


class _Turner:
    """`plain` and `turned` hold what stands for a node and for its transpose in the new graph."""

    def __init__(self, graph: IRGraph, names: frozenset[str]) -> None:
        self.graph, self.names = graph, names
        self.plain: dict[Node, Node] = {}
        self.turned: dict[Node, Node] = {}
        self.sideways = self._sideways()

    def _is_leaf(self, node: Node) -> bool:
        return isinstance(node.attrs, at.StateAttrs) and node.attrs.name in self.names

    def _sideways(self) -> set[Node]:
        """What is computed transposed: the states, their new values, and what both are computed from or to."""
        followers = self.graph.consumers()
        found: set[Node] = set()
        stack = [n for n in self.graph.nodes if self._is_leaf(n)]
        stack += [u.node for u in self.graph.updates if u.name in self.names]
        while stack:
            node = stack.pop()
            product = node.op == "matmul" and node.type.rank == 2
            if node in found or not (self._is_leaf(node) or product or _is_pointwise(node)):
                continue
            found.add(node)
            stack += [n for n in followers[node] if _is_pointwise(n)]
            if not product:
                stack += node.inputs
        return found

    def result(self) -> IRGraph:
        for node in self.graph.nodes:
            if node in self.sideways:
                self.turned[node] = self._transpose_node(node)
            else:
                self.plain[node] = self._plain_node(node)
        updates = [
            Update(u.name, (self._of_turned if u.name in self.names else self._of)(u.node)) for u in self.graph.updates
        ]
        outputs = tuple(Output(o.name, self._of(o.node)) for o in self.graph.outputs)
        return IRGraph(outputs, tuple(updates), tuple(self._of(i) for i in self.graph.inputs))

    def _of(self, node: Node) -> Node:
        if node not in self.plain:
            self.plain[node] = b.permute(self.turned[node], OTHER)
        return self.plain[node]

    def _of_turned(self, node: Node) -> Node:
        if node not in self.turned:
            self.turned[node] = self._transpose_expand(node) or b.permute(self._of(node), OTHER)
        return self.turned[node]

    def _transpose_expand(self, node: Node) -> Node | None:
        """One number, or a vector, in all places of the transpose."""
        if node.op != "expand" or node.inputs[0].type.rank > 1:
            return None
        a = attrs_of(node, at.ExpandAttrs)
        kept = [1 - axis for axis in a.axes]
        return b.expand_to(self._of(node.inputs[0]), tuple(reversed(a.shape)), kept)

    def _transpose_node(self, node: Node) -> Node:
        if self._is_leaf(node):
            attrs = attrs_of(node, at.StateAttrs)
            return Node(node.op, (), replace(attrs, type=transpose_type(attrs.type)), node.name, node.line)
        if node.op == "matmul":
            (x, flip_x), (y, flip_y) = (self._operand(i) for i in node.inputs)
            a = attrs_of(node, at.MatmulAttrs)
            flags = at.MatmulAttrs(not (a.transpose_b ^ flip_y), not (a.transpose_a ^ flip_x), a.accumulate)
            return type(node)(node.op, (y, x), flags, node.name, node.line)
        return type(node)(node.op, [self._of_turned(i) for i in node.inputs], node.attrs, node.name, node.line)

    def _operand(self, node: Node) -> tuple[Node, bool]:
        """What a product reads in a node's place, and whether that is its transpose."""
        return (self.turned[node], True) if node in self.sideways else (self._of(node), False)

    def _plain_node(self, node: Node) -> Node:
        if node.op == "matmul":
            (x, flip_x), (y, flip_y) = (self._operand(i) for i in node.inputs)
            a = attrs_of(node, at.MatmulAttrs)
            flags = at.MatmulAttrs(a.transpose_a ^ flip_x, a.transpose_b ^ flip_y, a.accumulate)
            return type(node)(node.op, (x, y), flags, node.name, node.line)
        if node.op in REDUCTIONS and (node.inputs[0] in self.sideways or self._is_of_all(node)):
            return self._reduction(node)
        if node.op == "permute" and node.inputs[0] in self.sideways:
            return (
                self.turned[node.inputs[0]]
                if attrs_of(node, at.PermuteAttrs).order == OTHER
                else self._of(node.inputs[0])
            )
        return node.with_inputs([self._of(i) for i in node.inputs])

    def _is_of_all(self, node: Node) -> bool:
        """Is it the second half of a reduction over both axes?"""
        (x,) = node.inputs
        return x.type.rank == 1 and x.op == node.op and x.inputs[0] in self.sideways

    def _reduction(self, node: Node) -> Node:
        """Along the other axis of the transpose; over both axes, along the one first that kernels want first."""
        (x,) = node.inputs
        if x in self.sideways:
            (axis,) = _axes(node)
            return _sum_like(node, self.turned[x], 1 - axis)
        return _sum_like(node, _sum_like(x, self.turned[x.inputs[0]], *_axes(x)), 0)


def _axes(node: Node) -> tuple[int, ...]:
    return node.attrs.axes  # type: ignore[attr-defined, no-any-return]


def _sum_like(like: Node, x: Node, axis: int) -> Node:
    return Node(like.op, (x,), replace(like.attrs, axes=(axis,)), like.name, like.line)  # type: ignore[call-arg]
