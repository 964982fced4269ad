"""The gradient table: one row per op.

A rule takes a node and the upstream gradient of its output, and returns one gradient per input (None: none).  Rules
build ordinary nodes, so second derivatives need nothing more.  They use the node's output if the formula can: it is in
memory anyway, while its inputs may not be.

Inputs and results that are not floats (indices, labels, conditions) never have a gradient, even if the row has a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.autodiff import composites, pointwise, structural
from wholestep.compiler.passes.autodiff.pointwise import Gradients
from wholestep.compiler.passes.autodiff.scan import read_positions
from wholestep.compiler.passes.lower.decompose import DECOMPOSITIONS, decomposition_over_leaves
from wholestep.compiler.passes.lower.layer_decompositions import attention_lse_gradients

Rule = Callable[[Node, Node], Gradients]


@dataclass(frozen=True)
class Blocked:
    """No gradient flows through this op: its result counts as constant.  `reason` follows "it ..."."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """An upstream gradient of this op is an error of the user's program."""

    reason: str


@dataclass(frozen=True)
class ThroughDecomposition:
    """The gradient of an op is derived from its decomposition."""


Row = Rule | Blocked | Refused | ThroughDecomposition


def _expanded_before(node: Node, upstream: Node) -> Gradients:
    raise AssertionError(f"{node.op} must be expanded or inlined before it is differentiated")


def _read_through_items(node: Node, upstream: Node) -> Gradients:
    raise AssertionError(f"{node.op} has several results; its gradients are those of its items")


_LEAF = Blocked("is a leaf of the graph")
_PIECEWISE_CONSTANT = Blocked("is piecewise constant")
_BOOLEAN = Blocked("returns booleans, not numbers")
_INTEGER = Blocked("returns integers, which have no gradient")

GRADIENTS: dict[str, Row] = {
    "input": _LEAF,
    "parameter": _LEAF,
    "state": _LEAF,
    "constant": _LEAF,
    "scalar": _LEAF,
    "size": _LEAF,
    "iota": _LEAF,
    "random": _LEAF,
    "exp": pointwise.exp_rule,
    "exp2": pointwise.exp2_rule,
    "expm1": pointwise.expm1_rule,
    "log": pointwise.log_rule,
    "log2": pointwise.log2_rule,
    "log1p": pointwise.log1p_rule,
    "sin": pointwise.sin_rule,
    "cos": pointwise.cos_rule,
    "sqrt": pointwise.sqrt_rule,
    "recip": pointwise.recip_rule,
    "erf": pointwise.erf_rule,
    "floor": _PIECEWISE_CONSTANT,
    "atan": pointwise.atan_rule,
    "neg": pointwise.neg_rule,
    "abs": pointwise.abs_rule,
    "sign": _PIECEWISE_CONSTANT,
    "add": pointwise.add_rule,
    "sub": pointwise.sub_rule,
    "mul": pointwise.mul_rule,
    "maximum": pointwise.maximum_rule,
    "minimum": pointwise.minimum_rule,
    "mod": Refused("its derivative does not exist at jumps, and does not depend on the modulus elsewhere"),
    "floor_divide": _INTEGER,
    "bitwise_and": _INTEGER,
    "bitwise_or": _INTEGER,
    "bitwise_xor": _INTEGER,
    "left_shift": _INTEGER,
    "right_shift": _INTEGER,
    "div": pointwise.div_rule,
    "pow": pointwise.pow_rule,
    "less": _BOOLEAN,
    "less_equal": _BOOLEAN,
    "equal": _BOOLEAN,
    "not_equal": _BOOLEAN,
    "logical_and": _BOOLEAN,
    "logical_or": _BOOLEAN,
    "logical_not": _BOOLEAN,
    "where": pointwise.where_rule,
    "cast": pointwise.cast_rule,
    "sum": structural.sum_rule,
    "max": structural.max_rule,
    "argmax": Blocked("returns an index, not a value"),
    "reshape": structural.reshape_rule,
    "permute": structural.permute_rule,
    "expand": structural.expand_rule,
    "slice": structural.slice_rule,
    "pad": structural.pad_rule,
    "concat": structural.concat_rule,
    "gather": structural.gather_rule,
    "scatter_add": structural.scatter_add_rule,
    "write_rows": structural.write_rows_rule,
    "matmul": structural.matmul_rule,
    "conv2d": structural.conv2d_rule,
    "conv2d_grad_input": structural.conv2d_grad_input_rule,
    "conv2d_grad_weight": structural.conv2d_grad_weight_rule,
    "max_pool2d": structural.max_pool2d_rule,
    "max_pool2d_index": Blocked("returns a position, not a value"),
    "max_pool2d_grad": structural.max_pool2d_grad_rule,
    "max_pool2d_pick": structural.max_pool2d_pick_rule,
    "pooled_grad_weight": _expanded_before,
    "pooled_grad_input": _expanded_before,
    "ratio": pointwise.div_rule,
    "stop_gradient": Blocked("blocks every gradient on purpose"),
    "by_mode": pointwise.by_mode_rule,
    "gradient": _expanded_before,
    "item": ThroughDecomposition(),
    "call": _expanded_before,
    "scan": _read_through_items,  # handled by scan.py, for all results at once
    "custom_gradient": _read_through_items,  # handled by reverse.py, for all results at once
    "all_reduce": structural.all_reduce_rule,
    "reduce_scatter": structural.reduce_scatter_rule,
    "all_gather": structural.all_gather_rule,
    "broadcast": Blocked("does not depend on the values of other ranks"),
    "exchange": _expanded_before,
    "relu": composites.relu_rule,
    "sigmoid": composites.sigmoid_rule,
    "tanh": composites.tanh_rule,
    "silu": composites.silu_rule,
    "softplus": composites.softplus_rule,
    "gelu": composites.gelu_rule,
    "bce_with_logits": composites.bce_rule,
    "softmax": composites.softmax_rule,
    "log_softmax": composites.log_softmax_rule,
    "logsumexp": composites.logsumexp_rule,
    "cross_entropy": composites.cross_entropy_rule,
    "layer_norm": composites.norm_rule,
    "layer_norm_grad": _read_through_items,
    "rms_norm": composites.norm_rule,
    "rms_norm_grad": _read_through_items,
    "group_norm": composites.norm_rule,
    "group_norm_grad": _read_through_items,
    "batch_norm": composites.norm_rule,
    "batch_norm_grad": _read_through_items,
    "dropout": composites.dropout_rule,
    "attention": composites.attention_rule,
    "attention_lse": attention_lse_gradients,
    "attention_grad": _read_through_items,
}


