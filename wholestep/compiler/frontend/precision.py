"""Precision of matmuls and convolutions (autocast), and how some of them are pinned to float32."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from wholestep.compiler.frontend.trace import bind_value, fail, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import DType, bfloat16, float16, float32
from wholestep.errors import OptionError

TF32 = "tf32"  # float32 storage; GPU matmuls may round operands to TF32, which the target decides
TF32_CONVOLUTIONS = "tf32conv"  # the variant of a target in which convolutions alone do, as in PyTorch by default
PRECISIONS = {"float32": float32, TF32: float32, "bfloat16": bfloat16, "float16": float16}  # accepted by `precision=`

_IN_FLOAT32: ContextVar[bool] = ContextVar("in_float32", default=False)


def as_precision(value: object) -> DType:
    """The dtype of the operands of matmuls and convolutions; float32 for None."""
    if value is None:
        return float32
    if isinstance(value, DType) and value.name in PRECISIONS:
        return value
    if not isinstance(value, str) or value not in PRECISIONS:
        fail(
            OptionError,
            f"precision={value!r}: expected one of {', '.join(map(repr, PRECISIONS))}. Matmuls are computed in it; "
            "weights stay float32. For a model of float64 write model.astype('float64').",
        )
    return PRECISIONS[value]


def half_parameter_error(what: str) -> str:
    """The error text for a trained parameter of a half type."""
    return (
        f"{what}; parameters and optimizer state must be float32 or float64: most updates are smaller than the "
        "rounding error of a half type and would be lost. Keep it float32 and compute matmuls in half precision: "
        "precision='bfloat16'. Values that are not trained may be half: ws.nn.Buffer or g.state."
    )


def pin_float32() -> AbstractContextManager[None]:
    """Matmuls and convolutions recorded inside stay in float32."""
    return bind_value(_IN_FLOAT32, True)


def matmul_operand(node: Node) -> Node:
    """An operand of a matmul; if pinned, marked by a cast from float32 to float32, which later stages remove."""
    if not _IN_FLOAT32.get() or node.type.dtype != float32:
        return node
    return record("cast", [node], at.CastAttrs(float32))
