"""`in_float32`: layers that stay in float32 in a session with half precision."""

from __future__ import annotations

from typing import TypeVar

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError
from wholestep.nn.module.module import Module

M = TypeVar("M", bound=Module)


def in_float32(layer: M) -> M:
    """Keep the products of a layer, and of everything inside it, in float32 whatever the precision of a session.

    Useful for a last layer whose scores differ little, for distances, and for sums of many large terms. In a float32
    session it has no effect.

    Example: `ws.nn.Sequential(body, ws.nn.in_float32(ws.nn.Linear(64, 10)))`.
    """
    if not isinstance(layer, Module):
        fail(
            UsageError,
            f"in_float32 takes a layer, a ws.nn.Module; received {layer!r}. Make what it computes one.",
        )
    layer.products_in_float32 = True
    return layer
