"""Products that stay in float32 whatever the precision of a session: pinned while they are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import DType, bfloat16, float16, float32
from wholestep.errors import OptionError

TF32 = "tf32"  # float32 numbers, of which the products of a GPU may read fewer bits: a matter of its target
PRECISIONS = {"float32": float32, TF32: float32, "bfloat16": bfloat16, "float16": float16}  # what `precision=` takes

_IN_FLOAT32: ContextVar[bool] = ContextVar("in_float32", default=False)


def as_precision(value: object) -> DType:
    """The dtype that products are computed in."""
    if isinstance(value, DType) and value.name in PRECISIONS:
        return value
    if not isinstance(value, str) or value not in PRECISIONS:
        fail(
            OptionError,
            f"precision={value!r}: expected one of {', '.join(map(repr, PRECISIONS))}. Products are computed in it; "
            "weights stay float32. For a model of float64 write model.astype('float64').",
        )
    return PRECISIONS[value]


def half_parameter(what: str) -> str:
    """The text of an error about something trained in a half type."""
    return (
        f"{what}; what is trained, and an optimizer's own state, is float32 or float64: most updates are smaller than "
        "a rounding of a half type and would be lost. Leave it float32 and compute products in half: "
        "precision='bfloat16'. Numbers that are not trained may be half: ws.nn.Buffer or g.state."
    )


@contextmanager
def pin_float32() -> Iterator[None]:
    """Products recorded inside stay in float32."""
    token = _IN_FLOAT32.set(True)
    try:
        yield
    finally:
        _IN_FLOAT32.reset(token)


def operand(node: Node) -> Node:
    """An operand of a product: where it is pinned, behind a cast of float32 to float32, which no later stage keeps."""
    if not _IN_FLOAT32.get() or node.type.dtype != float32:
        return node
    return record("cast", [node], at.CastAttrs(float32))
