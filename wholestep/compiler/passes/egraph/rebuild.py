"""The chosen e-nodes as a graph again: names and source lines kept, everything else as it was."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.attrs import Attrs
from wholestep.compiler.ir.graph import IRGraph, Node, Output, SourceLine, Update
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.encode import CUT, FULL, OPAQUE, Encoded, Tables, op_of
from wholestep.compiler.passes.egraph.terms import TERMS

Origin = tuple[str, SourceLine | None]


def rebuild(graph: IRGraph, encoded: Encoded, egraph: EGraph, chosen: Sequence[ENode]) -> IRGraph:
    """The graph of the chosen e-nodes; the same object where the choice is the program's own.

    A class that stands for a node of the program carries its name and line; one that only rules made carries those of
    its first reader.
    """
    own = egraph.original_choice()
    order = live_classes(egraph.roots, chosen)
    apart = len({egraph.class_of[egraph.originals[t]] for t in encoded.term_of.values()}) == len(encoded.term_of)
    if apart and all(chosen[c] == own[c] for c in order):
        return graph
    origins = _origins(encoded, egraph, chosen, order)
    leaves = _original_leaves(encoded, egraph)
    new: dict[int, Node] = {}
    for c in order:
        inputs = [new[child] for child in chosen[c].children]
        new[c] = leaves.get(chosen[c]) or make_node(chosen[c], inputs, encoded.tables, origins[c])
    ends = iter(new[r] for r in egraph.roots)
    return IRGraph(
        tuple(Output(o.name, next(ends)) for o in graph.outputs),
        tuple(Update(u.name, next(ends)) for u in graph.updates),
        graph.inputs,
    )


def make_node(choice: ENode, inputs: Sequence[Node], tables: Tables, origin: Origin) -> Node:
    """The node that an e-node stands for."""
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
    assert node.result == type, f"{op} gives {node.result}; its term says {type}"
    return node


def _full(value: float, type: TensorType, origin: Origin) -> Node:
    with np.errstate(over="ignore", under="ignore"):
        held = np.asarray(value, type.dtype.numpy)
    assert _same_range(value, float(held)), f"a rule made the number {value!r}, which {type.dtype} does not hold"
    constant = Node("constant", (), at.ConstantAttrs(at.Array(held)), *origin)
    return Node("expand", (constant,), at.ExpandAttrs(type.shape, ()), *origin) if type.rank else constant


def _same_range(value: float, held: float) -> bool:
    return math.isfinite(value) == math.isfinite(held) and (value == 0) == (held == 0)


def read_attrs(choice: ENode, tables: Tables) -> Attrs:
    op, type = op_of(choice.head), tables.type(choice.type)
    assert isinstance(type, TensorType), choice
    if op in TERMS:
        return TERMS[op].read(tuple(int(s) for s in choice.slots), type)
    return tables.attributes[int(choice.slots[0])][1]


def live_classes(roots: Sequence[int], chosen: Sequence[ENode]) -> list[int]:
    """The classes that the roots need, each after its children."""
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
        at = egraph.class_of[egraph.originals[term]]
        if at not in origins or not origins[at][0]:
            origins[at] = node.name, node.line
    for c in reversed(order):  # readers first
        for child in chosen[c].children:
            origins.setdefault(child, origins.get(c, ("", None)))
    return origins


def _original_leaves(encoded: Encoded, egraph: EGraph) -> dict[ENode, Node]:
    """Leaves keep their identity: declared inputs are compared by it."""
    found: dict[ENode, Node] = {}
    for node, term in encoded.term_of.items():
        if not node.inputs and egraph.originals[term].head == f"{OPAQUE}_0":
            found.setdefault(egraph.originals[term], node)
    return found
