"""Rows that write elementwise ops, reductions and movement as ONNX operators, with ONNX's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.types import Extent, Shape, boolean, float64, product
from wholestep.errors import GraphError
from wholestep.interop.onnx.write.emitter import OnnxEmitter, kind_of

Row = Callable[[OnnxEmitter, ir.Node], str]
LAZY = frozenset({"constant", "expand", "iota", "size", "scalar"})  # written only where they are read
ALIASES = frozenset({"stop_gradient"})  # the same value as their input


def value(e: OnnxEmitter, node: ir.Node) -> str:
    """The name of a value, broadcast to its full shape."""
    name = e.name_of(node)
    if name is None:
        if node.op not in LAZY:
            raise AssertionError(f"{node} has not been written yet")
        name = e.names[node] = LAZY_ROWS[node.op](e, node)
    return name


def loose(e: OnnxEmitter, node: ir.Node) -> tuple[str, Shape]:
    """The name and shape of a value that may still have to be broadcast to the node's shape."""
    if node.op != "expand" or e.name_of(node) is not None:
        return value(e, node), node.type.shape
    attrs, (x,) = attrs_of(node, at.ExpandAttrs), node.inputs
    shape = tuple(attrs.shape[d] if d in attrs.axes else 1 for d in range(len(attrs.shape)))
    while shape and shape[0] == 1 and len(shape) > x.type.rank:
        shape = shape[1:]
    name, own_shape = loose(e, x) if not _moves(x, shape) else (value(e, x), x.type.shape)
    return (name if own_shape == shape else e.reshape(name, shape)), shape


def _moves(x: ir.Node, shape: Shape) -> bool:
    return x.op == "expand" and x.type.shape != shape


def broadcast(e: OnnxEmitter, nodes: Sequence[ir.Node], shape: Shape) -> list[str]:
    """Values that broadcast together to a shape."""
    parts = [loose(e, n) for n in nodes]
    rank = len(shape)
    for d in range(rank):
        column = [s[d - rank + len(s)] for _, s in parts if d - rank + len(s) >= 0]
        if shape[d] not in column:
            return [value(e, nodes[0]), *(name for name, _ in parts[1:])]
    return [name for name, _ in parts]


# -- leaves ------------------------------------------------------------------------------------------------------


def _constant(e: OnnxEmitter, node: ir.Node) -> str:
    return e.constant(attrs_of(node, at.ConstantAttrs).array.value)


def _expand(e: OnnxEmitter, node: ir.Node) -> str:
    name, shape = loose(e, node)
    return name if shape == node.type.shape else e.add("Expand", [name, e.shape(node.type.shape)])


def _iota(e: OnnxEmitter, node: ir.Node) -> str:
    a = attrs_of(node, at.IotaAttrs)
    return e.own("iota", [e.shape(a.type.shape)], {"axis": a.axis, "dtype": kind_of(a.type.dtype)})


def _size(e: OnnxEmitter, node: ir.Node) -> str:
    length = e.reshape(e.extent(attrs_of(node, at.SizeAttrs).extent), ())
    return e.cast(length, float64)


def _scalar(e: OnnxEmitter, node: ir.Node) -> str:
    return e.constant(np.asarray(attrs_of(node, at.ScalarAttrs).default, np.float64))


LAZY_ROWS: dict[str, Row] = {
    "constant": _constant,
    "expand": _expand,
    "iota": _iota,
    "size": _size,
    "scalar": _scalar,
}

# -- each element ------------------------------------------------------------------------------------------------

UNARY = {
    "exp": "Exp",
    "log": "Log",
    "sin": "Sin",
    "cos": "Cos",
    "sqrt": "Sqrt",
    "recip": "Reciprocal",
    "erf": "Erf",
    "floor": "Floor",
    "neg": "Neg",
    "abs": "Abs",
    "sign": "Sign",
    "atan": "Atan",
    "logical_not": "Not",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softplus": "Softplus",
}
BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "ratio": "Div",
    "pow": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "equal": "Equal",
    "logical_and": "And",
    "logical_or": "Or",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
}
# ops written as the function of the same name in functions.py
OWN = ("exp2", "expm1", "log2", "log1p", "silu", "bce_with_logits")


def _unary(e: OnnxEmitter, node: ir.Node) -> str:
    name, shape = loose(e, node.inputs[0])
    name = name if shape == node.type.shape else value(e, node.inputs[0])
    return e.add(UNARY[node.op], [name]) if node.op in UNARY else e.own(node.op, [name])


def _binary(e: OnnxEmitter, node: ir.Node) -> str:
    return e.add(BINARY[node.op], broadcast(e, node.inputs, node.type.shape))


def _compare(e: OnnxEmitter, node: ir.Node) -> str:
    """x < y and x <= y; of booleans, which ONNX cannot compare, ¬x ∧ y and ¬x ∨ y"""
    if node.inputs[0].type.dtype != boolean:
        return _binary(e, node)
    x, y = broadcast(e, node.inputs, node.type.shape)
    return e.add("And" if node.op == "less" else "Or", [e.add("Not", [x]), y])


