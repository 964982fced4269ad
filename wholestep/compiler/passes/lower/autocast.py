"""Half precision: which products are computed in a half type, and what half arithmetic means on a device.

A policy of one rule: operands of products, convolutions and attention are rounded to the half type and accumulate in
float32.  Everything else, norms, softmax, losses and sums among it, stays in float32, and so do weights, their updates
and whatever is computed from gradients.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update, body_of, rewrite, with_held_graph
from wholestep.compiler.ir.ops import OPS, Family, Trait, ops_with
from wholestep.compiler.ir.types import DType, TensorType, TupleType, Type, float32

# Op -> how many of its inputs, from the first, are operands of its products.  Their gradients follow: a gradient of a
# product of half operands is one as well.
OPERANDS = {"matmul": 2, "conv2d": 2, "attention": 3}


def lower_precision(graph: IRGraph, half: DType) -> IRGraph:
    """Casts to `half` before the products of a traced step, or of a program that trains nothing.

    Products that depend on a gradient belong to an update (or to a gradient penalty's own forward pass) and stay as
    they are, as do those whose operand was pinned: see `frontend/precision.py`.
    """
    late, new, casts = set[Node](), dict[Node, Node](), dict[Node, Node]()
    for node in graph.nodes:
        moved = node.with_inputs([new[i] for i in node.inputs])
        if node.op == "gradient" or any(i in late for i in node.inputs):
            late.add(node)
        elif (inner := body_of(node)) is not None:
            moved = with_held_graph(moved, lower_precision(inner, half))
        elif _is_lowered(moved):
            count = OPERANDS[node.op]
            operands = [_cast_to_half(i, half, casts) for i in moved.inputs[:count]]
            moved = moved.with_inputs([*operands, *moved.inputs[count:]])
        new[node] = moved
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def _is_lowered(node: Node) -> bool:
    operands = node.inputs[: OPERANDS.get(node.op, 0)]
    return bool(operands) and all(i.type.dtype == float32 and not _is_pinned(i) for i in operands)


def _is_pinned(node: Node) -> bool:
    """A cast of float32 to float32: `nn.in_float32` leaves one before each product, and nothing else does."""
    return node.op == "cast" and node.inputs[0].type == node.type


def _cast_to_half(node: Node, half: DType, casts: dict[Node, Node]) -> Node:
    """The node in a half type.  What it is a view of is cast, once for all of its views."""
    if node not in casts:
        if node.op in ops_with(Trait.VIEW):
            casts[node] = node.with_inputs([_cast_to_half(node.inputs[0], half, casts)])
        elif node.op == "cast" and node.inputs[0].type.dtype == half:
            casts[node] = node.inputs[0]
        else:
            with b.origin(node):
                casts[node] = b.cast(node, half)
    return casts[node]


# -- half arithmetic -------------------------------------------------------------------------------------------------

_MOVES = frozenset({Family.LEAF, Family.MOVEMENT, Family.CONTROL, Family.LOOP})  # no arithmetic of their own


def widen_half_arithmetic(graph: IRGraph) -> IRGraph:
    """Casts around every op that computes with half types and is no product: afterwards only casts round.

    f(x) in bfloat16 becomes cast(f(cast(x, float32)), bfloat16), bit for bit what one rounding of f(x) is but for
    float32's own.
    """
    several: dict[Node, tuple[Node, ...]] = {}

    def widen(node: Node) -> Node:
        if node.op == "item" and node.inputs[0] in several:
            return several[node.inputs[0]][node.attrs.index]  # type: ignore[attr-defined]
        if not computes_in_half(node):
            return node
        with b.origin(node):
            results = in_wide_types(node)
        if isinstance(node.result, TensorType):
            return results[0]
        several[node] = results
        return node

    return rewrite(graph, widen)


def computes_in_half(node: Node) -> bool:
    """Does a node do arithmetic with half values, other than that of a product?"""
    if node.op in ops_with(Trait.PRODUCT | Trait.COPIES) or OPS[node.op].family in _MOVES:
        return False
    return any(t.dtype.is_half for n in (node, *node.inputs) for t in _tensors(n.result))


def in_wide_types(node: Node) -> tuple[Node, ...]:
    """The results of a node computed in the types that its inputs accumulate in, and rounded to what they were."""
    inputs = [b.cast(i, i.type.dtype.accumulate) for i in node.inputs]
    wide = b.make(node.op, inputs, node.attrs)
    if isinstance(node.result, TensorType):
        return (b.cast(wide, node.result.dtype),)
    items = [b.make("item", (wide,), at.ItemAttrs(i)) for i in range(len(node.result.items))]
    return tuple(b.cast(item, t.dtype) for item, t in zip(items, node.result.items, strict=True))


def _tensors(result: Type) -> tuple[TensorType, ...]:
    return result.items if isinstance(result, TupleType) else (result,)
