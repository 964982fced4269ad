"""The last rewrite before planning: explicit copies where a kernel needs memory laid out in a way that no view gives.

A copy is a cast to the same dtype.  Afterwards: every output and update is computed by an op of its own; a reshape
that reinterprets memory stands on something stored; a contraction's right operand has its columns contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import DType, TensorType
from wholestep.compiler.passes.rematerialize.late_readers import Again
from wholestep.compiler.plan.lower.convolution_ops import KERNELS, WEIGHTS, WINDOWS
from wholestep.compiler.plan.lower.routine_ops import (
    Assembled,
    has_contiguous_columns,
    is_call,
    is_loop_result,
    is_result,
)
from wholestep.compiler.plan.model.access import (
    VIEWS,
    Access,
    cuts_axes,
    identity,
    is_reinterpretation,
    repeats,
    resolve,
)

STORED_LEAVES = ops_with(Trait.STATE | Trait.GIVEN)


def is_state(node: Node) -> bool:
    return node.is_state


class HalfCopy(Node):
    """A state rounded to a half type, kept beside it for products: whoever updates the state writes both."""

    __slots__ = ()

    def __init__(self, state: Node, dtype: DType) -> None:
        # No op of the IR: it exists between here and the end of planning, as a view of its state.
        self.op, self.inputs, self.attrs, self.name, self.line = "half_copy", (state,), at.NONE, state.name, state.line
        self.result, self.host = TensorType(state.type.shape, dtype), False

    def with_inputs(self, inputs: Sequence[Node]) -> HalfCopy:
        (state,) = inputs
        return HalfCopy(state, self.type.dtype)


def is_generated(node: Node) -> bool:
    """Made on the fly wherever it is used; never in memory."""
    return node.host or node.op in ("iota", "random")


def copy_of(node: Node) -> Node:
    """A node that stores another one's value."""
    return _copy(node)


def _copy(node: Node) -> Node:
    copy = Node("cast", (node,), at.CastAttrs(node.type.dtype), node.name, node.line)
    copy.host = False  # in memory, even where it holds a scalar of the prologue
    return copy


class ReadableViews:
    """Which views the kernels of a backend read where they lie; anything else is copied before.

    These are the rules of a backend whose states lie in dense rows and whose kernels take any step along any axis.
    """

    def is_dense(self, type: TensorType) -> bool:
        """Does a state of this type lie in memory as dense rows?"""
        return True

    def has_steps(self, access: Access) -> bool:
        """Is an element of an operand found by steps along the axes?"""
        return _is_affine(access)

    def takes_right(self, access: Access, column: int, row: int) -> bool:
        """Is a contraction's right operand read in place, with its columns and rows along these axes?"""
        return True

    def takes_window(self, access: Access, fixed: Sequence[int]) -> bool:
        """Are images or a weight read in place?  `fixed` are the axes whose steps no size may change."""
        return _is_affine(access)

    def takes_call(self, access: Access, rank: int) -> bool:
        """Is the operand of a routine read in place?"""
        return has_contiguous_columns(access.index, rank - 1)

    def takes_half_rows(self) -> bool:
        """Is the half form of a bias, too, kept beside it for products?"""
        return True


def _is_affine(access: Access) -> bool:
    return all(i.over == 1 for i in access.index)


def _from_half_copy(node: Node) -> Node:
    """A right operand that is a matrix of state rounded to half, perhaps transposed, is read from the state's copy."""
    if node.op == "permute":
        inner = _from_half_copy(node.inputs[0])
        return node if inner is node.inputs[0] else node.with_inputs([inner])
    return _half_state(node) if node.type.rank == 2 else node


def _half_state(node: Node) -> Node:
    """A state that is rounded to half, as its copy."""
    rounds = node.op == "cast" and node.type.dtype.is_half and is_state(node.inputs[0])
    return HalfCopy(node.inputs[0], node.type.dtype) if rounds else node


def spread_bias(node: Node) -> Node | None:
    """The row of a half type that a node is, as a whole matrix in a wider one; None for another node."""
    spread = node.inputs[0] if isinstance(node, Again) and node.op == "cast" else node
    is_row = spread.op == "expand" and spread.inputs[0].type.rank == 1 and spread.type.dtype.is_half
    return spread.inputs[0] if is_row else None


def half_copy_under(node: Node) -> HalfCopy | None:
    """The copy of a state that a view is a view of."""
    while node.op in VIEWS and not isinstance(node, HalfCopy):
        (node,) = node.inputs
    return node if isinstance(node, HalfCopy) else None


