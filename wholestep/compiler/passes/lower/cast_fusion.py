"""Placement of casts to half types: next to the producer, so that its kernel rounds as it stores (epilogue fusion).

For targets whose kernels can round as they store.  Invariant: casts commute with views, so the values do not change.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, below, rewrite
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import DType

VIEWS = ops_with(Trait.VIEW)
ROUTINES = ops_with(Trait.PRODUCT) - {"matmul"}


def hoist_half_casts(graph: IRGraph) -> IRGraph:
    """cast(view(x)) = view(cast(x)): the cast fuses into the kernel of x.

    A cast is hoisted above a slice only if all readers of x round it to the same type.  The result of a library routine
    is rounded after its views instead: the routine cannot round, so a separate kernel does, in the readers' layout.
    """
    return _sink_casts_of_routines(_hoist_casts_above_views(graph))


def _sink_casts_of_routines(graph: IRGraph) -> IRGraph:
    def rule(node: Node) -> Node:
        if node.op not in ("permute", "reshape") or node.inputs[0].op != "cast":
            return node
        (rounded,) = node.inputs
        if not (rounded.type.dtype.is_half and _is_routine_result(rounded.inputs[0])):
            return node
        with b.origin(node):
            return b.cast(node.with_inputs(rounded.inputs), rounded.type.dtype)

    return rewrite(graph, rule)


def _is_routine_result(node: Node) -> bool:
    """Is a node the result of a routine, or a view of it?"""
    return below(node, VIEWS | {"item"}).op in ROUTINES


def _hoist_casts_above_views(graph: IRGraph) -> IRGraph:
    readers = graph.consumers()
    roots = set(graph.roots)
    new: dict[Node, Node] = {}
    hoisted: dict[tuple[Node, DType], Node] = {}

    def is_rounded(node: Node, dtype: DType) -> bool:
        """Do all readers of a node, through views, round it to this dtype?"""
        as_cast = all(r.op in VIEWS or (r.op == "cast" and r.type.dtype == dtype) for r in readers[node])
        return node not in roots and as_cast and all(is_rounded(r, dtype) for r in readers[node] if r.op in VIEWS)

    def hoist_cast(node: Node, dtype: DType) -> Node:
        if (node, dtype) not in hoisted:
            stops = (
                node.op not in VIEWS
                or _is_routine_result(node)
                or (node.op == "slice" and not is_rounded(node.inputs[0], dtype))
            )
            hoisted[node, dtype] = (
                b.cast(new[node], dtype) if stops else node.with_inputs([hoist_cast(node.inputs[0], dtype)])
            )
        return hoisted[node, dtype]

    for node in graph.nodes:
        rounds = node.op == "cast" and node.type.dtype.is_half
        if rounds and node.inputs[0].op in VIEWS:
            new[node] = hoist_cast(node.inputs[0], node.type.dtype)
            continue
        new[node] = node.with_inputs([new[i] for i in node.inputs])
        if rounds:
            new[node] = hoisted.setdefault((node.inputs[0], node.type.dtype), new[node])
    return graph.with_nodes(new)


def widen_operands(graph: IRGraph) -> IRGraph:
    """Widen half operands of convolutions and attention in their producers, for routines that read float32.

    The values are still rounded to the half type, and products accumulate in the wider type anyway.  The gradient of a
    pool with disjoint windows only moves elements, so its operand is rounded instead of its result: then the gradients
    of convolutions can read the pooled gradient directly (`max_pooling.py`).
    """
    wide: dict[Node, Node] = {}

    def widen(node: Node) -> Node:
        dtype = node.type.dtype
        if not dtype.is_half:
            return node
        if node not in wide:
            if node.op in VIEWS:
                wide[node] = node.with_inputs([widen(i) for i in node.inputs])
            elif node.op == "cast" and _only_moves(node.inputs[0]):
                gradient, index = node.inputs[0].inputs
                wide[node] = node.inputs[0].with_inputs([widen(b.cast(gradient, dtype)), index])
            else:
                wide[node] = b.cast(node, dtype.accumulate)
        return wide[node]

    return rewrite(graph, lambda n: n.with_inputs([widen(i) for i in n.inputs]) if n.op in ROUTINES else n)


def _only_moves(node: Node) -> bool:
    """Is the node the gradient of a pool with disjoint windows, which adds no elements?"""
    if node.op != "max_pool2d_grad":
        return False
    pool = b.attrs_of(node, at.PoolGradAttrs)
    return pool.window == pool.stride and max(*pool.low, *pool.high) == 0
