"""Products with a sparse constant matrix become sums of few gathered elements: interpolation and adaptive pools.

Resampling is separable, one constant matrix per axis (`frontend/layers/resize.py`), whose rows have two to ten
elements that are not zero; its gradient is the product with the transposed matrix.  A GPU computes a dense product of
the whole matrix more slowly than memory is read:

    y[.., i, ..] = sum over j of m[i, j]·x[.., j, ..] = sum over t of weight[i, t]·x[.., at[i, t], ..]

Sums are in the order of j and in the dtype of the product, which is wider than half operands.  A row with fewer
elements than the longest one repeats its last element with weight 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.types import Shape, int32, product

IMAGES = 4  # axes of images
MOST_TAPS = 12  # elements per row: with more, the product is as fast
LEAST_SPARSITY = 2  # elements of a row for each that is not zero

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SparseRows:
    """The elements of a sparse matrix: for each row, columns and weights, both of shape (rows, taps)."""

    columns: Array
    weights: Array


def resample_by_gathers(graph: IRGraph) -> IRGraph:
    """The graph with gathers in place of these products; the same graph if there are none."""
    if not any(n.op == "matmul" and any(_constant(i) is not None for i in n.inputs) for n in graph.nodes):
        return graph
    return rewrite(graph, _rewrite)


def _rewrite(node: Node) -> Node:
    if node.op in ("reshape", "cast") and node.inputs[0].op == "reshape":
        return _above_reshape(node)
    if node.op != "matmul" or not node.type.dtype.is_float:
        return node
    attrs = attrs_of(node, at.MatmulAttrs)
    left, right = map(_constant, node.inputs)
    if left is not None and right is None and not attrs.transpose_b:
        matrix, x = left.T if attrs.transpose_a else left, node.inputs[1]
        return _resample(node, matrix, x, x.type.rank - 2)
    if right is not None and left is None and not attrs.transpose_a:
        matrix, x = right if attrs.transpose_b else right.T, node.inputs[0]
        return _resample(node, matrix, x, x.type.rank - 1)
    return node


def _above_reshape(node: Node) -> Node:
    """Move a cast, or a second reshape, below the reshape of images that it reads."""
    source = node.inputs[0].inputs[0]
    if node.op == "cast" and source.type.rank == IMAGES:
        with b.origin(node):
            source = b.cast(source, node.type.dtype)
    elif node.op == "cast":
        return node
    return source if source.type.shape == node.type.shape else b.reshape(source, node.type.shape)


def _constant(node: Node) -> Array | None:
    """The constant matrix that a node is a broadcast of."""
    if node.op == "expand":
        rank = len(attrs_of(node, at.ExpandAttrs).shape)
        if tuple(attrs_of(node, at.ExpandAttrs).axes) != (rank - 2, rank - 1):
            return None
        (node,) = node.inputs
    if node.op != "constant" or node.type.rank != 2:
        return None
    value: Array = attrs_of(node, at.ConstantAttrs).array.value
    return value


def taps_of(matrix: Array) -> SparseRows | None:
    """The elements of a matrix that are not zero, by row; None if a row has too many."""
    counts = np.count_nonzero(matrix, axis=1)
    taps = max(1, int(counts.max(initial=0)))
    if taps > MOST_TAPS or taps * LEAST_SPARSITY > matrix.shape[1]:
        return None
    columns = np.zeros((len(matrix), taps), np.int32)
    weights = np.zeros((len(matrix), taps), matrix.dtype)
    for row, values in enumerate(matrix):
        (places,) = np.nonzero(values)
        columns[row, : len(places)], weights[row, : len(places)] = places, values[places]
        columns[row, len(places) :] = places[-1] if len(places) else 0
    return SparseRows(columns, weights)


def _resample(node: Node, matrix: Array, x: Node, axis: int) -> Node:
    """The product of a matrix with x along an axis; the node itself if the matrix is not sparse."""
    taps = taps_of(matrix)
    if taps is None:
        return node
    shape: Shape = node.type.shape
    with b.origin(node):
        source, axis, shape = _rows_of_images(x, axis, shape)
        total = None
        for column, weight in zip(taps.columns.T, taps.weights.T, strict=True):
            factor = b.expand_to(b.constant(weight, node.type.dtype), shape, (axis,))
            taken = b.cast(b.gather(source, b.constant(column, int32), axis), node.type.dtype)
            term = b.mul(taken, factor)
            total = term if total is None else b.add(total, term)
        assert total is not None, "a row has at least one tap"
        return b.reshape(total, node.type.shape)


def _rows_of_images(x: Node, axis: int, shape: Shape) -> tuple[Node, int, Shape]:
    """The images below a reshape into rows, if the axis is their last; then the shape of their result."""
    source = x.inputs[0] if x.op == "reshape" else x
    last = source.type.rank - 1
    if axis != x.type.rank - 1 or source.type.shape[-1] != x.type.shape[-1] or last == axis:
        return x, axis, shape
    lead = source.type.shape[:-1]
    return (source, last, (*lead, shape[-1])) if product(lead) == product(shape[:-1]) else (x, axis, shape)
