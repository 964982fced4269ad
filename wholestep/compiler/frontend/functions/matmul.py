"""`a @ b` for all of NumPy's ranks, as one matmul node between reshapes."""

from __future__ import annotations

from wholestep.compiler.frontend.precision import matmul_operand
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.frontend.type_promotion import broadcast_shapes, expand, reshape
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Shape, product, shape_text
from wholestep.errors import ShapeError


def matmul(a: Node, b: Node) -> Node:
    """The product of two matrices, stacks of matrices or vectors, in the accumulation dtype."""
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
    a, transpose_a = _untransposed(a)
    b, transpose_b = _untransposed(b)
    return record("matmul", [matmul_operand(a), b], at.MatmulAttrs(transpose_a, transpose_b, a.type.dtype.accumulate))


def _untransposed(x: Node) -> tuple[Node, bool]:
    """(tensor, flag): if x swaps the last two axes of a tensor, that tensor, which the matmul reads transposed."""
    swap = (*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2)
    if isinstance(x.attrs, at.PermuteAttrs) and x.attrs.order == swap:
        return x.inputs[0], True
    return x, False
