"""Materialization, the last rewrite before fusion: inserts copies if a kernel cannot read a view in place.

A copy is a cast to the same dtype.  Invariants afterwards: every output and update is computed by an op of its own; the
input of a reshape that reinterprets memory is stored; the right operand of a contraction has contiguous columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import DType, TensorType
from wholestep.compiler.passes.rematerialize.copies import is_in_reader
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
    identity,
    is_broadcast_reshape,
    is_reinterpretation,
    resolve,
    splits_axes_only,
)

STORED_LEAVES = ops_with(Trait.STATE | Trait.GIVEN)


def is_state(node: Node) -> bool:
    return node.is_state


class HalfCopy(Node):
    """A state rounded to a half type, stored in addition to it for products: an update of the state writes both."""

    __slots__ = ()

    def __init__(self, state: Node, dtype: DType) -> None:
        # This op is not part of the IR: it exists only while planning, as a view of its state.
        self.op, self.inputs, self.attrs, self.name, self.line = "half_copy", (state,), at.NONE, state.name, state.line
        self.result, self.host = TensorType(state.type.shape, dtype), False

    def with_inputs(self, inputs: Sequence[Node]) -> HalfCopy:
        (state,) = inputs
        return HalfCopy(state, self.type.dtype)


def is_generated(node: Node) -> bool:
    """Is the value generated in each kernel that reads it, and never stored?"""
    return node.host or node.op in ("iota", "random")


def stored_copy(node: Node) -> Node:
    """A copy: a node that stores the value of another node."""
    return _copy(node)


def _copy(node: Node) -> Node:
    copy = Node("cast", (node,), at.CastAttrs(node.type.dtype), node.name, node.line)
    copy.host = False  # the copy is in memory, even if its source is computed in the scalar prologue
    return copy


class ReadableViews:
    """The views that the kernels of a backend read in place; all other views are copied first.

    These are the rules of a backend that stores states in dense rows and whose kernels accept any stride on any axis.
    """

    def is_dense(self, type: TensorType) -> bool:
        """Is a state of this type stored in dense rows?"""
        return True

    def has_steps(self, access: Access) -> bool:
        """Is an operand addressed by one stride per axis?"""
        return _is_affine(access)

    def takes_right(self, access: Access, column: int, row: int) -> bool:
        """Is a contraction's right operand, with its columns and rows along these axes, read in place?"""
        return True

    def takes_window(self, access: Access, fixed: Sequence[int]) -> bool:
        """Are images or a weight read in place?  `fixed` are the axes whose strides must not depend on a size."""
        return _is_affine(access)

    def takes_call(self, access: Access, rank: int) -> bool:
        """Is the operand of a routine read in place?"""
        return has_contiguous_columns(access.index, rank - 1)

    def takes_half_rows(self) -> bool:
        """Does a bias, like a matrix, have a stored half-precision copy for products?"""
        return True


def _is_affine(access: Access) -> bool:
    return all(i.over == 1 for i in access.index)


def _from_half_copy(node: Node) -> Node:
    """Let a right operand that is a state rounded to half, possibly transposed, read the state's half copy."""
    if node.op == "permute":
        inner = _from_half_copy(node.inputs[0])
        return node if inner is node.inputs[0] else node.with_inputs([inner])
    if node.op == "reshape" and not is_reinterpretation(node):  # the weight of a convolution of one pixel
        inner = _from_half_weight(node.inputs[0])
        return node if inner is node.inputs[0] else node.with_inputs([inner])
    return _half_state(node) if node.type.rank == 2 else node


def _half_state(node: Node) -> Node:
    """The half copy of a state that the node rounds; any other node unchanged."""
    rounds = node.op == "cast" and node.type.dtype.is_half and is_state(node.inputs[0])
    return HalfCopy(node.inputs[0], node.type.dtype) if rounds else node


def _from_half_weight(node: Node) -> Node:
    """Let a weight of images that is a state rounded to half, perhaps with its axes reordered, read the half copy."""
    if node.op == "permute":
        inner = _from_half_weight(node.inputs[0])
        return node if inner is node.inputs[0] else node.with_inputs([inner])
    if node.op == "cast" and node.inputs[0].op == "permute" and _keeps_order(node.inputs[0]):
        (view,) = node.inputs
        inner = _half_state(Node("cast", view.inputs, node.attrs, node.name, node.line))
        return view.with_inputs([inner]) if isinstance(inner, HalfCopy) else node
    return _half_state(node)


def _keeps_order(view: Node) -> bool:
    """Do the elements of a permuted value keep their order in memory, because only axes of size 1 change places?"""
    order = [d for d in attrs_of(view, at.PermuteAttrs).order if view.inputs[0].type.shape[d] != 1]
    return order == sorted(order)


def broadcast_half_bias(node: Node) -> Node | None:
    """The half-precision bias row that a node broadcasts to a matrix, perhaps widened; None for other nodes."""
    spread = node.inputs[0] if is_in_reader(node) and node.op == "cast" else node
    is_row = spread.op == "expand" and spread.inputs[0].type.rank == 1 and spread.type.dtype.is_half
    return spread.inputs[0] if is_row else None


