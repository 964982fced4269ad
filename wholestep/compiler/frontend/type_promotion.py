"""Type promotion, broadcasting and matmul: implicit conversions of NumPy become cast, reshape and expand nodes.

A *weakly typed* operand adopts the dtype of the other operands: Python numbers, rank-0 constants, sizes of dimensions
and float64 expressions of runtime scalars.  Everything else keeps its dtype, and mixing dtypes is an error, except that
a half type is widened if the other operand is a wider float or the other half type, which is lossless (as in torch).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from wholestep.compiler.frontend.precision import matmul_operand
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.masked_arrays import refuse_mask
from wholestep.compiler.ir.types import (
    Dim,
    DType,
    Extent,
    Shape,
    as_dtype,
    boolean,
    float32,
    float64,
    int32,
    int64,
    letter_of,
    product,
    shape_text,
)
from wholestep.errors import DTypeError, ShapeError

Literal = bool | int | float | Dim | np.ndarray[Any, Any] | np.generic | list[Any] | tuple[Any, ...]


# -- literals and dtypes -----------------------------------------------------------------------------------------


def constant(value: object, dtype: DType, name: str = "") -> Node:
    """A constant node; a value that the dtype cannot represent is an error."""
    refuse_mask(value, "a constant")
    with np.errstate(over="ignore"):
        try:
            raw = np.asarray(value)
            array = raw.astype(dtype.numpy) if letter_of(raw.dtype) != "O" else np.asarray(value, dtype.numpy)
        except (TypeError, ValueError, OverflowError):
            fail(DTypeError, f"{value!r} is neither a number nor a rectangular array of numbers.")
    if dtype.is_integer and not np.array_equal(array, raw):
        fail(DTypeError, f"{value!r} does not fit into {dtype}. Cast the tensor first: x.astype('float32').")
    array.flags.writeable = False
    return record("constant", (), at.ConstantAttrs(at.Array(array)), name)


def size(extent: Extent) -> Node:
    """The run-time size of a dimension, a float64 host scalar."""
    return record("size", (), at.SizeAttrs(extent))


def is_weak(node: Node) -> bool:
    return node.host and (node.op == "constant" or node.type.dtype == float64)


def natural_dtype(value: object) -> DType:
    """The dtype of a literal without strongly typed operands: arrays keep theirs, lists of floats are float32."""
    array = np.asarray(value)
    if isinstance(value, np.ndarray | np.generic):
        return as_dtype(array.dtype)
    if letter_of(array.dtype) == "f":
        return float64 if array.ndim == 0 else float32
    if letter_of(array.dtype) == "b":
        return boolean
    return int64 if array.ndim == 0 else int32


def convert(node: Node, dtype: DType) -> Node:
    """A weakly typed node, converted to a dtype."""
    if node.type.dtype == dtype:
        return node
    if isinstance(node.attrs, at.ConstantAttrs):
        return constant(node.attrs.array.value, dtype)
    if not dtype.is_float and node.op != "size":
        fail(DTypeError, f"a runtime scalar is a float, the tensor {dtype}. Cast the tensor: x.astype('float32').")
    return record("cast", [node], at.CastAttrs(dtype))


def _literal(value: Literal, dtype: DType) -> Node:
    if isinstance(value, Dim):
        return convert(size(value), dtype)
    is_float = letter_of(np.asarray(value).dtype) == "f"
    if is_float and not dtype.is_float:
        fail(DTypeError, f"{value!r} is a float, but the tensor is {dtype}. Cast it first: x.astype('float32').")
    return constant(value, dtype)


def promote(op: str, values: Sequence[Node | Literal]) -> list[Node]:
    """The operands as nodes of one dtype: the dtype of the strongly typed operands."""
    nodes = [constant(v, natural_dtype(v)) if isinstance(v, np.ndarray) and v.ndim > 0 else v for v in values]
    strong = [n for n in nodes if isinstance(n, Node) and not is_weak(n)]
    dtype = _common_dtype(op, strong) if strong else _weak_dtype(nodes)
    return [convert(n, dtype) if isinstance(n, Node) else _literal(n, dtype) for n in nodes]


def _common_dtype(op: str, strong: Sequence[Node]) -> DType:
    """The dtype of all operands; if half types are mixed with other floats, the wider one."""
    dtype = strong[0].type.dtype
    for node in strong:
        other = node.type.dtype
        if other == dtype:
            continue
        if not (dtype.is_float and other.is_float and (dtype.is_half or other.is_half)):
            _fail_mixed_dtypes(op, strong[0], node)
        dtype = float64 if float64 in (dtype, other) else float32
    return dtype


def _weak_dtype(values: Sequence[Node | Literal]) -> DType:
    """float64, the dtype of the scalar prologue, unless all operands are integers or one of them is a list."""
    dtypes = [
        v.type.dtype if isinstance(v, Node) else float64 if isinstance(v, Dim) else natural_dtype(v) for v in values
    ]
    if float32 in dtypes:
        return float32
    if len(halves := {d for d in dtypes if d.is_half}) == 1 and float64 not in dtypes:
        return halves.pop()
    if any(d.is_float for d in dtypes):
        return float64
    return dtypes[0] if len(set(dtypes)) == 1 else int64


def _fail_mixed_dtypes(op: str, a: Node, b: Node) -> None:
    fix = "Cast one of them: x.astype('float32')."
    if "constant" in (a.op, b.op):
        fix = "Cast the array, array.astype(np.float32), or the tensor, x.astype('float64')."
    fail(DTypeError, f"{op} received {a.type} and {b.type}; dtypes are never mixed silently. {fix}")


# -- shapes ------------------------------------------------------------------------------------------------------


def broadcast_shapes(op: str, *shapes: Shape) -> Shape:
    """NumPy's rule: shapes are aligned at the right; extents must be equal or 1."""
    rank = max(map(len, shapes))
    out: list[Extent] = []
    for position in range(rank):
        column = [s[position - rank + len(s)] for s in shapes if position - rank + len(s) >= 0]
        extents = list(dict.fromkeys(e for e in column if e != 1))
        if len(extents) > 1:
            _fail_broadcast(op, shapes, extents)
        out.append(extents[0] if extents else 1)
    return tuple(out)


