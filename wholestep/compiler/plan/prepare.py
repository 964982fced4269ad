"""The last rewrite before planning: explicit copies where a kernel needs memory laid out in a way that no view gives.

A copy is a cast to the same dtype.  Afterwards: every output and update is computed by an op of its own; a reshape
that reinterprets memory stands on something stored; a contraction's right operand has its columns contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Graph, Node, Output, Update
from wholestep.compiler.ir.ops import Trait, having
from wholestep.compiler.ir.types import DType, TensorType
from wholestep.compiler.plan.access import (
    VIEWS,
    Access,
    cuts_axes,
    identity,
    is_reinterpretation,
    linear,
    repeats,
    resolve,
)
from wholestep.compiler.plan.call import (
    Assembled,
    has_contiguous_columns,
    is_call,
    is_loop_result,
    is_result,
    keeps_panels,
)
from wholestep.compiler.plan.kernel import Layout
from wholestep.compiler.plan.layout import state_layout
from wholestep.compiler.plan.window_ops import KERNELS, WEIGHTS, WINDOWS

STORED_LEAVES = having(Trait.STATE | Trait.GIVEN)


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


def copied(node: Node) -> Node:
    """A node that stores another one's value."""
    return _copy(node)


def _copy(node: Node) -> Node:
    copy = Node("cast", (node,), at.CastAttrs(node.type.dtype), node.name, node.line)
    copy.host = False  # in memory, even where it holds a scalar of the prologue
    return copy


def _stored(node: Node) -> Node:
    """The node itself if it will be in memory as dense rows, else a copy of it."""
    paneled = is_state(node) and state_layout(node.type) is Layout.PANELS
    return _copy(node) if node.op in VIEWS or is_generated(node) or paneled else node


def _operand(node: Node) -> Node:
    """A contraction's operand may be any view of something in memory, but a part of a panel has no stride."""
    access = resolve(node, identity(node.type.rank))
    paneled = is_state(access.base) and state_layout(access.base.type) is Layout.PANELS
    in_steps = _is_affine(access) and not (paneled and access.index[-1].plain is None)
    return node if in_steps and not is_generated(access.base) else _copy(node)


def _is_affine(access: Access) -> bool:
    return all(i.over == 1 for i in access.index)


def _window_operand(op: str, position: int, node: Node) -> Node:
    """Any view of something that lies in memory as dense rows, as long as its steps are numbers.

    The step from image to image may depend on a size; every other one is a literal in a tile of machine code.
    """
    access = resolve(node, identity(node.type.rank))
    paneled = is_state(access.base) and state_layout(access.base.type) is Layout.PANELS
    if not _is_affine(access) or is_generated(access.base) or paneled:
        return _copy(node)
    steps = dict(linear(access.index, access.shape).terms)
    fixed = range(0 if position == KERNELS.get(op) else 1, node.type.rank)
    return node if all(isinstance(steps.get(a, 0), int) for a in fixed) else _copy(node)


def right_operand_is_direct(node: Node, transposed: bool) -> bool:
    """Are the columns of a right operand contiguous in memory, or those of a state's stored transpose?"""
    rank = node.type.rank
    access = resolve(node, identity(rank))
    column, row = (rank - 2, rank - 1) if transposed else (rank - 1, rank - 2)
    plain = [i.plain for i in access.index]
    if plain[-1:] == [column]:
        return True
    return is_state(access.base) and access.shape == access.base.type.shape and plain == [column, row]


def _from_half_copy(node: Node) -> Node:
    """A right operand that is a matrix of state rounded to half, perhaps transposed, is read from the state's copy."""
    if node.op == "permute":
        inner = _from_half_copy(node.inputs[0])
        return node if inner is node.inputs[0] else node.with_inputs([inner])
    rounds = node.op == "cast" and node.type.dtype.is_half and node.type.rank == 2 and is_state(node.inputs[0])
    return HalfCopy(node.inputs[0], node.type.dtype) if rounds else node


def _matmul(node: Node) -> Node:
    a, b = node.inputs
    attrs = node.attrs
    b = _from_half_copy(b)
    assert isinstance(attrs, at.MatmulAttrs)
    a, b, transpose_b = _operand(a), _operand(b), attrs.transpose_b
    if not right_operand_is_direct(b, transpose_b):
        rank = b.type.rank
        if transpose_b:
            b = Node("permute", (b,), at.PermuteAttrs((*range(rank - 2), rank - 1, rank - 2)), b.name, b.line)
        b, transpose_b = _copy(b), False
    flags = at.MatmulAttrs(attrs.transpose_a, transpose_b, attrs.accumulate)
    return Node("matmul", (a, b), flags, node.name, node.line)


def _prepare(node: Node) -> Node:
    if node.op == "reshape":
        (source,) = node.inputs
        if source.op == "reshape":
            return _prepare(Node("reshape", source.inputs, node.attrs, node.name, node.line))
        if not is_reinterpretation(node) or (source.op in VIEWS and (cuts_axes(node) or repeats(node))):
            return node
        return node.with_inputs([_stored(source)])
    if node.op == "matmul":
        return _matmul(node)
    if node.op == "gather":
        table, index = node.inputs
        return node.with_inputs([table if is_state(table) else _stored(table), index])  # panels have rows too
    if node.op == "scatter_add":
        return node.with_inputs([_stored(i) for i in node.inputs])
    if node.op in WINDOWS:
        return node.with_inputs([_window_operand(node.op, i, x) for i, x in enumerate(node.inputs)])
    if node.op in ("pad", "concat"):
        return node.with_inputs([_operand(i) for i in node.inputs])
    return node.with_inputs([_call_operand(i) for i in node.inputs]) if is_call(node) else node


def _call_operand(node: Node) -> Node:
    """A routine reads rows of consecutive elements, or panels of them."""
    access, rank = resolve(node, identity(node.type.rank)), node.type.rank
    paneled = is_state(access.base) and state_layout(access.base.type) is Layout.PANELS
    in_place = keeps_panels(access.index, rank) if paneled else has_contiguous_columns(access.index, rank - 1)
    return node if in_place and _is_affine(access) and not is_generated(access.base) else _copy(node)


def _computed(node: Node) -> Node:
    """A result must be the value of an op that stores it; a routine stores each value in one place."""
    moved = node.op in VIEWS or node.op in STORED_LEAVES or is_generated(node)
    in_one_place = is_result(node) or is_loop_result(node) or isinstance(node, Assembled)
    return _copy(node) if moved or node.op in WEIGHTS or in_one_place else node


def _output(node: Node) -> Node:
    """An output is written in its own shape by the op that computes it in another."""
    while node.op == "reshape" and _computed(node.inputs[0]) is node.inputs[0]:
        (node,) = node.inputs
    return _computed(node)


def prepare(graph: Graph) -> Graph:
    """The graph with its copies; an output is the op that computes it, perhaps in another shape."""
    new: dict[Node, Node] = {}
    for n in graph.nodes:
        new[n] = _prepare(n.with_inputs([new[i] for i in n.inputs]))
    kept = [u for u in graph.updates if not (is_state(u.node) and u.node.attrs.name == u.name)]  # type: ignore[attr-defined]
    return Graph(
        tuple(Output(o.name, _output(new[o.node])) for o in graph.outputs),
        tuple(Update(u.name, _computed(new[u.node])) for u in kept),
        tuple(new[i] for i in graph.inputs),
    )
