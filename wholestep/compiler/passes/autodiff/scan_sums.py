"""Sums over the steps of a loop, computed outside of it.

Σ over t of aₜᵀ·bₜ is one product of the stacked a and b: linear ops after the last product or sum of a step are moved
outside, and the product itself contracts over steps as it does over rows.
"""

from __future__ import annotations

from collections.abc import Callable

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import Extent

Stack = Callable[[Node], Node]
VIEWS = ops_with(Trait.VIEW)


def sum_over_steps(node: Node, length: Extent, stack: Stack) -> Node:
    """The sum of a body's node over all steps; `stack` returns its values in all steps, along a leading axis."""
    if node.op == "add":
        x, y = node.inputs
        return build.add(sum_over_steps(x, length, stack), sum_over_steps(y, length, stack))
    if node.op == "neg" or node.op in VIEWS or (node.op == "pad" and _pads_with_zeros(node)):
        return _apply_to(node, sum_over_steps(node.inputs[0], length, stack))
    if node.op == "concat":
        parts = [sum_over_steps(i, length, stack) for i in node.inputs]
        return build.concat(parts, attrs_of(node, at.ConcatAttrs).axis)
    if node.op == "sum":
        axes = attrs_of(node, at.SumAttrs).axes
        return build.sum_axes(stack(node.inputs[0]), (0, *(a + 1 for a in axes)))
    if node.op == "matmul":
        return _product(node, stack)
    if node.op == "scatter_add":
        return _scatter(node, stack)
    return build.sum_axes(stack(node), (0,))


def _pads_with_zeros(node: Node) -> bool:
    return attrs_of(node, at.PadAttrs).value == 0


def _apply_to(node: Node, x: Node) -> Node:
    return build.make(node.op, (x,), node.attrs)


def _product(node: Node, stack: Stack) -> Node:
    """The operand with the steps merged into the contracted axis: (T, .., k, m) is viewed as (.., T·k, m)."""
    attrs = attrs_of(node, at.MatmulAttrs)
    a, b = node.inputs
    left = _merge_step_axis(stack(a), inner_first=attrs.transpose_a)
    right = _merge_step_axis(stack(b), inner_first=not attrs.transpose_b)
    return build.matmul(left, right, transpose_a=attrs.transpose_a, transpose_b=attrs.transpose_b)


def _merge_step_axis(x: Node, inner_first: bool) -> Node:
    """Merge the leading step axis with the contracted axis of a matrix."""
    steps, *lead, rows, columns = x.type.shape
    axes = range(1, 1 + len(lead))
    if inner_first:
        permuted = build.permute(x, (*axes, 0, len(lead) + 1, len(lead) + 2))
        return build.reshape(permuted, (*lead, steps * rows, columns))
    permuted = build.permute(x, (*axes, len(lead) + 1, 0, len(lead) + 2))
    return build.reshape(permuted, (*lead, rows, steps * columns))


def _scatter(node: Node, stack: Stack) -> Node:
    """One scatter-add of the updates of all steps into one table."""
    attrs = attrs_of(node, at.ScatterAddAttrs)
    updates, index = (stack(i) for i in node.inputs)
    rank = updates.type.rank
    order = (*range(1, attrs.axis + 1), 0, *range(attrs.axis + 1, rank))
    return build.scatter_add(build.permute(updates, order), index, attrs.axis, attrs.size)
