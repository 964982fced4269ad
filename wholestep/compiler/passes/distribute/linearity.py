"""Linearity analysis of custom gradients: if one is linear in the upstream gradient, a factor may be applied later.

Forward data flow over the gradient's graph with one bit per value: is it multiplied by the factor?  Conservative: an op
without a rule (a loop, a norm) counts as nonlinear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import TensorType

# (node, which of its inputs are scaled by the factor) -> is the result scaled by it too?  Asked only if some input is.
Rule = Callable[[Node, Sequence[bool]], bool]


def is_linear(node: Node) -> bool:
    """Does scaling all upstream gradients of a `custom_gradient` scale all gradients that it returns?"""
    attrs = attrs_of(node, at.CustomGradientAttrs)
    upstream = attrs.graph.inputs[: attrs.results]
    scaled = {leaf: leaf in upstream for leaf in attrs.graph.inputs}
    for n in attrs.graph.nodes:
        if n not in scaled:
            inputs = [scaled[i] for i in n.inputs]
            if any(inputs) and not (n.op in _RULES and _RULES[n.op](n, inputs)):
                return False
            scaled[n] = any(inputs)
    return all(scaled[o.node] or _is_zero(o.node) for o in attrs.graph.outputs)


def _is_zero(node: Node) -> bool:
    return constant_value(node) == 0


def _jointly_linear(node: Node, scaled: Sequence[bool]) -> bool:
    """Jointly linear in all inputs; a zero constant is a multiple of itself."""
    return all(s or _is_zero(x) for s, x in zip(scaled, node.inputs, strict=True))


def _multilinear(node: Node, scaled: Sequence[bool]) -> bool:
    """Multilinear: linear in each input while the others are fixed."""
    return sum(scaled) == 1


def _linear_in_first(node: Node, scaled: Sequence[bool]) -> bool:
    return scaled[0] and not any(scaled[1:])


def _where_is_linear(node: Node, scaled: Sequence[bool]) -> bool:
    branches = zip(scaled[1:], node.inputs[1:], strict=True)
    return not scaled[0] and all(s or _is_zero(x) for s, x in branches)


def _pad_is_linear(node: Node, scaled: Sequence[bool]) -> bool:
    return attrs_of(node, at.PadAttrs).value == 0


def _cast_is_linear(node: Node, scaled: Sequence[bool]) -> bool:
    return isinstance(node.result, TensorType) and node.result.dtype.is_float


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("add", "sub", "neg", "sum", "concat", "stop_gradient"), _jointly_linear),
    **dict.fromkeys(ops_with(Trait.VIEW), _jointly_linear),
    **dict.fromkeys(("mul", "matmul", "conv2d", "conv2d_grad_input", "conv2d_grad_weight"), _multilinear),
    **dict.fromkeys(("div", "ratio", "gather", "scatter_add", "max_pool2d_grad", "dropout"), _linear_in_first),
    "where": _where_is_linear,
    "pad": _pad_is_linear,
    "cast": _cast_is_linear,
}