def source(node: Node) -> Node:
    """The node itself; for an item, the node with several results that it reads."""
    return node.inputs[0] if node.op == "item" else node


def operands(node: Node) -> tuple[Node, ...]:
    """The nodes that receive the gradients of a node: its inputs; for an item, the inputs of the composite it reads."""
    return source(node).inputs


def propagates_gradient(node: Node, position: int) -> bool:
    """Does the gradient of this node propagate to its input at `position`?"""
    return blocking_reason(node, position) is None


def blocking_reason(node: Node, position: int) -> str | None:
    """Why no gradient reaches an input, as a verb phrase whose subject is the op; None if a gradient reaches it."""
    row, operand_type = GRADIENTS[node.op], operands(node)[position].result
    if isinstance(row, Blocked):
        return row.reason
    if isinstance(operand_type, TensorType) and not operand_type.dtype.is_float:
        return f"takes {operand_type.dtype} here"
    if isinstance(node.result, TensorType) and not node.result.dtype.is_float:
        return f"returns {node.result.dtype}"
    if node.op == "by_mode" and position == 1:
        return "reads it in evaluation only"
    if source(node).op == "custom_gradient":
        arguments = attrs_of(source(node), at.CustomGradientAttrs).arguments
        return None if position in arguments else "has a custom gradient, which returns none for it"
    if node.op == "item" and node.inputs[0].op in DECOMPOSITIONS and not _is_read(node, position):
        return "returns a gradient that does not depend on it"
    if node.op == "item" and node.inputs[0].op == "scan":
        index = attrs_of(node, at.ItemAttrs).index
        return (
            None if position in read_positions(node.inputs[0], index) else "returns a result that does not depend on it"
        )
    return None


def _is_read(item: Node, position: int) -> bool:
    """Does this result of a composite depend on its input at `position`?"""
    leaves, results = decomposition_over_leaves(item.inputs[0])
    return leaves[position] in toposort([results[attrs_of(item, at.ItemAttrs).index]])
