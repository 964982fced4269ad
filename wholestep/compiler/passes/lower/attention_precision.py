"""Adapts attention to the library routines of a GPU: half operands give half results, and the backward routine takes
the forward result as an operand.

For targets with such routines only.  Rounding the gradients of half operands to the half type loses nothing that other
frameworks keep: the gradient of a half operand is half there too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, below, rewrite
from wholestep.compiler.ir.type_rules.layers import lse_position

ROUTINES = frozenset({"attention", "attention_lse", "attention_grad"})
MOVES = frozenset({"permute", "reshape", "slice"})


def adapt_attention_routines(graph: IRGraph) -> IRGraph:
    """Both rewrites of this file."""
    return pass_forward_results(round_results(graph))


def round_results(graph: IRGraph) -> IRGraph:
    """Routines return half results for half operands; a cast widens them again, after their views."""
    rounding: set[Node] = set()  # routines that this pass has set to round
    hoisted: dict[Node, Node] = {}  # operand -> the operand with its cast hoisted above views, shared by all routines

    def rule(node: Node) -> Node:
        with b.origin(node):
            if node.op in ROUTINES and not _is_rounded(node):
                return _with_half_result(node, rounding, hoisted)
            if node.op == "item" and node.inputs[0] in rounding:
                return b.cast(node, node.type.dtype.accumulate)
            return _sink_widening(node)

    return rewrite(graph, rule)


def _sink_widening(node: Node) -> Node:
    """Sink the widening cast of a result below views; a cast back to the half type cancels it."""
    if node.op in MOVES and _is_widened(node.inputs[0]):
        return b.cast(node.with_inputs(node.inputs[0].inputs), node.type.dtype)
    if node.op == "concat" and all(_is_widened(i) for i in node.inputs):
        return b.cast(node.with_inputs([i.inputs[0] for i in node.inputs]), node.type.dtype)
    if node.op == "cast" and _is_widened(node.inputs[0]):
        return b.cast(node.inputs[0].inputs[0], node.type.dtype)
    return node


def _with_half_result(node: Node, rounding: set[Node], hoisted: dict[Node, Node]) -> Node:
    if not node.inputs[0].type.dtype.is_half:
        return node
    inputs = [hoisted.setdefault(i, _cast_before_view(i)) for i in node.inputs]
    rounded = b.make(node.op, inputs, replace(attrs_of(node, at.AttentionAttrs), rounded=True))
    rounding.add(rounded)
    return b.cast(rounded, node.type.dtype) if node.op == "attention" else rounded


def _cast_before_view(node: Node) -> Node:
    """cast(view(x)) = view(cast(x)): the kernel that computes x rounds it, and the routine reads the view."""
    if node.op != "cast" or not node.type.dtype.is_half or node.inputs[0].op not in ("permute", "reshape"):
        return node
    (view,) = node.inputs
    return view.with_inputs([_cast_before_view(b.cast(view.inputs[0], node.type.dtype))])


def _lse_index(node: Node) -> int:
    return lse_position([i.type.rank for i in node.inputs])


def _is_rounded(node: Node) -> bool:
    return node.op in ROUTINES and attrs_of(node, at.AttentionAttrs).rounded


def _is_widened(node: Node) -> bool:
    """Is a node the widening cast of a routine's half result?"""
    return node.op == "cast" and node.inputs[0].type.dtype.is_half and _is_routine_result(node.inputs[0])


def _is_routine_result(node: Node) -> bool:
    return _is_rounded(below(node, MOVES | {"item", "concat"}))


def pass_forward_results(graph: IRGraph) -> IRGraph:
    """Pass every attention_grad the result of its attention, in the layout in which that is stored: after its views."""
    readers = graph.consumers()
    roots = set(graph.roots)
    attentions = {(n.inputs, n.attrs): n for n in graph.nodes if n.op == "attention"}
    views = {key: _views(node, readers, roots) for key, node in attentions.items()}
    new: dict[Node, Node] = {}

    def forward_result(node: Node, at_lse: int) -> Node:
        """The result of the attention that a node is the gradient of."""
        chain = views.get((node.inputs[:at_lse], node.attrs))
        if chain is None:
            return b.make("attention", [new[i] for i in node.inputs[:at_lse]], node.attrs)
        for n in chain:  # the views may follow the gradient in the graph's order
            new.setdefault(n, n.with_inputs([new[i] for i in n.inputs]))
        result = new[chain[-1]]
        for view in reversed(chain[1:]):
            result = _invert_view(view, result)
        return result

    for n in graph.nodes:
        if n in new:
            continue
        new[n] = n.with_inputs([new[i] for i in n.inputs])
        if n.op == "attention_grad" and len(n.inputs) == _lse_index(n) + 2:
            with b.origin(n):
                new[n] = b.make(n.op, (*new[n].inputs, forward_result(n, _lse_index(n))), n.attrs)
    return graph.with_nodes(new)


def _views(node: Node, readers: Mapping[Node, list[Node]], roots: set[Node]) -> list[Node]:
    """The node and the chain of views on it, as long as each has a single reader."""
    chain = [node]
    while len(readers[chain[-1]]) == 1 and chain[-1] not in roots:
        (reader,) = readers[chain[-1]]
        if reader.op not in ("permute", "reshape"):
            break
        chain.append(reader)
    return chain


def _invert_view(view: Node, x: Node) -> Node:
    """The inverse of a view, applied to `x`."""
    if view.op == "reshape":
        return b.reshape(x, view.inputs[0].type.shape)
    order = attrs_of(view, at.PermuteAttrs).order
    return b.permute(x, [order.index(d) for d in range(len(order))])