def _own(e: OnnxEmitter, node: ir.Node) -> str:
    return e.own(node.op, [value(e, i) for i in node.inputs])


def _not_equal(e: OnnxEmitter, node: ir.Node) -> str:
    return e.add("Not", [e.add("Equal", broadcast(e, node.inputs, node.type.shape))])


def _where(e: OnnxEmitter, node: ir.Node) -> str:
    mask, x, y = broadcast(e, node.inputs, node.type.shape)
    if node.type.dtype != boolean:
        return e.add("Where", [mask, x, y])
    # onnxruntime does not implement Where for booleans.
    return e.add("Or", [e.add("And", [mask, x]), e.add("And", [e.add("Not", [mask]), y])])


def _cast(e: OnnxEmitter, node: ir.Node) -> str:
    (x,) = node.inputs
    return value(e, x) if x.type.dtype == node.type.dtype else e.cast(value(e, x), node.type.dtype)


def _mod(e: OnnxEmitter, node: ir.Node) -> str:
    x, y = broadcast(e, node.inputs, node.type.shape)
    return e.own("mod", [x, y]) if node.type.dtype.is_float else e.add("Mod", [x, y])


def _shift(e: OnnxEmitter, node: ir.Node) -> str:
    raise GraphError(f"{node.op} of signed integers has no ONNX operator.")


def _floor_divide(e: OnnxEmitter, node: ir.Node) -> str:
    x, y = broadcast(e, node.inputs, node.type.shape)
    rest = e.add("Mod", [x, y])  # has the sign of the divisor; x - rest divides exactly
    return e.add("Div", [e.add("Sub", [x, rest]), y])


# -- reductions and products -------------------------------------------------------------------------------------


def _sum(e: OnnxEmitter, node: ir.Node) -> str:
    a, (x,) = attrs_of(node, at.SumAttrs), node.inputs
    name = value(e, x) if x.type.dtype == a.accumulate else e.cast(value(e, x), a.accumulate)
    return e.add("ReduceSum", [name, e.constant(list(a.axes))], {"keepdims": 0})


def _ratio(e: OnnxEmitter, node: ir.Node) -> str:
    """A quotient; a mean over axes, as `Tensor.mean` records it, becomes ReduceMean."""
    above, below = node.inputs
    total = above.inputs[0] if above.op == "reshape" else above
    if total.op != "sum" or total.type.dtype != total.inputs[0].type.dtype:
        return _binary(e, node)
    axes, (x,) = attrs_of(total, at.SumAttrs).axes, total.inputs
    with_axes = tuple(1 if d in axes else n for d, n in enumerate(x.type.shape))
    if _count(below) != product(x.type.shape[d] for d in axes) or node.type.shape not in (total.type.shape, with_axes):
        return _binary(e, node)
    keep = int(above.op == "reshape")
    return e.add("ReduceMean", [value(e, x), e.constant(list(axes))], {"keepdims": keep})


def _count(node: ir.Node) -> Extent | None:
    """The value of a divisor that is a count of elements; None for other divisors."""
    while node.op in ("expand", "cast", "reshape"):
        node = node.inputs[0]
    if isinstance(node.attrs, at.SizeAttrs):
        return node.attrs.extent
    if isinstance(node.attrs, at.ConstantAttrs) and node.type.rank == 0:
        number = float(node.attrs.array.value)
        return int(number) if number == int(number) else None
    return None


def _max(e: OnnxEmitter, node: ir.Node) -> str:
    a = attrs_of(node, at.MaxAttrs)
    return e.add("ReduceMax", [value(e, node.inputs[0]), e.constant(list(a.axes))], {"keepdims": 0})


def _argmax(e: OnnxEmitter, node: ir.Node) -> str:
    return e.own("argmax", [value(e, node.inputs[0])], {"axis": attrs_of(node, at.ArgmaxAttrs).axis})


def matmul_operands(e: OnnxEmitter, node: ir.Node) -> list[str]:
    a = attrs_of(node, at.MatmulAttrs)
    return [_operand(e, x, flag) for x, flag in zip(node.inputs, (a.transpose_a, a.transpose_b))]


def _operand(e: OnnxEmitter, x: ir.Node, swapped: bool) -> str:
    # MatMul broadcasts the matrix if all matrices of the stack are the same.
    name, shape = loose(e, x)
    if len(shape) < 2 or shape[-2:] != x.type.shape[-2:]:
        name, shape = value(e, x), x.type.shape
    if not swapped:
        return name
    order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    return e.add("Transpose", [name], {"perm": order})


