"""What an e-node costs on a target, at capacity: arithmetic, and bytes where a value goes through memory.

The planner decides which ops share a kernel; here its habits are only modelled.  Arithmetic on elements is paid where
it is done.  A pointwise value with one reader stays in a register; with more it is written once and read again.
Movement is a way of reading.  Products, sums and lookups write their result.  Scalars of the prologue cost next to
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.attrs import InputAttrs, MatmulAttrs
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.types import TensorType, evaluate
from wholestep.compiler.ir.windows import window_products
from wholestep.compiler.passes.decompose import decomposition_of
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.encode import FULL, OPAQUE, Tables, op_of
from wholestep.compiler.passes.egraph.rebuild import make_node


@dataclass(frozen=True)
class CostTable:
    """Nanoseconds on one target."""

    operation: float  # an addition, per element, vectorised
    byte: float  # to or from memory
    product: float  # one multiply-add of a contraction
    pass_over: float  # starting a reduction, a contraction or a lookup
    scalar: float  # an operation of the scalar prologue
    view: float  # a movement: nothing is done, but one less is easier to read

    weights: Mapping[str, float]  # of ops dearer than an addition, in additions


_DEAR = {
    "div": 4.0, "recip": 4.0, "sqrt": 4.0, "mod": 6.0, "ratio": 4.0,
    "exp": 8.0, "exp2": 8.0, "expm1": 10.0, "log": 10.0, "log2": 10.0, "log1p": 12.0,
    "sin": 12.0, "cos": 12.0, "erf": 14.0, "sigmoid": 11.0, "tanh": 13.0, "pow": 24.0,
    "cast": 0.0,
}  # fmt: skip

TARGETS: dict[str, CostTable] = {
    "cpu": CostTable(operation=0.06, byte=0.05, product=0.02, pass_over=200.0, scalar=1.0, view=0.001, weights=_DEAR),
}

NAMED = 0.99  # a composite costs a little less than its definition, so that its name is kept


@dataclass(frozen=True)
class Cost:
    """Of choosing an e-node: always, and again once the value has a second reader."""

    work: float
    stored: float


class CostModel:
    """Costs of e-nodes for one target and capacity."""

    def __init__(self, tables: Tables, capacity: Mapping[str, int], target: str = "cpu") -> None:
        self.tables, self.capacity = tables, capacity
        self.table = TARGETS.get(target, TARGETS["cpu"])
        self._known: dict[tuple[object, ...], Cost] = {}

    def cost(self, node: ENode, egraph: EGraph) -> Cost:
        children = tuple(egraph.classes[c][0].type for c in node.children)
        key = (node.head, node.slots, node.type, children)
        if key not in self._known:
            self._known[key] = self._cost(node, children)
        return self._known[key]

    def _cost(self, node: ENode, children: tuple[int, ...]) -> Cost:
        if node.head == FULL or node.head.startswith(f"{OPAQUE}_"):
            return Cost(0.0, 0.0)  # the same in every choice, or free
        inputs = [_placeholder(f"x{i}", self.tables.type(t)) for i, t in enumerate(children)]
        return self.node_cost(make_node(node, inputs, self.tables, ("", None)))

    def node_cost(self, node: Node) -> Cost:
        """The cost of one node of a graph."""
        family = OPS[node.op].family
        elements, size = self._elements(node.type), node.type.bytes(self.capacity)
        t = self.table
        if node.type.rank == 0 and family in (Family.POINTWISE, Family.RATIO, Family.COMPOSITE):
            return Cost(t.scalar, 0.0)
        if family is Family.COMPOSITE and node.op not in t.weights:
            return self._composite(node)
        if family in (Family.POINTWISE, Family.RATIO, Family.COMPOSITE):
            return Cost(elements * t.weights.get(node.op, 1.0) * t.operation, 2 * size * t.byte)
        if family is Family.REDUCE:
            return Cost(t.pass_over + self._elements(node.inputs[0].type) * t.operation, 2 * size * t.byte)
        if family is Family.CONTRACTION:
            return Cost(t.pass_over + self._products(node) * t.product + size * t.byte, 0.0)
        if family is Family.WINDOW:
            return Cost(t.pass_over + self._window_products(node) * t.product + size * t.byte, 0.0)
        if family is Family.INDEX or node.op in ("pad", "concat"):
            return Cost(t.pass_over + 2 * size * t.byte, 0.0)
        return Cost(t.view, 0.0)

    def _composite(self, node: Node) -> Cost:
        """Its definition's, all in all."""
        leaves = set(node.inputs)
        inside = [n for n in toposort(decomposition_of(node)) if n not in leaves and n.op != "input"]
        work = sum(self.node_cost(n).work for n in inside)
        return Cost(NAMED * work, 2 * node.type.bytes(self.capacity) * self.table.byte)

    def _products(self, node: Node) -> int:
        a = b.attrs_of(node, MatmulAttrs)
        inner = node.inputs[0].type.shape[-2 if a.transpose_a else -1]
        return self._elements(node.type) * evaluate(inner, self.capacity)

    def _window_products(self, node: Node) -> int:
        types = tuple(i.type for i in node.inputs)
        return evaluate(window_products(node.op, types, node.type, getattr(node.attrs, "last", True)), self.capacity)

    def _elements(self, type: TensorType) -> int:
        return evaluate(type.elements, self.capacity)


def _placeholder(name: str, type: object) -> Node:
    assert isinstance(type, TensorType), type
    return Node("input", (), InputAttrs(name, type))


def op_name(node: ENode) -> str:
    """The op of an e-node, for reports."""
    return op_of(node.head)