def _fail_broadcast(op: str, shapes: Sequence[Shape], extents: Sequence[Extent]) -> None:
    text = " and ".join(shape_text(s) for s in shapes)
    hint = "Reshape one of them so that the extents, aligned at the right, are equal or 1."
    if any(isinstance(e, Dim) for e in extents):
        hint = "A symbolic dimension equals only itself; give both tensors the same name for it."
    fail(ShapeError, f"{op} cannot broadcast {text}: {extents[0]} and {extents[1]} differ. {hint}")


def expand(node: Node, shape: Shape) -> Node:
    """Broadcast to `shape`: a reshape drops the axes of size 1 that are stretched, an expand maps the other axes."""
    current = node.type.shape
    if current == shape:
        return node
    offset = len(shape) - len(current)
    fits = offset >= 0 and all(e in (1, shape[offset + d]) for d, e in enumerate(current))
    if not fits:
        fail(
            ShapeError,
            f"{shape_text(current)} cannot be broadcast to {shape_text(shape)}: extents, aligned at the right, must be "
            "equal or 1.",
        )
    mapped = [d for d, e in enumerate(current) if e == shape[offset + d]]
    dropped = reshape(node, tuple(current[d] for d in mapped))
    return record("expand", [dropped], at.ExpandAttrs(shape, tuple(offset + d for d in mapped)))


def align(op: str, nodes: Sequence[Node]) -> list[Node]:
    """The nodes expanded to the shape they broadcast to."""
    shape = broadcast_shapes(op, *(n.type.shape for n in nodes))
    return [expand(n, shape) for n in nodes]


def reshape(node: Node, shape: Shape) -> Node:
    return node if node.type.shape == shape else record("reshape", [node], at.ReshapeAttrs(shape))


# -- matmul ------------------------------------------------------------------------------------------------------


def matmul(a: Node, b: Node) -> Node:
    """`a @ b` for all of NumPy's ranks, as one node between reshapes, in the accumulation dtype."""
    if not a.type.rank or not b.type.rank:
        fail(ShapeError, f"@ needs at least one axis on each side; received {a.type} and {b.type}. Use * for scalars.")
    _check_inner(a.type.shape, b.type.shape)
    if a.type.rank == 1:
        row = matmul(reshape(a, (1, *a.type.shape)), b)  # (..., 1, n)
        return reshape(row, (*row.type.shape[:-2], *row.type.shape[-1:])) if b.type.rank > 1 else reshape(row, ())
    if b.type.rank == 1:
        column = matmul(a, reshape(b, (*b.type.shape, 1)))  # (..., m, 1)
        return reshape(column, column.type.shape[:-1])
    if b.type.rank == 2:
        return _rows_times_matrix(a, b)
    batch = broadcast_shapes("@", a.type.shape[:-2], b.type.shape[:-2])
    return _product(expand(a, (*batch, *a.type.shape[-2:])), expand(b, (*batch, *b.type.shape[-2:])))


def _check_inner(a: Shape, b: Shape) -> None:
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        fail(
            ShapeError,
            f"@ multiplies (..., m, k) by (k, n); received {shape_text(a)} and {shape_text(b)}: "
            f"k is {a[-1]} and {inner}. Transpose an operand (w.T) or correct its shape.",
        )


def _rows_times_matrix(a: Node, b: Node) -> Node:
    """(..., m, k) @ (k, n): all leading axes are merged into the rows of one GEMM."""
    if a.type.rank == 2:
        return _product(a, b)
    *rows, k = a.type.shape
    flat = _product(reshape(a, (product(rows), k)), b)  # (rows, n)
    return reshape(flat, (*rows, b.type.shape[-1]))


def _product(a: Node, b: Node) -> Node:
    a, transpose_a = _transpose_operand(a)
    b, transpose_b = _transpose_operand(b)
    return record("matmul", [matmul_operand(a), b], at.MatmulAttrs(transpose_a, transpose_b, a.type.dtype.accumulate))


def _transpose_operand(x: Node) -> tuple[Node, bool]:
    """(tensor, flag): if x swaps the last two axes of a tensor, that tensor, which the matmul reads transposed."""
    swap = (*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2)
    if isinstance(x.attrs, at.PermuteAttrs) and x.attrs.order == swap:
        return x.inputs[0], True
    return x, False