def _matmul(e: OnnxEmitter, node: ir.Node) -> str:
    both = matmul_operands(e, node)
    shapes = [loose(e, x)[1][:-2] for x in node.inputs]
    if all(s != node.type.shape[:-2] for s in shapes):
        both[0] = _operand_whole(e, node)
    out = e.add("MatMul", both)
    a = attrs_of(node, at.MatmulAttrs)
    return out if a.accumulate == node.inputs[0].type.dtype else e.cast(out, a.accumulate)


def _operand_whole(e: OnnxEmitter, node: ir.Node) -> str:
    x, name = node.inputs[0], value(e, node.inputs[0])
    order = [*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2]
    return e.add("Transpose", [name], {"perm": order}) if attrs_of(node, at.MatmulAttrs).transpose_a else name


# -- movement ----------------------------------------------------------------------------------------------------


def _reshape(e: OnnxEmitter, node: ir.Node) -> str:
    (x,) = node.inputs
    return e.reshape(value(e, x), node.type.shape)


def _permute(e: OnnxEmitter, node: ir.Node) -> str:
    return e.add("Transpose", [value(e, node.inputs[0])], {"perm": list(attrs_of(node, at.PermuteAttrs).order)})


def _slice(e: OnnxEmitter, node: ir.Node) -> str:
    a, (x,) = attrs_of(node, at.SliceAttrs), node.inputs
    axes = [
        d for d, (lo, hi, k) in enumerate(zip(a.starts, a.stops, a.steps)) if lo != 0 or hi != x.type.shape[d] or k != 1
    ]
    ends = [[bounds[d] for d in axes] for bounds in (a.starts, a.stops)]
    bounds_and_axes = [e.shape(tuple(ends[0])), e.shape(tuple(ends[1])), e.constant(axes)]
    steps = [a.steps[d] for d in axes]
    return e.add("Slice", [value(e, x), *bounds_and_axes, *([e.constant(steps)] if any(k != 1 for k in steps) else [])])


def _pad(e: OnnxEmitter, node: ir.Node) -> str:
    a, (x,) = attrs_of(node, at.PadAttrs), node.inputs
    fill = e.constant(np.asarray(a.value, x.type.dtype.numpy))
    return e.add("Pad", [value(e, x), e.constant([*a.low, *a.high]), fill])


def _concat(e: OnnxEmitter, node: ir.Node) -> str:
    return e.add("Concat", [value(e, x) for x in node.inputs], {"axis": attrs_of(node, at.ConcatAttrs).axis})


def _gather(e: OnnxEmitter, node: ir.Node) -> str:
    data, index = node.inputs
    name = value(e, index)
    if index.type.dtype.name == "uint8":
        name = e.add("Cast", [name], {"to": 6})
    return e.add("Gather", [value(e, data), name], {"axis": attrs_of(node, at.GatherAttrs).axis})


def _scatter_add(e: OnnxEmitter, node: ir.Node) -> str:
    """A scatter-add to zeros: move the indexed axes to the front, add, move them back."""
    a, (updates, index) = attrs_of(node, at.ScatterAddAttrs), node.inputs
    rank, inner = updates.type.rank, index.type.rank
    moved = [*range(a.axis, a.axis + inner), *range(a.axis), *range(a.axis + inner, rank)]
    rows = value(e, updates) if a.axis == 0 else e.add("Transpose", [value(e, updates)], {"perm": moved})
    shape = (a.size, *(updates.type.shape[d] for d in moved[inner:]))
    out = e.own("scatter_add", [rows, value(e, index), e.shape(shape)])
    if a.axis == 0:
        return out
    back = [*range(1, a.axis + 1), 0, *range(a.axis + 1, len(shape))]
    return e.add("Transpose", [out], {"perm": back})


def _softmax(e: OnnxEmitter, node: ir.Node) -> str:
    op = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}[node.op]
    return e.add(op, [value(e, node.inputs[0])], {"axis": attrs_of(node, at.SoftmaxAttrs).axis})


def _logsumexp(e: OnnxEmitter, node: ir.Node) -> str:
    axes = e.constant([attrs_of(node, at.SoftmaxAttrs).axis])
    return e.add("ReduceLogSumExp", [value(e, node.inputs[0]), axes], {"keepdims": 0})


def _gelu(e: OnnxEmitter, node: ir.Node) -> str:
    how = "tanh" if attrs_of(node, at.GeluAttrs).approximate else "none"
    return e.add("Gelu", [value(e, node.inputs[0])], {"approximate": how})


ROWS: dict[str, Row] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(OWN, _own),
    "ratio": _ratio,
    **dict.fromkeys(("less", "less_equal"), _compare),
    "not_equal": _not_equal,
    "where": _where,
    "cast": _cast,
    "mod": _mod,
    "floor_divide": _floor_divide,
    "left_shift": _shift,
    "right_shift": _shift,
    "sum": _sum,
    "max": _max,
    "argmax": _argmax,
    "matmul": _matmul,
    "reshape": _reshape,
    "permute": _permute,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "logsumexp": _logsumexp,
    "gelu": _gelu,
}
