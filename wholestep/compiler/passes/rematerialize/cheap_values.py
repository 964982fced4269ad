"""What is cheap to make of something in memory is made again by each of its readers, instead of being stored.

A batch norm subtracts a mean over the batch.  What it subtracts it from, x, was read by that mean, so x lies in memory:
reading x - mean from memory costs as many bytes as reading x, and writing it costs as many again.  So every reader gets
an x - mean of its own:

    f(x, small) for each reader of f(x, small), where small is made of a sum over columns of x
"""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.types import TensorType


def remake(graph: IRGraph) -> IRGraph:
    """Give every reader of such a node its own; the same graph where there is none.  To be done after equal nodes were
    made one, and not to be followed by that."""
    roots = {o.node for o in graph.outputs} | {u.node for u in graph.updates}
    summed = _column_sums_behind(graph)
    again = {n for n in graph.nodes if n not in roots and _is_cheap(n, summed)}
    if not again:
        return graph
    new: dict[Node, Node] = {}

    def own(node: Node, copies: dict[Node, Node]) -> Node:
        if node not in again:
            return new[node]
        if node not in copies:
            made = new[node]
            copies[node] = Node(made.op, made.inputs, made.attrs, made.name, made.line)
        return copies[node]

    for n in graph.nodes:
        copies: dict[Node, Node] = {}  # of this reader; the same one for both factors of a square
        new[n] = n.with_inputs([own(i, copies) for i in n.inputs])
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def _is_cheap(node: Node, summed: Mapping[Node, frozenset[Node]]) -> bool:
    """One operation on something in memory and on numbers that are spread along some of its axes."""
    if OPS[node.op].family is not Family.POINTWISE or len(node.inputs) != 2:
        return False
    whole = [i for i in node.inputs if i.op != "expand"]
    spread = [i for i in node.inputs if i.op == "expand"]
    return len(whole) == len(spread) == 1 and whole[0] in summed[spread[0].inputs[0]]


def _column_sums_behind(graph: IRGraph) -> dict[Node, frozenset[Node]]:
    """What was added up along columns to make each node, looking no further than something of as many axes."""
    found: dict[Node, frozenset[Node]] = {}
    for node in graph.nodes:
        mine = {x for i in node.inputs for x in found[i]}
        if node.op == "sum" and attrs_of(node, at.SumAttrs).axes != (node.inputs[0].type.rank - 1,):
            mine.add(node.inputs[0])
        rank = node.type.rank if isinstance(node.result, TensorType) else 0
        found[node] = frozenset(x for x in mine if x.type.rank > rank)
    return found
