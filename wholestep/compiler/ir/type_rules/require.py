"""Preconditions shared by the type rules, each with its error message."""

from __future__ import annotations

from wholestep.compiler.ir.types import DType, TensorType, boolean, shape_text
from wholestep.errors import DTypeError, ShapeError


def need(condition: bool, text: str, kind: type[Exception] = ShapeError) -> None:
    if not condition:
        raise kind(text)


def need_float(op: str, *types: TensorType) -> None:
    for t in types:
        need(
            t.dtype.is_float,
            f"{op} needs a float tensor; received {t}. Cast it first: x.astype('float32').",
            DTypeError,
        )


def need_number(op: str, t: TensorType) -> None:
    need(
        t.dtype != boolean,
        f"{op} needs numbers; received {t}. Cast it first: x.astype('float32').",
        DTypeError,
    )


def need_same_dtype(op: str, *types: TensorType) -> None:
    first = types[0]
    for t in types[1:]:
        need(t.dtype == first.dtype, f"{op} needs equal dtypes; received {first.dtype} and {t.dtype}.", DTypeError)


def need_same(op: str, *types: TensorType) -> None:
    first = types[0]
    for t in types[1:]:
        need(
            t.shape == first.shape,
            f"{op} needs equal shapes; received {shape_text(first.shape)} and {shape_text(t.shape)}.",
        )
        need_same_dtype(op, first, t)


def need_accumulate(op: str, x: TensorType, accumulate: DType) -> None:
    """Check that sums accumulate in the dtype given by `DTYPES`: float32 for half-precision types."""
    expected = x.dtype.accumulate
    need(accumulate == expected, f"{op} of {x.dtype} accumulates in {expected}; received {accumulate}.", DTypeError)


def need_axis(op: str, axis: int, t: TensorType) -> None:
    need(0 <= axis < t.rank, f"{op}: axis {axis} does not exist in shape {shape_text(t.shape)}.")
