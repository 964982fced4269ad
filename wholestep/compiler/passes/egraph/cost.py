"""What an e-node costs on a target, at capacity: arithmetic, and bytes where a value goes through memory.

The prices are the target's table, measured once with our own kernels (`python -m benchmarks.calibrate`) and shipped
with its backend: the same graph gives the same plan on every machine.

The planner decides which ops share a kernel; here its habits are only modelled.  Arithmetic on elements is paid where
it is done.  A pointwise value with one reader stays in a register; with more it is written once and read again.
Movement is a way of reading.  Products, sums and lookups write their result.  Scalars of the prologue cost next to
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.attrs import InputAttrs, MatmulAttrs
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.type_rules.convolution import window_products
from wholestep.compiler.ir.types import TensorType, evaluate
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.encode import FULL, OPAQUE, Tables
from wholestep.compiler.passes.egraph.rebuild import make_node
from wholestep.compiler.passes.lower.decompose import decomposition_over_leaves
from wholestep.compiler.passes.simplify.cse import share_common_nodes
from wholestep.compiler.passes.simplify.fold import fold
from wholestep.compiler.target import CostTable

NAMED = 0.92  # a composite costs less than its definition: what a rule saves inside is not worth the name


@dataclass(frozen=True)
class Cost:
    """Of choosing an e-node: always, and again once the value has a second reader."""

    work: float
    stored: float


class CostModel:
    """Costs of e-nodes by the table of one target, at one capacity."""

    def __init__(self, tables: Tables, capacity: Mapping[str, int], costs: CostTable) -> None:
        self.tables, self.capacity = tables, capacity
        self.table = costs
        self._known: dict[tuple[object, ...], Cost] = {}

    def cost(self, node: ENode, egraph: EGraph) -> Cost:
        children = tuple(egraph.classes[c][0].type for c in node.children)
        key = (node.head, node.slots, node.type, children)
        if key not in self._known:
            self._known[key] = self._cost(node, children)
        return self._known[key]

    def _cost(self, node: ENode, children: tuple[int, ...]) -> Cost:
        if node.head == FULL:
            return Cost(0.0, 0.0)
        if node.head.startswith(f"{OPAQUE}_"):
            return self._opaque(node, children)
        inputs = [_placeholder(f"x{i}", self.tables.type(t)) for i, t in enumerate(children)]
        return self.node_cost(make_node(node, inputs, self.tables, ("", None)))

    def _opaque(self, node: ENode, children: tuple[int, ...]) -> Cost:
        """Several results at once (a norm's gradients) cost their definition; the rest is the same in every choice."""
        op, attrs, _ = self.tables.attributes[int(node.slots[0])]
        types = [self.tables.type(t) for t in children]
        if op not in OPS or OPS[op].family is not Family.COMPOSITE or not all(isinstance(t, TensorType) for t in types):
            return Cost(0.0, 0.0)
        return self._composite(Node(op, [_placeholder(f"x{i}", t) for i, t in enumerate(types)], attrs))

    def node_cost(self, node: Node) -> Cost:
        """The cost of one node of a graph."""
        family = OPS[node.op].family
        elements, size = self._elements(node.type), node.type.bytes(self.capacity)
        t = self.table
        if node.type.rank == 0 and family in (Family.POINTWISE, Family.RATIO, Family.COMPOSITE):
            return Cost(t.scalar, 0.0)
        if family is Family.COMPOSITE:
            return self._composite(node)
        if family in (Family.POINTWISE, Family.RATIO):
            return Cost(elements * t.weights.get(node.op, 1.0) * t.operation, 2 * size * t.byte)
        if family is Family.REDUCE:
            return Cost(t.pass_over + self._elements(node.inputs[0].type) * t.operation, 2 * size * t.byte)
        if family in (Family.CONTRACTION, Family.WINDOW):
            products = self._products(node) if family is Family.CONTRACTION else self._window_products(node)
            return Cost(t.pass_over + products * t.product_of(node.inputs[0].type.dtype) + size * t.byte, 0.0)
        if family is Family.INDEX or node.op in ("pad", "concat"):
            return Cost(t.pass_over + 2 * size * t.byte, 0.0)
        return Cost(t.view, 0.0)

    def _composite(self, node: Node) -> Cost:
        """Its definition's, all in all; a division by a number counts as the product that rules make of it."""
        leaves, results = decomposition_over_leaves(node)
        inside = share_common_nodes(fold(IRGraph(tuple(Output(str(i), r) for i, r in enumerate(results))))).nodes
        work = sum(self.node_cost(_as_product(n)).work for n in inside if n not in leaves)
        written = sum(r.type.bytes(self.capacity) for r in results)
        # A kernel of its own that was measured slower than the definition is no reason to write it out.
        own = self.table.weights.get(node.op, math.inf) * self.table.operation * self._elements(results[0].type)
        return Cost(min(own, NAMED * work), 2 * written * self.table.byte)

    def _products(self, node: Node) -> int:
        a = b.attrs_of(node, MatmulAttrs)
        inner = node.inputs[0].type.shape[-2 if a.transpose_a else -1]
        return self._elements(node.type) * evaluate(inner, self.capacity)

    def _window_products(self, node: Node) -> int:
        types = tuple(i.type for i in node.inputs)
        return evaluate(window_products(node.op, types, node.type, getattr(node.attrs, "last", True)), self.capacity)

    def _elements(self, type: TensorType) -> int:
        return evaluate(type.elements, self.capacity)


def _as_product(node: Node) -> Node:
    by_number = node.op == "div" and b.constant_value(node.inputs[1]) is not None
    return Node("mul", node.inputs, node.attrs) if by_number else node


def _placeholder(name: str, type: object) -> Node:
    assert isinstance(type, TensorType), type
    return Node("input", (), InputAttrs(name, type))
