"""Constant folding and algebraic identities.

Identities are laws of the e-graph (`LAWS` names them), applied wherever they match; the functions here do what a law
cannot express, above all the evaluation of constants in their declared dtype (a rank-0 value in float64, as the scalar
prologue does, then rounded).  x + 0 is folded to x although -0 + 0 is +0: gradients are full of such sums, and no op
but division distinguishes the zeros.  0·x is not folded: it is NaN if x is infinite or NaN, and hiding that would hide
a bug.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import ELEMENTWISE, IRGraph, Node, rewrite
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.semantics.values import StepValues, value_of
from wholestep.compiler.ir.types import DType, TupleType, float32, float64
from wholestep.compiler.passes.egraph.rules import algebra, movement
from wholestep.compiler.passes.egraph.rules.apply import rewrite_by
from wholestep.compiler.passes.egraph.rules.tree import Apply

LARGEST_CONSTANT = 64  # elements; a larger constant costs more memory than the arithmetic it saves

Rule = Callable[[Node], Node | None]  # the replacement of a node; None: unchanged


def fold(graph: IRGraph) -> IRGraph:
    """Apply every rule until none changes anything."""
    while (folded := rewrite(graph, _fold_node)) is not graph:
        graph = folded
    return graph


def _fold_node(node: Node) -> Node:
    """The node after the rules of its op, and of the op that it becomes, as long as one applies."""
    with b.origin(node):
        while True:
            for rule in RULES[node.op]:
                if (simpler := rule(node)) is not None:
                    break
            else:
                return node
            node = simpler


# -- constants ---------------------------------------------------------------------------------------------------

_FOLDED_FAMILIES = {
    *(Family.POINTWISE, Family.REDUCE, Family.MOVEMENT, Family.INDEX),
    *(Family.CONTRACTION, Family.RATIO, Family.COMPOSITE),
}
# A broadcast rank-0 constant is the cheapest tensor, and a dropout draws a new mask in each step.
_EVALUATED = {op for op, row in OPS.items() if row.family in _FOLDED_FAMILIES} - {"expand", "dropout"}
_NO_STEP = StepValues(inputs={}, state={}, scalars={}, sizes={}, seed=0, step=0)


def _evaluate_constant(node: Node) -> Node | None:
    """Evaluate an op over constants."""
    if any(i.op != "constant" for i in node.inputs) or isinstance(node.result, TupleType):
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
    if not node.inputs or any(i.op != "expand" for i in node.inputs):
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


def _unchanged_shape(node: Node) -> Node | None:
    (x,) = node.inputs
    return x if x.type.shape == node.type.shape else None


def _view_of_scalar(node: Node) -> Node | None:
    """A view of a broadcast scalar is a broadcast of the scalar to the view's shape."""
    (x,) = node.inputs
    if x.op == "expand" and x.inputs[0].type.rank == 0:
        return b.expand_to(x.inputs[0], node.type.shape, ())
    return None


# -- arithmetic --------------------------------------------------------------------------------------------------


def _zeroth_power(node: Node) -> Node | None:
    """x ** 0 = 1, also if x is NaN, as in C and NumPy."""
    return b.full_like(node, 1) if constant_value(node.inputs[1]) == 0 else None


def _constant_condition(node: Node) -> Node | None:
    condition, x, y = node.inputs
    value = constant_value(condition)
    if value is None:
        return None
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


# -- reductions and movement ------------------------------------------------------------------------------------


def _reduce_unit_axes(node: Node) -> Node | None:
    """A sum or maximum over axes of length 1 has one term."""
    (x,), axes = node.inputs, attrs_of(node, at.ReduceAttrs).axes
    return b.reshape(x, node.type.shape) if all(x.type.shape[d] == 1 for d in axes) else None


def _slice(node: Node) -> Node | None:
    (x,), a = node.inputs, attrs_of(node, at.SliceAttrs)
    is_identity = all(s == 0 for s in a.starts) and a.stops == x.type.shape and all(s == 1 for s in a.steps)
    return x if is_identity else None


def _pad(node: Node) -> Node | None:
    a = attrs_of(node, at.PadAttrs)
    return None if any((*a.low, *a.high)) else node.inputs[0]


def _concat(node: Node) -> Node | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


# -- the rules of each op, in the order in which they are tried ----------------------------------------------------

# Laws of the e-graph that every program profits from.
LAWS = (
    *("add-zero", "add-neg", "sub-zero", "sub-neg", "mul-one", "neg-as-scale", "div-one", "neg-neg", "where-same"),
    *("first-power", "square", "reciprocal-power"),
    *("reshape-reshape", "reshape-identity", "permute-permute", "permute-identity", "expand-expand"),
    *("transpose-left", "transpose-right"),
)


def _rules() -> dict[str, tuple[Rule, ...]]:
    rows = {rule.name: rule for rule in (*algebra.RULES, *movement.RULES)}
    laws = [(rows[name].left, rewrite_by(rows[name])) for name in LAWS]
    return {
        op: (
            *((_evaluate_constant,) if op in _EVALUATED else ()),
            *((_hoist_expand,) if op in ELEMENTWISE else ()),
            *(rewrite for left, rewrite in laws if isinstance(left, Apply) and left.op == op),
            *OTHERS.get(op, ()),
        )
        for op in OPS
    }


OTHERS: dict[str, tuple[Rule, ...]] = {
    "size": (_fixed_size,),
    "pow": (_zeroth_power,),
    "where": (_constant_condition,),
    "cast": (_cast,),
    "sum": (_reduce_unit_axes,),
    "max": (_reduce_unit_axes,),
    "reshape": (_view_of_scalar,),
    "permute": (_view_of_scalar,),
    "slice": (_slice, _view_of_scalar),
    "expand": (_unchanged_shape,),
    "pad": (_pad,),
    "concat": (_concat,),
}
RULES = _rules()
