"""Constant folding and algebraic identities.

Every identity is bitwise exact, with two exceptions.  x + 0 is folded to x although -0 + 0 is +0: gradients are full of
such sums, and no op but division distinguishes the zeros.  Functions of constants are evaluated here in their declared
dtype (a rank-0 value in float64, as the scalar prologue does, then rounded).  0·x is not folded: it is NaN if x is
infinite or NaN, and hiding that would hide a bug.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.semantics.values import StepValues, value_of
from wholestep.compiler.ir.types import DType, TupleType, float32, float64

LARGEST_CONSTANT = 64  # elements; a larger constant costs more memory than the arithmetic it saves

Rule = Callable[[Node], Node | None]  # the replacement of a node; None: unchanged


def fold(graph: IRGraph) -> IRGraph:
    """Apply every rule until none changes anything."""
    while (folded := rewrite(graph, _fold_node)) is not graph:
        graph = folded
    return graph


def _fold_node(node: Node) -> Node:
    with b.origin(node):
        for rule in (_evaluate_constant, _hoist_expand, *RULES.get(node.op, ())):
            if (simpler := rule(node)) is not None:
                return simpler
    return node


# -- constants ---------------------------------------------------------------------------------------------------

_FOLDED_FAMILIES = {
    *(Family.POINTWISE, Family.REDUCE, Family.MOVEMENT, Family.INDEX),
    *(Family.CONTRACTION, Family.RATIO, Family.COMPOSITE),
}
_NO_STEP = StepValues(inputs={}, state={}, scalars={}, sizes={}, seed=0, step=0)


def _evaluate_constant(node: Node) -> Node | None:
    """Evaluate an op over constants.  Not `expand`: a broadcast rank-0 constant is the cheapest tensor."""
    if (
        node.op == "expand"
        or OPS[node.op].family not in _FOLDED_FAMILIES
        or any(i.op != "constant" for i in node.inputs)
    ):
        return None
    if isinstance(node.result, TupleType) or node.op == "dropout":  # it draws a new mask in each step
        return None
    elements = node.type.elements
    if not isinstance(elements, int) or (node.type.rank > 0 and elements > LARGEST_CONSTANT):
        return None
    arrays = [_constant_array(i, in_float64=node.host) for i in node.inputs]
    with np.errstate(all="ignore"):  # infinities and NaN are valid results
        return b.constant(value_of(node, _NO_STEP, arrays), node.type.dtype)


def _constant_array(node: Node, in_float64: bool) -> np.ndarray[Any, Any]:
    array = attrs_of(node, at.ConstantAttrs).array.value
    dtype = node.type.dtype
    return array.astype(np.float64) if dtype.is_half or (in_float64 and dtype.is_float) else array


def _fixed_size(node: Node) -> Node | None:
    extent = attrs_of(node, at.SizeAttrs).extent
    return b.constant(extent, float64) if isinstance(extent, int) else None


# -- expand ------------------------------------------------------------------------------------------------------


def _hoist_expand(node: Node) -> Node | None:
    """f(expand a, expand c) = expand f(a, c): computed once per element of a, not once per copy.

    Broadcasts of scalars fit any other; the rest must be broadcast along the same axes.
    """
    if not node.is_elementwise or not node.inputs or any(i.op != "expand" for i in node.inputs):
        return None
    sources = [i.inputs[0] for i in node.inputs]
    source_axes = {
        (s.type.shape, attrs_of(i, at.ExpandAttrs).axes) for s, i in zip(sources, node.inputs) if s.type.rank
    }
    if len(source_axes) > 1:
        return None
    shape, axes = source_axes.pop() if source_axes else ((), ())
    small = b.make(node.op, [s if s.type.rank else b.expand_to(s, shape, ()) for s in sources], node.attrs)
    return b.expand_to(small, node.type.shape, axes)


def _merge_expands(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.type.shape == node.type.shape:
        return x
    if x.op != "expand":
        return None
    outer, inner = attrs_of(node, at.ExpandAttrs), attrs_of(x, at.ExpandAttrs)
    return b.expand_to(x.inputs[0], outer.shape, [outer.axes[d] for d in inner.axes])


def _view_of_scalar(node: Node) -> Node | None:
    """A view of a broadcast scalar is a broadcast of the scalar to the view's shape."""
    (x,) = node.inputs
    if x.op == "expand" and x.inputs[0].type.rank == 0:
        return b.expand_to(x.inputs[0], node.type.shape, ())
    return None


# -- arithmetic --------------------------------------------------------------------------------------------------


def _is(node: Node, value: float) -> bool:
    return constant_value(node) == value


