"""Lowering of composites to primitives, of reductions to single axes, and of ratios to divisions.

The comment above each decomposition is its formula, and why that is numerically stable.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.passes.lower import layer_decompositions as layers
from wholestep.compiler.passes.lower.autocast import computes_in_half, in_accumulation_types
from wholestep.compiler.target import Target

# -- one function per composite ----------------------------------------------------------------------------------


# max(x, 0)
def _relu(y: Node) -> Node:
    return b.maximum(y.inputs[0], b.zeros_like(y))


# 1/(1 + e⁻ˣ): if e⁻ˣ overflows, 1/∞ = 0 is the correct limit
def _sigmoid(y: Node) -> Node:
    return b.unary("recip", b.shift(b.unary("exp", b.neg(y.inputs[0])), 1))


# sign(x)·(-t/(t + 2)) with t = e^(-2|x|) - 1: expm1 is accurate near 0, and the exponent is never positive
def _tanh(y: Node) -> Node:
    (x,) = y.inputs
    t = b.unary("expm1", b.scale(b.unary("abs", x), -2))
    return b.mul(b.unary("sign", x), b.neg(b.div(t, b.shift(t, 2))))


# x·sigmoid(x)
def _silu(y: Node) -> Node:
    (x,) = y.inputs
    return b.mul(x, b.unary("sigmoid", x))


# max(x, 0) + log(1 + e^-|x|): the exponent is never positive, so nothing overflows
def _softplus(y: Node) -> Node:
    (x,) = y.inputs
    return b.add(b.maximum(x, b.zeros_like(x)), _log_of_one_plus(x))


# max(x, 0) - x·y + log(1 + e^-|x|), in this order: if y is 1 and x is large, max(x, 0) - x·y is exactly 0, and the
# small logarithm is not rounded away
def _bce_with_logits(z: Node) -> Node:
    x, y = z.inputs
    return b.add(b.sub(b.maximum(x, b.zeros_like(x)), b.mul(x, y)), _log_of_one_plus(x))


def _log_of_one_plus(x: Node) -> Node:
    return b.unary("log1p", b.unary("exp", b.neg(b.unary("abs", x))))


# exact: x/2·(1 + erf(x/√2));  approximate: x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
def _gelu(y: Node) -> Node:
    (x,) = y.inputs
    if attrs_of(y, at.GeluAttrs).approximate:
        cube = b.mul(b.mul(x, x), x)
        gate = b.unary("tanh", b.scale(b.add(x, b.scale(cube, 0.044715)), sqrt(2 / pi)))
    else:
        gate = b.unary("erf", b.scale(x, sqrt(0.5)))
    return b.mul(b.scale(x, 0.5), b.shift(gate, 1))


# e^(x - max x) / Σ e^(x - max x): the largest exponent is 0, so nothing overflows and the sum is at least 1
def _softmax(y: Node) -> Node:
    exponentials = b.unary("exp", _minus_max(y))
    return b.div(exponentials, _sum_to(exponentials, y))


# x - max x - log Σ e^(x - max x)
def _log_softmax(y: Node) -> Node:
    shifted = _minus_max(y)
    return b.sub(shifted, b.unary("log", _sum_to(b.unary("exp", shifted), y)))


# max x + log Σ e^(x - max x)
def _logsumexp(y: Node) -> Node:
    (x,), axes = y.inputs, (attrs_of(y, at.SoftmaxAttrs).axis,)
    largest = b.max_axes(x, axes)
    exponentials = b.unary("exp", b.sub(x, b.restore_axes(largest, axes, x.type.shape)))
    return b.add(largest, b.unary("log", b.sum_axes(exponentials, axes)))


def _minus_max(y: Node) -> Node:
    (x,), axes = y.inputs, (attrs_of(y, at.SoftmaxAttrs).axis,)
    return b.sub(x, b.restore_axes(b.max_axes(x, axes), axes, x.type.shape))


def _sum_to(terms: Node, y: Node) -> Node:
    axes = (attrs_of(y, at.SoftmaxAttrs).axis,)
    return b.restore_axes(b.sum_axes(terms, axes), axes, y.type.shape)


# -Σ over classes of (class = label ? log softmax x : 0).  `where`, not a product with the one-hot row: an infinite
# logarithm of a class that is not the label must not become NaN.  Labels are within range: inputs are validated.
def _cross_entropy(y: Node) -> Node:
    x, labels = y.inputs
    axis = x.type.rank - 1
    picked = b.where(b.one_hot_mask(labels, x.type.shape[axis]), b.log_softmax(x, axis), b.zeros_like(x))
    return b.neg(b.sum_axes(picked, (axis,)))


Decomposition = Callable[[Node], Node | tuple[Node, ...]]  # a tuple if the composite has several results

DECOMPOSITIONS: dict[str, Decomposition] = {
    "relu": _relu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "silu": _silu,
    "softplus": _softplus,
    "gelu": _gelu,
    "bce_with_logits": _bce_with_logits,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "cross_entropy": _cross_entropy,
    "layer_norm": layers.layer_norm,
    "layer_norm_grad": layers.layer_norm_grad,
    "rms_norm": layers.rms_norm,
    "rms_norm_grad": layers.rms_norm_grad,
    "group_norm": layers.group_norm,
    "group_norm_grad": layers.group_norm_grad,
    "batch_norm": layers.batch_norm,
    "batch_norm_grad": layers.batch_norm_grad,
    "dropout": layers.dropout,
    "attention": layers.attention,
    "attention_lse": layers.attention_lse,
    "attention_grad": layers.attention_grad,
}


def decomposition_of(node: Node, name: str | None = None) -> tuple[Node, ...]:
    """The decomposition of a composite, one node per result; all nodes get its name unless another is given."""
    with b.origin(node, name):
        parts = in_accumulation_types(node) if computes_in_half(node) else DECOMPOSITIONS[node.op](node)
    return parts if isinstance(parts, tuple) else (parts,)


def decomposition_over_leaves(node: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """(leaves, results): the decomposition over fresh inputs, for an analysis of the composite alone."""
    leaves = tuple(Node("input", (), at.InputAttrs(f"{i}", x.type)) for i, x in enumerate(node.inputs))
    return leaves, decomposition_of(Node(node.op, leaves, node.attrs))


# -- the passes --------------------------------------------------------------------------------------------------


def decompose(
    graph: IRGraph, keep: frozenset[str] = frozenset(), unless: Callable[[Node], bool] = lambda node: False
) -> IRGraph:
    """Replace every composite that is not in `keep` (ops with a kernel on the target) by its decomposition.

    A node in `keep` for which `unless(node)` is true is replaced too.
    """

    def lower(node: Node) -> Node | tuple[Node, ...]:
        if node.op not in DECOMPOSITIONS or (node.op in keep and not unless(node)):
            return node
        return decomposition_of(node, node.name or node.op)

    while (lowered := rewrite(graph, lower)) is not graph:  # a decomposition may itself use a composite
        graph = lowered
    return graph


def decompose_for(graph: IRGraph, target: Target) -> IRGraph:
    """Replace every composite that a target has no kernel for."""
    return decompose(graph, target.composites, lambda node: _has_wide_heads(node, target))


def _has_wide_heads(node: Node, target: Target) -> bool:
    """Are the heads of an attention wider than the target's routine supports?"""
    if not node.op.startswith("attention") or target.limits.widest_head is None:
        return False
    widths = [x.type.shape[-1] for x in node.inputs[:3]]
    size = node.inputs[0].type.dtype.size
    return any(not isinstance(w, int) or w * size > target.limits.widest_head for w in widths)


