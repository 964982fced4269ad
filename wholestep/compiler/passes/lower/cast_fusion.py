"""Where values become those of half types: in the kernel that computes them, so that nobody stores them whole first.

Both passes are for targets whose kernels round as they store.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update, rewrite
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import DType

VIEWS = ops_with(Trait.VIEW)
ROUTINES = ops_with(Trait.PRODUCT) - {"matmul"}


def round_early(graph: IRGraph) -> IRGraph:
    """cast(view(x)) = view(cast(x)): the rounding joins the kernel of x.

    A slice stays before the rounding unless all that is read of x is rounded alike.  What a routine computes is rounded
    behind its views: it is written where its readers look for it, and a kernel of its own rounds it there.
    """
    return _behind_routines(_cast_before_views(graph))


def _behind_routines(graph: IRGraph) -> IRGraph:
    def rule(node: Node) -> Node:
        if node.op not in ("permute", "reshape") or node.inputs[0].op != "cast":
            return node
        (rounded,) = node.inputs
        if not (rounded.type.dtype.is_half and _is_routines(rounded.inputs[0])):
            return node
        with b.origin(node):
            return b.cast(node.with_inputs(rounded.inputs), rounded.type.dtype)

    return rewrite(graph, rule)


def _is_routines(node: Node) -> bool:
    """Is a node what a routine computes, or a view of it?"""
    while node.op in VIEWS or node.op == "item":
        node = node.inputs[0]
    return node.op in ROUTINES


def _cast_before_views(graph: IRGraph) -> IRGraph:
    readers = graph.consumers()
    roots = {o.node for o in graph.outputs} | {u.node for u in graph.updates}
    new: dict[Node, Node] = {}
    early: dict[tuple[Node, DType], Node] = {}

    def is_rounded(node: Node, dtype: DType) -> bool:
        """Do all who read a node read it rounded, perhaps through views?"""
        as_cast = all(r.op in VIEWS or (r.op == "cast" and r.type.dtype == dtype) for r in readers[node])
        return node not in roots and as_cast and all(is_rounded(r, dtype) for r in readers[node] if r.op in VIEWS)

    def rounded(node: Node, dtype: DType) -> Node:
        if (node, dtype) not in early:
            here = (
                node.op not in VIEWS
                or _is_routines(node)
                or (node.op == "slice" and not is_rounded(node.inputs[0], dtype))
            )
            early[node, dtype] = (
                b.cast(new[node], dtype) if here else node.with_inputs([rounded(node.inputs[0], dtype)])
            )
        return early[node, dtype]

    for node in graph.nodes:
        rounds = node.op == "cast" and node.type.dtype.is_half
        if rounds and node.inputs[0].op in VIEWS:
            new[node] = rounded(node.inputs[0], node.type.dtype)
            continue
        new[node] = node.with_inputs([new[i] for i in node.inputs])
        if rounds:
            new[node] = early.setdefault((node.inputs[0], node.type.dtype), new[node])
    if all(a is b for a, b in new.items()):
        return graph
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def widen_operands(graph: IRGraph) -> IRGraph:
    """Half operands of convolutions and attention are widened where they are made: their routines read whole numbers.

    The values are those of the half type, and a sum accumulates in the wider type anyway.  The adjoint of a pool whose
    windows do not meet moves elements: what it moves is rounded, so that adjoints of convolutions can do without it.
    """
    wide: dict[Node, Node] = {}

    def widened(node: Node) -> Node:
        dtype = node.type.dtype
        if not dtype.is_half:
            return node
        if node not in wide:
            if node.op in VIEWS:
                wide[node] = node.with_inputs([widened(i) for i in node.inputs])
            elif node.op == "cast" and _only_moves(node.inputs[0]):
                gradient, index = node.inputs[0].inputs
                wide[node] = node.inputs[0].with_inputs([widened(b.cast(gradient, dtype)), index])
            else:
                wide[node] = b.cast(node, dtype.accumulate)
        return wide[node]

    return rewrite(graph, lambda n: n.with_inputs([widened(i) for i in n.inputs]) if n.op in ROUTINES else n)


def _only_moves(node: Node) -> bool:
    """Is a node the adjoint of a pool whose windows do not meet?  Then no two elements are added."""
    if node.op != "max_pool2d_grad":
        return False
    pool = b.attrs_of(node, at.PoolGradAttrs)
    return pool.window == pool.stride and max(*pool.low, *pool.high) == 0
