"""Automatic mixed precision: which products are computed in a half type, and how half arithmetic is lowered.

The policy is one rule: operands of products, convolutions and attention are rounded to the half type, and products
accumulate in float32.  Everything else stays in float32: norms, softmax, losses, sums, weights, their updates, and all
values computed from gradients.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, body_of, rewrite, with_body
from wholestep.compiler.ir.ops import OPS, Family, Trait, ops_with
from wholestep.compiler.ir.types import DType, TensorType, TupleType, Type, float32

# Op -> the number of leading inputs that are rounded.  Gradients follow by autodiff: the gradient of a product of half
# operands is again a product of half operands.
OPERANDS = {"matmul": 2, "conv2d": 2, "conv2d_grad_input": 2, "attention": 3}


def lower_precision(graph: IRGraph, half: DType) -> IRGraph:
    """Insert casts to `half` before the products of a traced step, or of a program without gradients.

    Products that depend on a gradient belong to an update (or to a gradient penalty's own forward pass) and stay as
    they are, as do those whose operand was pinned: see `frontend/precision.py`.
    """
    after_gradient, new, casts = set[Node](), dict[Node, Node](), dict[Node, Node]()
    for node in graph.nodes:
        rebuilt = node.with_inputs([new[i] for i in node.inputs])
        if node.op == "gradient" or any(i in after_gradient for i in node.inputs):
            after_gradient.add(node)
        elif (inner := body_of(node)) is not None:
            rebuilt = with_body(rebuilt, lower_precision(inner, half))
        elif _is_lowered(rebuilt):
            count = OPERANDS[node.op]
            operands = [_cast_to_half(i, half, casts) for i in rebuilt.inputs[:count]]
            rebuilt = rebuilt.with_inputs([*operands, *rebuilt.inputs[count:]])
        new[node] = rebuilt
    return graph.with_nodes(new)


def _is_lowered(node: Node) -> bool:
    operands = node.inputs[: OPERANDS.get(node.op, 0)]
    return bool(operands) and all(i.type.dtype == float32 and not _is_pinned(i) for i in operands)


def _is_pinned(node: Node) -> bool:
    """Is the node a cast of float32 to float32?  Only `nn.in_float32` inserts these, one before each product."""
    return node.op == "cast" and node.inputs[0].type == node.type


def _cast_to_half(node: Node, half: DType, casts: dict[Node, Node]) -> Node:
    """The node in a half type.  The base of a view is cast, once for all of its views."""
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

_MOVES = frozenset({Family.LEAF, Family.MOVEMENT, Family.CONTROL, Family.LOOP})  # families without arithmetic


def widen_half_arithmetic(graph: IRGraph) -> IRGraph:
    """Insert casts around every op on half types that is not a product: afterwards only casts round.

    f(x) in bfloat16 becomes cast(f(cast(x, float32)), bfloat16): one rounding to bfloat16, after float32's.
    """

    def widen(node: Node) -> Node | tuple[Node, ...]:
        if not computes_in_half(node):
            return node
        with b.origin(node):
            return in_accumulation_types(node)

    return rewrite(graph, widen)


def computes_in_half(node: Node) -> bool:
    """Does a node do arithmetic with half values, other than a product?"""
    if node.op in ops_with(Trait.PRODUCT | Trait.COPIES) or OPS[node.op].family in _MOVES:
        return False
    return any(t.dtype.is_half for n in (node, *node.inputs) for t in _tensors(n.result))


def in_accumulation_types(node: Node) -> tuple[Node, ...]:
    """The results of a node, computed in the accumulation types of its inputs and rounded to the original dtypes."""
    inputs = [b.cast(i, i.type.dtype.accumulate) for i in node.inputs]
    wide = b.make(node.op, inputs, node.attrs)
    if isinstance(node.result, TensorType):
        return (b.cast(wide, node.result.dtype),)
    items = [b.make("item", (wide,), at.ItemAttrs(i)) for i in range(len(node.result.items))]
    return tuple(b.cast(item, t.dtype) for item, t in zip(items, node.result.items, strict=True))


def _tensors(result: Type) -> tuple[TensorType, ...]:
    return result.items if isinstance(result, TupleType) else (result,)