def lower_reductions(graph: IRGraph, target: Target) -> IRGraph:
    """Replace every sum and max over several axes by one per axis, the innermost (contiguous) axis first.

    Matrices that a target stores in blocks of columns are contiguous along columns: there the outer axis is first.
    """

    def lower(node: Node) -> Node:
        reduce = {"sum": b.sum_axes, "max": b.max_axes}.get(node.op)
        if reduce is None:
            return node
        axes = attrs_of(node, at.ReduceAttrs).axes
        if len(axes) == 1:
            return node
        (x,) = node.inputs
        outer_first = axes == (0, 1) and target.blocks_columns and _is_derived_from_products(x)
        with b.origin(node):
            for axis in (0, 0) if outer_first else reversed(axes):
                x = reduce(x, (axis,))
        return x

    return rewrite(graph, lower)


def _is_derived_from_products(x: Node) -> bool:
    """Is a matrix an elementwise function of products and states, such as the square of a weight's gradient?"""
    sources: dict[Node, None] = {}
    stack = [x] if x.type.rank == 2 and all(isinstance(extent, int) for extent in x.type.shape) else []
    while stack:
        node = stack.pop()
        if OPS[node.op].family is Family.POINTWISE:
            stack += [i for i in node.inputs if i.type.shape == x.type.shape]
        elif node.op != "expand":
            sources[node] = None
    return bool(sources) and all(n.op == "matmul" or n.is_state for n in sources)


def lower_ratio(graph: IRGraph) -> IRGraph:
    """Replace every ratio by a division, after the last pass that distinguishes them."""

    def lower(node: Node) -> Node:
        return Node("div", node.inputs, node.attrs, node.name, node.line) if node.op == "ratio" else node

    return rewrite(graph, lower)
