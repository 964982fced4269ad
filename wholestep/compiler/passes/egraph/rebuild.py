"""Reconstruction of a graph from the chosen e-nodes, with the names and source lines of the original nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.attrs import Attrs
from wholestep.compiler.ir.graph import IRGraph, Node, SourceLine
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.encode import CUT, FULL, OPAQUE, Encoded, Tables, op_of
from wholestep.compiler.passes.egraph.terms import TERMS

Origin = tuple[str, SourceLine | None]


def rebuild(graph: IRGraph, encoded: Encoded, egraph: EGraph, chosen: Sequence[ENode]) -> IRGraph:
    """The graph of the chosen e-nodes; the same object if the choice is the original program.

    The node of an e-class has the name and line of the program's node in it; if rules created the e-class, the name and
    line of its first reader.
    """
    original = egraph.original_choice()
    order = live_classes(egraph.roots, chosen)
    no_merged_nodes = len({egraph.class_of[egraph.originals[t]] for t in encoded.term_of.values()}) == len(
        encoded.term_of
    )
    if no_merged_nodes and all(chosen[c] == original[c] for c in order):
        return graph
    origins = _origins(encoded, egraph, chosen, order)
    leaves = _original_leaves(encoded, egraph)
    new: dict[int, Node] = {}
    for c in order:
        inputs = [new[child] for child in chosen[c].children]
        new[c] = leaves.get(chosen[c]) or make_node(chosen[c], inputs, encoded.tables, origins[c])
    return graph.with_roots(new[r] for r in egraph.roots)


def make_node(choice: ENode, inputs: Sequence[Node], tables: Tables, origin: Origin) -> Node:
    """The graph node of an e-node."""
    type = tables.type(choice.type)
    if choice.head == FULL:
        assert isinstance(type, TensorType)
        return _full(choice.slots[0], type, origin)
    if choice.head.startswith(f"{OPAQUE}_"):
        op, attrs, _ = tables.attributes[int(choice.slots[0])]
        if op.startswith(CUT):
            return inputs[0]
    else:
        op, attrs = op_of(choice.head), read_attrs(choice, tables)
    node = Node(op, inputs, attrs, *origin)
    assert node.result == type, f"{op} has the type {node.result}; its term has {type}"
    return node


def _full(value: float, type: TensorType, origin: Origin) -> Node:
    with np.errstate(over="ignore", under="ignore"):
        array = np.asarray(value, type.dtype.numpy)
    assert _same_range(value, float(array)), (
        f"a rule created the constant {value!r}, which {type.dtype} cannot represent"
    )
    constant = Node("constant", (), at.ConstantAttrs(at.Array(array)), *origin)
    return Node("expand", (constant,), at.ExpandAttrs(type.shape, ()), *origin) if type.rank else constant


def _same_range(value: float, rounded: float) -> bool:
    return math.isfinite(value) == math.isfinite(rounded) and (value == 0) == (rounded == 0)


def read_attrs(choice: ENode, tables: Tables) -> Attrs:
    op, type = op_of(choice.head), tables.type(choice.type)
    assert isinstance(type, TensorType), choice
    if op in TERMS:
        return TERMS[op].read(tuple(int(s) for s in choice.slots), type)
    return tables.attributes[int(choice.slots[0])][1]


def live_classes(roots: Sequence[int], chosen: Sequence[ENode]) -> list[int]:
    """The e-classes that the roots depend on, in post-order: each after its children."""
    done: dict[int, None] = {}
    for root in roots:
        stack = [(root, 0)]
        while stack:
            c, at = stack.pop()
            children = chosen[c].children
            if c in done:
                continue
            if at < len(children):
                stack.append((c, at + 1))
                stack.append((children[at], 0))
            else:
                done[c] = None
    return list(done)


def _origins(encoded: Encoded, egraph: EGraph, chosen: Sequence[ENode], order: Sequence[int]) -> Mapping[int, Origin]:
    origins: dict[int, Origin] = {}
    for node, term in encoded.term_of.items():
        eclass = egraph.class_of[egraph.originals[term]]
        if eclass not in origins or not origins[eclass][0]:
            origins[eclass] = node.name, node.line
    for c in reversed(order):  # readers first
        for child in chosen[c].children:
            origins.setdefault(child, origins.get(c, ("", None)))
    return origins


def _original_leaves(encoded: Encoded, egraph: EGraph) -> dict[ENode, Node]:
    """The original leaf nodes, which are reused: declared inputs are compared by identity."""
    leaves: dict[ENode, Node] = {}
    for node, term in encoded.term_of.items():
        if not node.inputs and egraph.originals[term].head == f"{OPAQUE}_0":
            leaves.setdefault(egraph.originals[term], node)
    return leaves