def half_copy_under(node: Node) -> HalfCopy | None:
    """The half copy that a node is a view of, if any."""
    while node.op in VIEWS and not isinstance(node, HalfCopy):
        (node,) = node.inputs
    return node if isinstance(node, HalfCopy) else None


class _Preparer:
    """Rewrites one node at a time, by the rules of the backend."""

    def __init__(self, rules: ReadableViews) -> None:
        self.rules = rules
        self.copies: dict[Node, Node] = {}  # operands of routines -> their copies: ops of one call must share operands

    def in_rows(self, node: Node) -> Node:
        """The node itself if it will be stored in dense rows, else a copy of it."""
        needs_copy = node.op in VIEWS or is_generated(node) or (is_state(node) and not self.rules.is_dense(node.type))
        return _copy(node) if needs_copy else node

    def operand(self, node: Node) -> Node:
        """The operand of a contraction, pad or concat: a strided view of a stored value, else a copy."""
        access = resolve(node, identity(node.type.rank))
        return node if self.rules.has_steps(access) and not is_generated(access.base) else _copy(node)

    def window_operand(self, op: str, position: int, node: Node) -> Node:
        if position == KERNELS.get(op) and self.rules.takes_half_rows():
            node = _from_half_weight(node)
        access = resolve(node, identity(node.type.rank))
        fixed = range(0 if position == KERNELS.get(op) else 1, node.type.rank)
        in_place = not is_generated(access.base) and self.rules.takes_window(access, fixed)
        return node if in_place else _copy(node)

    def call_operand(self, node: Node) -> Node:
        access = resolve(node, identity(node.type.rank))
        in_place = self.rules.takes_call(access, node.type.rank) and _is_affine(access)
        if in_place and not is_generated(access.base):
            return node
        if node not in self.copies:
            self.copies[node] = self._copy_of_rows(node)
        return self.copies[node]

    def _copy_of_rows(self, node: Node) -> Node:
        """A copy; of a value that is broadcast along outer axes only, the broadcast of a copy."""
        if node.op == "expand" and attrs_of(node, at.ExpandAttrs).axes[-1:] == (node.type.rank - 1,):
            return node.with_inputs([_copy(node.inputs[0])])
        return _copy(node)

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
        return node.copy((a, b), flags)

    def prepare(self, node: Node) -> Node:
        if node.op == "reshape":
            (source,) = node.inputs
            if source.op == "reshape":
                return self.prepare(Node("reshape", source.inputs, node.attrs, node.name, node.line))
            if not is_reinterpretation(node) or (
                source.op in VIEWS and (splits_axes_only(node) or is_broadcast_reshape(node))
            ):
                return node
            return node.with_inputs([self.in_rows(source)])
        if node.op == "matmul":
            return self.matmul(node)
        if is_in_reader(node) and self.rules.takes_half_rows() and (row := broadcast_half_bias(node)) is not None:
            return node.with_inputs([node.inputs[0].with_inputs([_half_state(row)])])
        if node.op == "gather":
            table, index = node.inputs  # rows can be gathered from any layout of a state
            return node.with_inputs([table if is_state(table) else self.in_rows(table), index])
        if node.op == "scatter_add":
            return node.with_inputs([self.in_rows(i) for i in node.inputs])
        if node.op in WINDOWS:
            return node.with_inputs([self.window_operand(node.op, i, x) for i, x in enumerate(node.inputs)])
        if node.op in ("pad", "concat"):
            return node.with_inputs([self.operand(i) for i in node.inputs])
        if node.op == "exchange":  # a collective sends complete tensors in dense rows
            return node.with_inputs(
                [_copy(i) if is_state(i) or i.op == "input" else self.in_rows(i) for i in node.inputs]
            )
        return node.with_inputs([self.call_operand(i) for i in node.inputs]) if is_call(node) else node


def _stored_result(node: Node) -> Node:
    """The node, or a copy of it if no kernel can store the value as a result: views, leaves, or a second store."""
    not_computed = node.op in VIEWS or node.op in STORED_LEAVES or is_generated(node)
    stored_once = is_result(node) or is_loop_result(node) or isinstance(node, Assembled)
    return _copy(node) if not_computed or node.op in WEIGHTS or stored_once else node


def _output(node: Node) -> Node:
    """Drop reshapes of an output: the op that computes it stores it in the output's shape."""
    while node.op == "reshape" and _stored_result(node.inputs[0]) is node.inputs[0]:
        (node,) = node.inputs
    return _stored_result(node)


def materialize_copies(graph: IRGraph, rules: ReadableViews) -> IRGraph:
    """The graph with the copies that its kernels need; an output is the op that computes it, perhaps reshaped."""
    new: dict[Node, Node] = {}
    preparer = _Preparer(rules)
    for n in graph.nodes:
        new[n] = preparer.prepare(n.with_inputs([new[i] for i in n.inputs]))
    updates = [u for u in graph.updates if not (is_state(u.node) and u.node.attrs.name == u.name)]  # type: ignore[attr-defined]
    return IRGraph(
        tuple(Output(o.name, _output(new[o.node])) for o in graph.outputs),
        tuple(Update(u.name, _stored_result(new[u.node])) for u in updates),
        tuple(new[i] for i in graph.inputs),
    )
