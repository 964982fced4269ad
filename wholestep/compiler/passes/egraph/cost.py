"""Cost model of extraction: the nanoseconds of an e-node on a target, for arithmetic and memory traffic.

The prices are the target's cost table, measured once with our own kernels (`python -m benchmarks.calibrate`) and
shipped with its backend: the same graph gives the same plan on every machine.

Fusion is decided later, by the planner; this model only approximates it.  Arithmetic is paid per element.  An
elementwise value with one reader stays in a register; with several it is stored once and loaded again.  Views are
free.  Products, reductions and lookups store their result.  Scalars of the prologue cost next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.attrs import InputAttrs, MatmulAttrs
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.type_rules.convolution import multiply_adds
from wholestep.compiler.ir.types import TensorType, evaluate
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.encode import FULL, OPAQUE, Tables
from wholestep.compiler.passes.egraph.rebuild import make_node
from wholestep.compiler.passes.lower.decompose import decomposition_over_leaves
from wholestep.compiler.passes.simplify.cse import share_common_nodes
from wholestep.compiler.passes.simplify.fold import fold
from wholestep.compiler.target import CostTable

NAMED = 0.92  # cost of a composite relative to its definition: small savings inside must not break up the composite


@dataclass(frozen=True)
class Cost:
    """Nanoseconds of choosing an e-node: `work` always, `stored` in addition if the value has a second reader."""

    work: float
    stored: float


class CostModel:
    """Costs of e-nodes by the table of one target, at one capacity."""

    def __init__(self, tables: Tables, capacity: Mapping[str, int], costs: CostTable) -> None:
        self.tables, self.capacity = tables, capacity
        self.table = costs
        self._cache: dict[tuple[object, ...], Cost] = {}

    def cost(self, node: ENode, egraph: EGraph) -> Cost:
        children = tuple(egraph.classes[c][0].type for c in node.children)
        key = (node.head, node.slots, node.type, children)
        if key not in self._cache:
            self._cache[key] = self._cost(node, children)
        return self._cache[key]

    def _cost(self, node: ENode, children: tuple[int, ...]) -> Cost:
        if node.head == FULL:
            return Cost(0.0, 0.0)
        if node.head.startswith(f"{OPAQUE}_"):
            return self._opaque(node, children)
        inputs = [_placeholder(f"x{i}", self.tables.type(t)) for i, t in enumerate(children)]
        return self.node_cost(make_node(node, inputs, self.tables, ("", None)))

    def _opaque(self, node: ENode, children: tuple[int, ...]) -> Cost:
        """A composite with several results (a norm's gradients) costs its definition; other opaque ops are in every
        choice, so their cost does not matter."""
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
        """The cost of its decomposition; a division by a constant counts as the product that rules replace it by."""
        leaves, results = decomposition_over_leaves(node)
        inside = share_common_nodes(fold(IRGraph(tuple(Output(str(i), r) for i, r in enumerate(results))))).nodes
        work = sum(self.node_cost(_as_product(n)).work for n in inside if n not in leaves)
        result_bytes = sum(r.type.bytes(self.capacity) for r in results)
        # A composite whose kernel was measured slower than its decomposition is still not decomposed.
        kernel = self.table.weights.get(node.op, math.inf) * self.table.operation * self._elements(results[0].type)
        return Cost(min(kernel, NAMED * work), 2 * result_bytes * self.table.byte)

    def _products(self, node: Node) -> int:
        a = b.attrs_of(node, MatmulAttrs)
        inner = node.inputs[0].type.shape[-2 if a.transpose_a else -1]
        return self._elements(node.type) * evaluate(inner, self.capacity)

    def _window_products(self, node: Node) -> int:
        types = tuple(i.type for i in node.inputs)
        return evaluate(multiply_adds(node.op, types, node.type, getattr(node.attrs, "last", True)), self.capacity)

    def _elements(self, type: TensorType) -> int:
        return evaluate(type.elements, self.capacity)


def _as_product(node: Node) -> Node:
    by_number = node.op == "div" and b.constant_value(node.inputs[1]) is not None
    return Node("mul", node.inputs, node.attrs) if by_number else node


def _placeholder(name: str, type: object) -> Node:
    assert isinstance(type, TensorType), type
    return Node("input", (), InputAttrs(name, type))
