"""Evaluates large NumPy values in pieces on several threads: NumPy releases the interpreter lock, and pieces stay in
the cache.

A node is divided along an axis whose indices are independent: any axis of an elementwise op, a leading axis of an op
over rows or of attention.  Invariant: each element is computed by the same operations as in the whole array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import prod
from typing import Any

import numpy as np

from wholestep.compiler.ir.attrs import MatmulAttrs
from wholestep.compiler.ir.graph import Node, attrs_of
from wholestep.compiler.ir.types import TupleType
from wholestep.compiler.runtime.blas_threads import on_one_thread

Array = np.ndarray[Any, Any]

LARGE_VALUE = 1 << 19  # elements; a smaller value takes less than a millisecond, as long as handing out its pieces
PIECE = 1 << 16  # elements of a piece at least: its intermediate arrays stay in the cache
LARGE_PRODUCT = 1 << 26  # multiply-adds, a millisecond; the rows of a larger product are divided
ROWS = ("softmax", "log_softmax", "logsumexp", "cross_entropy")  # independent along all axes but the last
ATTENTION = ("attention", "attention_lse", "attention_grad")  # independent along all axes but the last two


class Pieces:
    """A pool of threads that evaluates nodes; used as a context."""

    def __init__(self, threads: int) -> None:
        self._threads, self._open = threads, ExitStack()

    def __enter__(self) -> Pieces:
        self._pool = self._open.enter_context(ThreadPoolExecutor(self._threads))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def axis(self, node: Node, operands: Sequence[Any]) -> int | None:
        """The axis along which a node is divided; None if it is evaluated as a whole."""
        if self._threads == 1 or not (node.is_elementwise or node.op in (*ROWS, *ATTENTION)):
            return None
        shapes = [np.shape(x) for x in operands]
        if max(map(prod, shapes)) < LARGE_VALUE:
            return None
        free = _independent_axes(node, shapes)
        equal = [d for d in range(free) if len({s[d] if d < len(s) else -1 for s in shapes}) == 1]
        return max(equal, key=lambda d: (min(shapes[0][d], 2 * self._threads), -d), default=None)

    def evaluate(
        self, node: Node, axis: int, operands: Sequence[Array], compute: Callable[[Sequence[Array]], Any]
    ) -> Any:
        """The value of a node from the values of its pieces, each computed from a piece of every operand."""
        size = max(x.size for x in operands)
        parts = self._parts(operands[0].shape[axis], size // PIECE)

        def piece(part: slice) -> Any:
            place = (*(slice(None),) * axis, part)
            return compute([x[place] for x in operands])

        values = self._each(piece, parts)
        if not isinstance(node.result, TupleType):
            return self._join(values, parts, axis)
        return tuple(self._join(list(v), parts, axis) for v in zip(*values, strict=True))

    def is_large_product(self, node: Node, operands: Sequence[Any]) -> bool:
        """Is a product computed for some rows of the result at a time?"""
        if self._threads == 1 or node.op != "matmul":
            return False
        rows, depth = operands[0].shape[-2:]
        work = prod(operands[0].shape) * operands[1].shape[-2 if attrs_of(node, MatmulAttrs).transpose_b else -1]
        return bool(work >= LARGE_PRODUCT and min(rows, depth) >= self._threads)

    def product(self, node: Node, a: Array, compute: Callable[[Array], Array]) -> Array:
        """A product from its rows; `compute` gets the rows, or the columns, of the left operand that they need."""
        columns = attrs_of(node, MatmulAttrs).transpose_a
        parts = self._parts(a.shape[-1 if columns else -2], self._threads)
        values = self._each(lambda part: compute(a[..., part] if columns else a[..., part, :]), parts)
        return self._join(values, parts, a.ndim - 2)

    def _parts(self, extent: int, count: int) -> list[slice]:
        count = max(1, min(extent, max(self._threads, count)))
        return [slice(extent * i // count, extent * (i + 1) // count) for i in range(count)]

    def _each(self, compute: Callable[[slice], Any], parts: Sequence[slice]) -> list[Any]:
        def piece(part: slice) -> Any:
            with np.errstate(all="ignore"):  # NumPy's error state is per thread
                return compute(part)

        with on_one_thread():  # each thread computes products of its own
            return list(self._pool.map(piece, parts))

    def _join(self, values: list[Array], parts: Sequence[slice], axis: int) -> Array:
        shape = values[0].shape
        joined = np.empty((*shape[:axis], parts[-1].stop, *shape[axis + 1 :]), values[0].dtype)

        def put(i: int) -> None:
            joined[(*(slice(None),) * axis, parts[i])] = values[i]

        list(self._pool.map(put, range(len(parts))))
        return joined


def _independent_axes(node: Node, shapes: Sequence[tuple[int, ...]]) -> int:
    """The number of leading axes along which the result is independent."""
    rank = len(shapes[0])
    if node.is_elementwise:
        return rank if len(set(shapes)) == 1 else 0
    if node.op in ROWS:
        last = node.op == "cross_entropy" or node.attrs.axis == rank - 1  # type: ignore[attr-defined]
        return rank - 1 if last else 0
    return rank - 2 if node.op in ATTENTION else 0
