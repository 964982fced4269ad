"""Half types on their way to a device: arithmetic in them is arithmetic in float32, rounded.

What an op of half operands means is in `ir/values.py`: its value, rounded once to the half type.  Only products,
convolutions and attention read half operands as they are, and accumulate in float32.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Graph, Node, rewrite
from wholestep.compiler.ir.ops import OPS, Family, Trait, having
from wholestep.compiler.ir.types import TensorType, TupleType, Type

_MOVES = frozenset({Family.LEAF, Family.MOVEMENT, Family.CONTROL, Family.LOOP})  # no arithmetic of their own


def widen_half_arithmetic(graph: Graph) -> Graph:
    """Casts around every op that computes with half types and is no contraction: afterwards only casts round.

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
    """Does a node do arithmetic with half values, other than that of a contraction?"""
    if node.op in having(Trait.PRODUCT | Trait.COPIES) or OPS[node.op].family in _MOVES:
        return False
    return any(t.dtype.is_half for t in (*_tensors(node.result), *(t for i in node.inputs for t in _tensors(i.result))))


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
