"""Is a gradient of a user's own linear in what arrives at it?  Then a factor may be taken in afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import TensorType

# Of an op's inputs, which are multiplied by the factor -> is its result?  Only asked where some are.
Rule = Callable[[Node, Sequence[bool]], bool]


def scales(node: Node) -> bool:
    """Does a factor on everything that arrives at a `custom_gradient` come out of its gradients?

    What is not known to be linear (a loop, a norm) counts as not.
    """
    attrs = attrs_of(node, at.CustomGradientAttrs)
    arriving = attrs.graph.inputs[: attrs.results]
    scaled = {leaf: leaf in arriving for leaf in attrs.graph.inputs}
    for n in attrs.graph.nodes:
        if n not in scaled:
            inputs = [scaled[i] for i in n.inputs]
            if any(inputs) and not (n.op in _RULES and _RULES[n.op](n, inputs)):
                return False
            scaled[n] = any(inputs)
    return all(scaled[o.node] or _is_zero(o.node) for o in attrs.graph.outputs)


def _is_zero(node: Node) -> bool:
    return constant_value(node) == 0


def _every(node: Node, scaled: Sequence[bool]) -> bool:
    """Linear in all inputs together; a zero is its own multiple."""
    return all(s or _is_zero(x) for s, x in zip(scaled, node.inputs, strict=True))


def _one(node: Node, scaled: Sequence[bool]) -> bool:
    """Linear in each input by itself."""
    return sum(scaled) == 1


def _first(node: Node, scaled: Sequence[bool]) -> bool:
    return scaled[0] and not any(scaled[1:])


def _where_is_linear(node: Node, scaled: Sequence[bool]) -> bool:
    branches = zip(scaled[1:], node.inputs[1:], strict=True)
    return not scaled[0] and all(s or _is_zero(x) for s, x in branches)


def _pad_is_linear(node: Node, scaled: Sequence[bool]) -> bool:
    return attrs_of(node, at.PadAttrs).value == 0


def _cast(node: Node, scaled: Sequence[bool]) -> bool:
    return isinstance(node.result, TensorType) and node.result.dtype.is_float


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("add", "sub", "neg", "sum", "concat", "stop_gradient"), _every),
    **dict.fromkeys(ops_with(Trait.VIEW), _every),
    **dict.fromkeys(("mul", "matmul", "conv2d", "conv2d_grad_input", "conv2d_grad_weight"), _one),
    **dict.fromkeys(("div", "ratio", "gather", "scatter_add", "max_pool2d_grad", "dropout"), _first),
    "where": _where_is_linear,
    "pad": _pad_is_linear,
    "cast": _cast,
}
