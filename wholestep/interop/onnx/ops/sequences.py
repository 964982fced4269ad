"""Sequences of tensors, whose lengths are known when the network is recorded."""

from __future__ import annotations

from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.errors import ShapeError
from wholestep.interop.onnx.ops.shapes import axis_of
from wholestep.interop.onnx.read.sizes import number, tensor_of
from wholestep.interop.onnx.read.table import Array, Items, onnx_op


@onnx_op("SplitToSequence", static=("split",))
def split_to_sequence(x: Tensor, split: Array | None = None, *, axis: int = 0, keepdims: int = 1) -> Items:
    at = axis_of(axis, x.ndim)
    n = x.shape[at]
    if not isinstance(n, int):
        raise ShapeError(f"SplitToSequence along the symbolic dimension {n}; give the dimension a fixed number.")
    if split is not None and split.ndim:
        return Items(ws.split(x, [int(e) for e in split], at))
    pieces = ws.split(x, 1 if split is None else int(number(split)), at)
    if split is None and not keepdims:
        pieces = tuple(p.reshape((*p.shape[:at], *p.shape[at + 1 :])) for p in pieces)
    return Items(pieces)


@onnx_op("SequenceConstruct")
def sequence_construct(*tensors: Tensor) -> Items:
    return Items(tensors)


@onnx_op("SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> Items:
    return Items()


@onnx_op("SequenceAt", raw=("items",), static=("position",))
def sequence_at(items: Items, position: Array) -> Any:
    return items[_place(items, position)]


@onnx_op("SequenceInsert", raw=("items",), static=("position",))
def sequence_insert(items: Items, one: Tensor, position: Array | None = None) -> Items:
    at = len(items) if position is None else int(number(position))
    if not -len(items) <= at <= len(items):
        raise ShapeError(f"the index {at} is outside of a sequence of {len(items)} tensors.")
    at += len(items) if at < 0 else 0
    return Items((*items[:at], one, *items[at:]))


@onnx_op("SequenceErase", raw=("items",), static=("position",))
def sequence_erase(items: Items, position: Array | None = None) -> Items:
    at = len(items) - 1 if position is None else _place(items, position)
    return Items((*items[:at], *items[at + 1 :]))


@onnx_op("SequenceLength", raw=("items",))
def sequence_length(items: Items) -> Array:
    return np.asarray(len(items), np.int64)


@onnx_op("ConcatFromSequence", raw=("items",))
def concat_from_sequence(items: Items, *, axis: int, new_axis: int = 0) -> Tensor:
    parts = [tensor_of(t) for t in items]
    if not parts:
        raise ShapeError("ConcatFromSequence needs at least one tensor; the sequence is empty.")
    return ws.stack(parts, axis) if new_axis else ws.concat(parts, axis)


def _place(items: Items, position: Array) -> int:
    at = int(number(position))
    if not -len(items) <= at < len(items):
        raise ShapeError(f"the index {at} is outside of a sequence of {len(items)} tensors.")
    return at % len(items)
