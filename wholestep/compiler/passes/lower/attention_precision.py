"""Attention as the routines of a GPU have it: half operands give half results, and its gradient is given its result.

Both are needed by targets with such routines.  What is rounded is what a half operand's gradient is anyway, in any
framework: the operand is a half number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update, rewrite
from wholestep.compiler.ir.type_rules.layers import lse_position

ROUTINES = frozenset({"attention", "attention_lse", "attention_grad"})
MOVES = frozenset({"permute", "reshape", "slice"})


def with_results(graph: IRGraph) -> IRGraph:
    """Both of it."""
    return give_results(round_results(graph))


def round_results(graph: IRGraph) -> IRGraph:
    """Routines without a mask round what they make of half operands; who reads it whole widens it, behind its views."""
    made: set[Node] = set()  # routines that round since now; those that did before are left alone
    early: dict[Node, Node] = {}  # operands whose cast was lifted: the same node for all routines that read one

    def rule(node: Node) -> Node:
        with b.origin(node):
            if node.op in ROUTINES and not _is_rounded(node):
                return _by_rounding(node, made, early)
            if node.op == "item" and node.inputs[0] in made:
                return b.cast(node, node.type.dtype.accumulate)
            return _behind_views(node)

    return rewrite(graph, rule)


def _behind_views(node: Node) -> Node:
    """What is made of a widened result by moving elements, widened afterwards; one that is rounded again as it was."""
    if node.op in MOVES and _is_widened(node.inputs[0]):
        return b.cast(node.with_inputs(node.inputs[0].inputs), node.type.dtype)
    if node.op == "concat" and all(_is_widened(i) for i in node.inputs):
        return b.cast(node.with_inputs([i.inputs[0] for i in node.inputs]), node.type.dtype)
    if node.op == "cast" and _is_widened(node.inputs[0]):
        return b.cast(node.inputs[0].inputs[0], node.type.dtype)
    return node


def _by_rounding(node: Node, made: set[Node], early: dict[Node, Node]) -> Node:
    masked = node.inputs[3:] if node.op != "attention_grad" else node.inputs[3 : _at_lse(node)]
    if not node.inputs[0].type.dtype.is_half or masked:
        return node
    inputs = [early.setdefault(i, _cast_before_view(i)) for i in node.inputs]
    rounded = b.make(node.op, inputs, replace(attrs_of(node, at.AttentionAttrs), rounded=True))
    made.add(rounded)
    return b.cast(rounded, node.type.dtype) if node.op == "attention" else rounded


def _cast_before_view(node: Node) -> Node:
    """cast(view(x)) = view(cast(x)): whoever computes x rounds it, and the routine reads the view."""
    if node.op != "cast" or not node.type.dtype.is_half or node.inputs[0].op not in ("permute", "reshape"):
        return node
    (view,) = node.inputs
    return view.with_inputs([_cast_before_view(b.cast(view.inputs[0], node.type.dtype))])


def _at_lse(node: Node) -> int:
    return lse_position([i.type.rank for i in node.inputs])


def _is_rounded(node: Node) -> bool:
    return node.op in ROUTINES and attrs_of(node, at.AttentionAttrs).rounded


def _is_widened(node: Node) -> bool:
    """Is a node what a routine rounded, in the wider type again?"""
    return node.op == "cast" and node.inputs[0].type.dtype.is_half and _is_routines(node.inputs[0])


def _is_routines(node: Node) -> bool:
    while node.op in MOVES or node.op in ("item", "concat"):
        node = node.inputs[0]
    return _is_rounded(node)


def give_results(graph: IRGraph) -> IRGraph:
    """Every attention_grad is given the result of its attention, where that lies: behind the views made of it."""
    readers = graph.consumers()
    roots = {o.node for o in graph.outputs} | {u.node for u in graph.updates}
    made = {(n.inputs, n.attrs): n for n in graph.nodes if n.op == "attention"}
    views = {key: _views(node, readers, roots) for key, node in made.items()}
    new: dict[Node, Node] = {}

    def given(node: Node, at_lse: int) -> Node:
        """The result of the attention that a node is the gradient of."""
        chain = views.get((node.inputs[:at_lse], node.attrs))
        if chain is None:
            return b.make("attention", [new[i] for i in node.inputs[:at_lse]], node.attrs)
        for n in chain:  # they may stand behind it
            new.setdefault(n, n.with_inputs([new[i] for i in n.inputs]))
        result = new[chain[-1]]
        for view in reversed(chain[1:]):
            result = _undone(view, result)
        return result

    for n in graph.nodes:
        if n in new:
            continue
        new[n] = n.with_inputs([new[i] for i in n.inputs])
        if n.op == "attention_grad" and len(n.inputs) == _at_lse(n) + 2:
            with b.origin(n):
                new[n] = b.make(n.op, (*new[n].inputs, given(n, _at_lse(n))), n.attrs)
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def _views(node: Node, readers: Mapping[Node, list[Node]], roots: set[Node]) -> list[Node]:
    """The node, and what is made of it by moving elements, as far as nobody else reads what is moved."""
    chain = [node]
    while len(readers[chain[-1]]) == 1 and chain[-1] not in roots:
        (reader,) = readers[chain[-1]]
        if reader.op not in ("permute", "reshape"):
            break
        chain.append(reader)
    return chain


def _undone(view: Node, x: Node) -> Node:
    """`x`, which has the shape of a view, as what it is a view of."""
    if view.op == "reshape":
        return b.reshape(x, view.inputs[0].type.shape)
    order = attrs_of(view, at.PermuteAttrs).order
    return b.permute(x, [order.index(d) for d in range(len(order))])