def _add(node: Node) -> Node | None:
    x, y = node.inputs
    if _is(y, 0):
        return x
    if _is(x, 0):
        return y
    if y.op == "neg":  # x + -y is x - y, bit for bit
        return b.sub(x, y.inputs[0])
    if x.op == "neg":
        return b.sub(y, x.inputs[0])
    return None


def _sub(node: Node) -> Node | None:
    x, y = node.inputs
    if _is(y, 0):
        return x
    return b.add(x, y.inputs[0]) if y.op == "neg" else None


def _mul(node: Node) -> Node | None:
    for x, factor in (node.inputs, node.inputs[::-1]):
        if _is(factor, 1):
            return x
        if _is(factor, -1):
            return b.neg(x)
    return None


def _div(node: Node) -> Node | None:
    x, y = node.inputs
    return x if _is(y, 1) else None


def _pow(node: Node) -> Node | None:
    x, exponent = node.inputs[0], constant_value(node.inputs[1])
    if exponent == 0:
        return b.full_like(x, 1)  # for NaN too, as in C and NumPy
    if exponent == 1:
        return x
    if exponent == 2:
        return b.mul(x, x)
    return b.unary("recip", x) if exponent == -1 else None


def _neg(node: Node) -> Node | None:
    (x,) = node.inputs
    return x.inputs[0] if x.op == "neg" else None


def _where(node: Node) -> Node | None:
    condition, x, y = node.inputs
    value = constant_value(condition)
    if value is None:
        return x if x is y else None
    return x if value else y


def _cast(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.type.dtype == node.type.dtype:
        return x
    if x.op == "cast" and x.inputs[0].type.dtype == node.type.dtype and _represents(x.type.dtype, node.type.dtype):
        return x.inputs[0]
    return None


def _represents(wide: DType, narrow: DType) -> bool:
    """Does a cast from `narrow` to `wide` and back keep every value?"""
    if narrow.is_half:
        return wide in (float32, float64)
    return wide == float64 and (narrow == float32 or narrow.name in ("int32", "uint8", "bool"))


# -- movement and contraction ------------------------------------------------------------------------------------


def _reduce_unit_axes(node: Node) -> Node | None:
    """A sum or maximum over axes of length 1 has one term."""
    (x,), axes = node.inputs, node.attrs.axes  # type: ignore[attr-defined]
    return b.reshape(x, node.type.shape) if all(x.type.shape[d] == 1 for d in axes) else None


def _reshape(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.type.shape == node.type.shape:
        return x
    return b.reshape(x.inputs[0], node.type.shape) if x.op == "reshape" else None


def _permute(node: Node) -> Node | None:
    (x,), order = node.inputs, attrs_of(node, at.PermuteAttrs).order
    if x.op == "permute":
        inner = attrs_of(x, at.PermuteAttrs).order
        return b.permute(x.inputs[0], [inner[d] for d in order])
    return x if order == tuple(range(len(order))) else None


def _slice(node: Node) -> Node | None:
    (x,), a = node.inputs, attrs_of(node, at.SliceAttrs)
    is_identity = all(s == 0 for s in a.starts) and a.stops == x.type.shape and all(s == 1 for s in a.steps)
    return x if is_identity else None


def _pad(node: Node) -> Node | None:
    a = attrs_of(node, at.PadAttrs)
    return None if any((*a.low, *a.high)) else node.inputs[0]


def _concat(node: Node) -> Node | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _matmul(node: Node) -> Node | None:
    """A transposed operand becomes a flag: the sum along k runs in the same order either way."""
    (x, y), a = node.inputs, attrs_of(node, at.MatmulAttrs)
    flip_x, flip_y = _is_transpose(x), _is_transpose(y)
    if not (flip_x or flip_y):
        return None
    x, y = x.inputs[0] if flip_x else x, y.inputs[0] if flip_y else y
    return b.matmul(x, y, a.transpose_a ^ flip_x, a.transpose_b ^ flip_y, a.accumulate)


def _is_transpose(node: Node) -> bool:
    if node.op != "permute" or node.type.rank < 2:
        return False
    *leading, m, n = attrs_of(node, at.PermuteAttrs).order
    return leading == list(range(len(leading))) and m == n + 1


RULES: dict[str, tuple[Rule, ...]] = {
    "size": (_fixed_size,),
    "add": (_add,),
    "sub": (_sub,),
    "mul": (_mul,),
    "div": (_div,),
    "pow": (_pow,),
    "neg": (_neg,),
    "where": (_where,),
    "cast": (_cast,),
    "sum": (_reduce_unit_axes,),
    "max": (_reduce_unit_axes,),
    "reshape": (_reshape, _view_of_scalar),
    "permute": (_permute, _view_of_scalar),
    "slice": (_slice, _view_of_scalar),
    "expand": (_merge_expands,),
    "pad": (_pad,),
    "concat": (_concat,),
    "matmul": (_matmul,),
}
