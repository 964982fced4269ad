"""Encoding of a graph as e-graph terms: one constructor per node, with its attributes and type as numbers.

Terms are in topological order and hash-consed: equal nodes are one term.  Ops that no rule matches become opaque.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.attrs import NONE, Attrs
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, toposort
from wholestep.compiler.ir.ops import OPS, Family, Trait, ops_with
from wholestep.compiler.ir.types import DTYPES, TensorType, Type, boolean
from wholestep.compiler.passes.egraph.egraph import ENode, Equality, Slot
from wholestep.compiler.passes.egraph.terms import RANK, TERMS
from wholestep.compiler.passes.lower.decompose import decomposition_of

FULL = "full"  # a tensor filled with one value: a rank-0 constant, broadcast or not
OPAQUE = "opaque"  # ops that no rule matches: leaves, control, integers; the slot is a number for op and attributes
CUT = "cut"  # barrier between a tensor that is differentiated with respect to and its readers: no rule crosses it

DTYPE_CODES = {name: code for code, name in enumerate(DTYPES)}
TUPLE_CODE = 15  # the dtype code of a tuple of results
LARGEST_EXACT = 2.0**53  # integers up to this are exact in float64, in which terms hold constants


def type_code(type: Type) -> int:
    """The lowest eight bits of a type's id: dtype and rank."""
    if not isinstance(type, TensorType):
        return TUPLE_CODE
    return min(type.rank, 15) << 4 | DTYPE_CODES[type.dtype.name]