class _Preparer:
    def __init__(self, rules: ReadableViews) -> None:
        self.rules = rules

    def stored(self, node: Node) -> Node:
        """The node itself if it will be in memory as dense rows, else a copy of it."""
        elsewhere = node.op in VIEWS or is_generated(node) or (is_state(node) and not self.rules.is_dense(node.type))
        return _copy(node) if elsewhere else node

    def operand(self, node: Node) -> Node:
        """A contraction's operand, or what is padded or concatenated: a view of something in memory."""
        access = resolve(node, identity(node.type.rank))
        return node if self.rules.has_steps(access) and not is_generated(access.base) else _copy(node)

    def window_operand(self, op: str, position: int, node: Node) -> Node:
        access = resolve(node, identity(node.type.rank))
        fixed = range(0 if position == KERNELS.get(op) else 1, node.type.rank)
        in_place = not is_generated(access.base) and self.rules.takes_window(access, fixed)
        return node if in_place else _copy(node)

    def call_operand(self, node: Node) -> Node:
        access = resolve(node, identity(node.type.rank))
        in_place = self.rules.takes_call(access, node.type.rank) and _is_affine(access)
        return node if in_place and not is_generated(access.base) else _copy(node)

    def matmul(self, node: Node) -> Node:
        a, b = node.inputs
        attrs, b = node.attrs, _from_half_copy(b)
        assert isinstance(attrs, at.MatmulAttrs)
        a, b, transpose_b = self.operand(a), self.operand(b), attrs.transpose_b
        rank = b.type.rank
        column, row = (rank - 2, rank - 1) if transpose_b else (rank - 1, rank - 2)
        if not self.rules.takes_right(resolve(b, identity(rank)), column, row):
            if transpose_b:
                b = Node("permute", (b,), at.PermuteAttrs((*range(rank - 2), rank - 1, rank - 2)), b.name, b.line)
            b, transpose_b = _copy(b), False
        flags = at.MatmulAttrs(attrs.transpose_a, transpose_b, attrs.accumulate)
        return type(node)("matmul", (a, b), flags, node.name, node.line)

    def prepare(self, node: Node) -> Node:
        if node.op == "reshape":
            (source,) = node.inputs
            if source.op == "reshape":
                return self.prepare(Node("reshape", source.inputs, node.attrs, node.name, node.line))
            if not is_reinterpretation(node) or (source.op in VIEWS and (cuts_axes(node) or repeats(node))):
                return node
            return node.with_inputs([self.stored(source)])
        if node.op == "matmul":
            return self.matmul(node)
        if isinstance(node, Again) and self.rules.takes_half_rows() and (row := spread_bias(node)) is not None:
            return node.with_inputs([node.inputs[0].with_inputs([_half_state(row)])])
        if node.op == "gather":
            table, index = node.inputs  # any layout of a state has rows
            return node.with_inputs([table if is_state(table) else self.stored(table), index])
        if node.op == "scatter_add":
            return node.with_inputs([self.stored(i) for i in node.inputs])
        if node.op in WINDOWS:
            return node.with_inputs([self.window_operand(node.op, i, x) for i, x in enumerate(node.inputs)])
        if node.op in ("pad", "concat"):
            return node.with_inputs([self.operand(i) for i in node.inputs])
        if node.op == "exchange":  # whole tensors in dense rows
            return node.with_inputs(
                [_copy(i) if is_state(i) or i.op == "input" else self.stored(i) for i in node.inputs]
            )
        return node.with_inputs([self.call_operand(i) for i in node.inputs]) if is_call(node) else node


def _stored_result(node: Node) -> Node:
    """A result must be the value of an op that stores it; a routine stores each value in one place."""
    moved = node.op in VIEWS or node.op in STORED_LEAVES or is_generated(node)
    in_one_place = is_result(node) or is_loop_result(node) or isinstance(node, Assembled)
    return _copy(node) if moved or node.op in WEIGHTS or in_one_place else node


def _output(node: Node) -> Node:
    """An output is written in its own shape by the op that computes it in another."""
    while node.op == "reshape" and _stored_result(node.inputs[0]) is node.inputs[0]:
        (node,) = node.inputs
    return _stored_result(node)


def prepare(graph: IRGraph, rules: ReadableViews) -> IRGraph:
    """The graph with its copies; an output is the op that computes it, perhaps in another shape."""
    new: dict[Node, Node] = {}
    preparer = _Preparer(rules)
    for n in graph.nodes:
        new[n] = preparer.prepare(n.with_inputs([new[i] for i in n.inputs]))
    kept = [u for u in graph.updates if not (is_state(u.node) and u.node.attrs.name == u.name)]  # type: ignore[attr-defined]
    return IRGraph(
        tuple(Output(o.name, _output(new[o.node])) for o in graph.outputs),
        tuple(Update(u.name, _stored_result(new[u.node])) for u in kept),
        tuple(new[i] for i in graph.inputs),
    )
