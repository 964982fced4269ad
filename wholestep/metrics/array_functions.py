"""Functions of arrays and of tensors: a metric's formula is written once, and evaluated by NumPy or recorded."""

from __future__ import annotations

from math import prod
from typing import Any, TypeVar

import numpy as np

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.shape.sequences import cumsum as fn_cumsum
from wholestep.compiler.frontend.shape.sort_topk import argsort, take_along_axis
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir.types import Shape, product

X = TypeVar("X", np.ndarray[Any, Any], Tensor)


def where(condition: Any, x: Any, y: Any) -> Any:
    return (fn.where if isinstance(condition, Tensor) else np.where)(condition, x, y)


def maximum(x: Any, y: Any) -> Any:
    return (fn.maximum if isinstance(x, Tensor) else np.maximum)(x, y)


def floor(x: Any) -> Any:
    return (fn.floor if isinstance(x, Tensor) else np.floor)(x)


def sigmoid(x: X) -> X:
    return fn.sigmoid(x) if isinstance(x, Tensor) else np.asarray(1.0 / (1.0 + np.exp(-x)))


def softmax(x: X) -> X:
    """Softmax over the last axis, the classes."""
    return fn.softmax(x) if isinstance(x, Tensor) else np.asarray(np.exp(log_softmax(x)))


def log_softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """x - max - log Σ exp(x - max) along the last axis."""
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def cumsum(x: X) -> X:
    """Cumulative sums along the last axis."""
    return fn_cumsum(x, -1) if isinstance(x, Tensor) else np.asarray(x.cumsum(-1))


def ordered_by(values: X, scores: X) -> X:
    """Each row of `values`, sorted by decreasing scores; equal scores keep their order."""
    if isinstance(values, Tensor):
        return take_along_axis(values, argsort(scores, -1, descending=True), -1)
    return np.take_along_axis(values, np.argsort(-scores, -1, kind="stable"), -1)


def count(x: X, shape: Shape, dtype: str = "int64") -> X:
    """The number of elements of a shape; for tensors a value that is known before any kernel runs."""
    if isinstance(x, Tensor):
        return row_count(shape, dtype)
    return np.asarray(prod(int(str(extent)) for extent in shape), dtype)


def row_count(shape: Shape, dtype: Any = "int64") -> Tensor:
    """The number of elements of a shape at run time, known before any kernel runs."""
    return fn.size(product(shape)).astype(dtype)


def sum_by_index(values: X, index: X, size: int) -> X:
    """The sum of the values at each index, in the dtype of the values."""
    if isinstance(values, Tensor):
        flat = (product(values.shape),)
        return fn.scatter_add(values.reshape(flat), index.reshape(flat), size)
    sums = np.bincount(index.reshape(-1), values.reshape(-1), size)
    return np.asarray(sums.round().astype(values.dtype) if values.dtype.kind == "i" else sums)