@dataclass
class Tables:
    """The types and attributes that the numbers in terms refer to."""

    types: list[Type] = field(default_factory=list)
    attributes: list[tuple[str, Attrs, str]] = field(default_factory=list)
    _type_ids: dict[Type, int] = field(default_factory=dict)
    _attribute_ids: dict[tuple[str, Attrs, str], int] = field(default_factory=dict)

    def type_id(self, type: Type) -> int:
        if type not in self._type_ids:
            self._type_ids[type] = len(self.types) * 256 + type_code(type)
            self.types.append(type)
        return self._type_ids[type]

    def type(self, number: int) -> Type:
        return self.types[number // 256]

    def attribute_id(self, op: str, attrs: Attrs) -> int:
        # repr distinguishes 0.0 from -0.0, which == does not.
        key = op, attrs, repr(getattr(attrs, "value", ""))
        if key not in self._attribute_ids:
            self._attribute_ids[key] = len(self.attributes)
            self.attributes.append(key)
        return self._attribute_ids[key]


@dataclass(frozen=True)
class Encoded:
    """A graph as terms, followed by the definitions of its composites.  `term_of`: the term of each node."""

    terms: tuple[ENode, ...]
    program: int  # the number of terms of the program itself, which come first
    definitions: tuple[Equality, ...]
    roots: tuple[int, ...]
    term_of: dict[Node, int]
    tables: Tables


def encode(graph: IRGraph, defined: frozenset[str] = frozenset(), cuts: Mapping[Node, int] | None = None) -> Encoded:
    """The terms of every node that the outputs and updates need; equal nodes are one term.

    The definitions of composites in `defined` are added as terms, since their exact types are known here.
    `cuts`: computed tensors that are differentiated with respect to, numbered; None reads them from the graph.
    """
    encoder = _Encoder(cut_nodes(graph) if cuts is None else cuts)
    ends = graph.roots
    for node in _reachable_from(graph.nodes, ends):
        encoder.add(node)
    term_of, program = dict(encoder.term_of), len(encoder.numbers)
    definitions = (*encoder.broadcast_comparisons(graph.nodes), *encoder.define(graph.nodes, defined))
    roots = tuple(term_of[n] for n in ends)
    return Encoded(tuple(encoder.numbers), program, definitions, roots, term_of, encoder.tables)


@dataclass
class _Encoder:
    cuts: Mapping[Node, int]
    tables: Tables = field(default_factory=Tables)
    numbers: dict[ENode, int] = field(default_factory=dict)
    term_of: dict[Node, int] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        children = [] if full_value(node) is not None else [self.term_of[i] for i in node.inputs]
        term = encode_node(node, children, self.tables)
        number = self._number(term)
        if node in self.cuts:
            slot = self.tables.attribute_id(f"{CUT} {self.cuts[node]}", NONE)
            number = self._number(ENode(f"{OPAQUE}_1", (slot,), term.type, (number,)))
        self.term_of[node] = number

    def _number(self, term: ENode) -> int:
        return self.numbers.setdefault(term, len(self.numbers))

    def broadcast_comparisons(self, nodes: Sequence[Node]) -> Iterator[Equality]:
        """A broadcast comparison of iotas equals the comparison of broadcast iotas: masks then match definitions."""
        for node in nodes:
            if node in self.term_of and node.op == "expand" and _compares_indices(node.inputs[0]):
                (inner,) = node.inputs
                axes = attrs_of(node, at.ExpandAttrs).axes
                indices = [
                    b.iota(node.type.shape, axes[attrs_of(i, at.IotaAttrs).axis], i.type.dtype) for i in inner.inputs
                ]
                broadcast = b.make(inner.op, indices)
                for n in (*indices, broadcast):
                    self.add(n)
                yield Equality("spread-comparison", self.term_of[node], self.term_of[broadcast])

    def define(self, nodes: Sequence[Node], defined: frozenset[str]) -> Iterator[Equality]:
        """The definitions of composites, transitively; one equality per result."""
        pending = [
            n
            for n in nodes
            if n in self.term_of and _composite_of(n).op in defined and n not in self.cuts and not _rounds(n)
        ]
        parts: dict[int, tuple[Node, ...]] = {}
        for node in pending:  # the loop appends to the list
            composite = _composite_of(node)
            if self.term_of[composite] not in parts:
                results = parts[self.term_of[composite]] = decomposition_of(composite)
                new = [n for n in _reachable_from(toposort(results), results) if n not in self.term_of]
                for n in new:
                    self.add(n)
                pending += [n for n in new if _composite_of(n).op in defined]
            index = attrs_of(node, at.ItemAttrs).index if node is not composite else 0
            if isinstance(node.result, TensorType):
                result = parts[self.term_of[composite]][index]
                yield Equality(f"define-{composite.op}", self.term_of[node], self.term_of[result])


def _rounds(node: Node) -> bool:
    """Does the node's composite have half-precision operands or results?"""
    return any(t.dtype.is_half for t in _types(_composite_of(node)))


def _compares_indices(node: Node) -> bool:
    return node.type.dtype == boolean and len(node.inputs) == 2 and all(i.op == "iota" for i in node.inputs)


def _composite_of(node: Node) -> Node:
    """The node itself, or the node with several results of which it is an item."""
    return node.inputs[0] if node.op == "item" else node


def _reachable_from(nodes: Sequence[Node], ends: Sequence[Node]) -> list[Node]:
    """The nodes that the ends depend on; the operand of a broadcast constant is part of its term."""
    needed = set(ends)
    for node in reversed(nodes):
        if node in needed and full_value(node) is None:
            needed |= set(node.inputs)
    return [n for n in nodes if n in needed]


def cut_nodes(graph: IRGraph) -> dict[Node, int]:
    """Computed tensors that are differentiated with respect to, numbered."""
    targets = [p for n in graph.nodes if n.op == "gradient" for p in n.inputs[1:] if p.inputs]
    return {node: i for i, node in enumerate(dict.fromkeys(targets))}


def encode_node(node: Node, children: Sequence[int], tables: Tables) -> ENode:
    """The term of a node over the terms (or classes) of its inputs."""
    type_id = tables.type_id(node.result)
    value = full_value(node)
    if value is not None:
        return ENode(FULL, (value,), type_id, ())
    if is_opaque(node):
        return ENode(f"{OPAQUE}_{len(children)}", (tables.attribute_id(node.op, node.attrs),), type_id, tuple(children))
    return ENode(head_of(node.op, len(children)), slots_of(node.op, node.attrs, tables), type_id, tuple(children))


def slots_of(op: str, attrs: Attrs, tables: Tables) -> tuple[Slot, ...]:
    if op in TERMS:
        return TERMS[op].write(attrs)
    return (tables.attribute_id(op, attrs),)


def head_of(op: str, arity: int) -> str:
    """The constructor of an op; variadic ops have one per number of inputs, since a constructor has a fixed arity."""
    return op if OPS[op].arity is not None else f"{op}_{arity}"


def op_of(head: str) -> str:
    name, _, arity = head.rpartition("_")
    return name if arity.isdecimal() and name in OPS else head


def full_value(node: Node) -> float | None:
    """The value of a scalar constant, broadcast or not; None if float64 does not represent it exactly."""
    if node.op == "expand" and node.inputs[0].type.rank == 0:
        (node,) = node.inputs
    if node.op != "constant" or node.type.rank > 0:
        return None
    number = attrs_of(node, at.ConstantAttrs).array.value.item()
    value = float(number)
    if math.isnan(value) or (isinstance(number, int) and abs(number) > LARGEST_EXACT):
        return None
    return None if value == 0 and math.copysign(1, value) < 0 else value  # equal numbers are one term, and -0 equals 0


def is_opaque(node: Node) -> bool:
    """Rules cover arithmetic in float32 or wider, views, and comparisons; everything else is opaque."""
    family = OPS[node.op].family
    if (family is Family.LEAF and node.op != "iota") or family is Family.CONTROL:
        return True
    if getattr(node.attrs, "per_worker", False):
        return True  # statistics of one rank's rows: laws about the full batch do not hold
    if not isinstance(node.result, TensorType) or max(t.rank for t in _types(node)) > RANK:
        return True
    if family is not Family.MOVEMENT and any(t.dtype.is_half for t in _types(node)):
        return True  # half arithmetic rounds at each op, and so does a cast: laws of real arithmetic do not hold
    arithmetic = family in (Family.POINTWISE, Family.REDUCE, Family.RATIO)
    return arithmetic and not node.result.dtype.is_float and node.op not in _EXACT_ON_INTEGERS


_EXACT_ON_INTEGERS = ops_with(Trait.EXACT)


def _types(node: Node) -> list[TensorType]:
    return [t for t in (node.result, *(i.result for i in node.inputs)) if isinstance(t, TensorType)]
