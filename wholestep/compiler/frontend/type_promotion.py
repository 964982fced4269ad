"""Which dtype and shape operands meet in: NumPy's implicit rules made explicit nodes.

A *weak* operand adopts the dtype of what it meets: Python numbers, rank-0 constants, sizes of dimensions and
float64 expressions of runtime scalars.  Everything else keeps its dtype, and two different ones are an error, but for
half types: what meets a wider float, or the other half type, is widened, which loses nothing (as in torch).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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
    shape_text,
)
from wholestep.errors import DTypeError, ShapeError

Literal = bool | int | float | Dim | np.ndarray[Any, Any] | np.generic | list[Any] | tuple[Any, ...]


# -- literals and dtypes -----------------------------------------------------------------------------------------


def constant(value: object, dtype: DType, name: str = "") -> Node:
    """A constant node; a value that the dtype cannot hold is an error."""
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
    """The run-time size of a dimension, a float64 scalar on the host side."""
    return record("size", (), at.SizeAttrs(extent))


def is_weak(node: Node) -> bool:
    return node.host and (node.op == "constant" or node.type.dtype == float64)


def natural_dtype(value: object) -> DType:
    """The dtype of a literal that meets nothing stronger: arrays keep theirs, lists of floats are float32."""
    array = np.asarray(value)
    if isinstance(value, np.ndarray | np.generic):
        return as_dtype(array.dtype)
    if letter_of(array.dtype) == "f":
        return float64 if array.ndim == 0 else float32
    if letter_of(array.dtype) == "b":
        return boolean
    return int64 if array.ndim == 0 else int32


def convert(node: Node, dtype: DType) -> Node:
    """A weak node in the dtype of the tensor it meets."""
    if node.type.dtype == dtype:
        return node
    if isinstance(node.attrs, at.ConstantAttrs):
        return constant(node.attrs.array.value, dtype)
    if not dtype.is_float and node.op != "size":
        fail(
            DTypeError,
            f"a runtime scalar is a float and meets a tensor of {dtype}. Cast the tensor first: x.astype('float32').",
        )
    return record("cast", [node], at.CastAttrs(dtype))


def _literal(value: Literal, dtype: DType) -> Node:
    if isinstance(value, Dim):
        return convert(size(value), dtype)
    is_float = letter_of(np.asarray(value).dtype) == "f"
    if is_float and not dtype.is_float:
        fail(
            DTypeError,
            f"{value!r} is a float and meets a tensor of {dtype}. Cast the tensor first: x.astype('float32').",
        )
    return constant(value, dtype)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0


def promote(op: str, values: Sequence[Node | Literal]) -> list[Node]:
    """Nodes of one dtype: that of the tensors among the operands."""
    nodes = [constant(v, natural_dtype(v)) if _is_array(v) else v for v in values]
    strong = [n for n in nodes if isinstance(n, Node) and not is_weak(n)]
    dtype = _common_dtype(op, strong) if strong else _weak_dtype(nodes)
    return [convert(n, dtype) if isinstance(n, Node) else _literal(n, dtype) for n in nodes]


def _common_dtype(op: str, strong: Sequence[Node]) -> DType:
    """The dtype of all of them, or the wider one where half types meet others."""
    dtype = strong[0].type.dtype
    for node in strong:
        other = node.type.dtype
        if other == dtype:
            continue
        if not (dtype.is_float and other.is_float and (dtype.is_half or other.is_half)):
            _refuse_mixture(op, strong[0], node)
        dtype = float64 if float64 in (dtype, other) else float32
    return dtype


def _weak_dtype(values: Sequence[Node | Literal]) -> DType:
    """float64, the dtype of the scalar prologue, unless all operands are whole numbers or there is a list."""
    found = [
        v.type.dtype if isinstance(v, Node) else float64 if isinstance(v, Dim) else natural_dtype(v) for v in values
    ]
    if float32 in found:
        return float32
    if len(halves := {d for d in found if d.is_half}) == 1 and float64 not in found:
        return halves.pop()
    if any(d.is_float for d in found):
        return float64
    return found[0] if len(set(found)) == 1 else int64


def _refuse_mixture(op: str, a: Node, b: Node) -> None:
    fix = "Cast one of them: x.astype('float32')."
    if "constant" in (a.op, b.op):
        fix = "Cast the array, array.astype(np.float32), or the tensor, x.astype('float64')."
    fail(DTypeError, f"{op} received {a.type} and {b.type}; dtypes are never mixed silently. {fix}")


# -- shapes ------------------------------------------------------------------------------------------------------


def broadcast_shapes(op: str, *shapes: Shape) -> Shape:
    """NumPy's rule: align at the right; equal extents stay, an extent of 1 stretches."""
    rank = max(map(len, shapes))
    out: list[Extent] = []
    for position in range(rank):
        column = [s[position - rank + len(s)] for s in shapes if position - rank + len(s) >= 0]
        wide = list(dict.fromkeys(e for e in column if e != 1))
        if len(wide) > 1:
            _refuse_shapes(op, shapes, wide)
        out.append(wide[0] if wide else 1)
    return tuple(out)


def _refuse_shapes(op: str, shapes: Sequence[Shape], wide: Sequence[Extent]) -> None:
    text = " and ".join(shape_text(s) for s in shapes)
    hint = "Reshape one of them so that the extents, aligned at the right, are equal or 1."
    if any(isinstance(e, Dim) for e in wide):
        hint = "A symbolic dimension equals only itself; give both tensors the same name for it."
    fail(ShapeError, f"{op} cannot broadcast {text}: {wide[0]} against {wide[1]}. {hint}")


def expand(node: Node, shape: Shape) -> Node:
    """Broadcast to `shape`: drop the axes of size 1 that stretch, then say where the others go."""
    own = node.type.shape
    if own == shape:
        return node
    offset = len(shape) - len(own)
    fits = offset >= 0 and all(e in (1, shape[offset + d]) for d, e in enumerate(own))
    if not fits:
        fail(
            ShapeError,
            f"{shape_text(own)} cannot be broadcast to {shape_text(shape)}: extents, aligned at the right, must be "
            "equal or 1.",
        )
    kept = [d for d, e in enumerate(own) if e == shape[offset + d]]
    dropped = reshape(node, tuple(own[d] for d in kept))
    return record("expand", [dropped], at.ExpandAttrs(shape, tuple(offset + d for d in kept)))


def align(op: str, nodes: Sequence[Node]) -> list[Node]:
    """The nodes expanded to the shape they broadcast to."""
    shape = broadcast_shapes(op, *(n.type.shape for n in nodes))
    return [expand(n, shape) for n in nodes]


def reshape(node: Node, shape: Shape) -> Node:
    return node if node.type.shape == shape else record("reshape", [node], at.ReshapeAttrs(shape))
