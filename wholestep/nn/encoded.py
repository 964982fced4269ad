"""A model's encoding: what it has learnt of the columns of tables, kept with it and applied by `predict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.errors import UsageError

if TYPE_CHECKING:
    from wholestep.data.encoding import Encoding
    from wholestep.nn.module import Module

ATTRIBUTE = "_encoding"
HEADER = "wholestep.encoding"  # in the header of a file of weights, and among what a checkpoint notes: JSON
UNMET = (
    "has no layers yet: it makes them for the columns of a table. Train it on a frame, ws.fit(model, (frame, 'target')"
    ", loss=...), or load the file of a trained one."
)


def encoding_of(model: Module) -> Encoding | None:
    """The encoding that was learnt in training or loaded from a file; None: the model takes arrays."""
    found: Encoding | None = model.__dict__.get(ATTRIBUTE)
    return found


def noted_encoding(model: Module) -> dict[str, str]:
    """What the model has learnt of the columns of tables, for those who write its weights."""
    found = encoding_of(model)
    return {} if found is None else {HEADER: found.to_json()}


def keep_encoding(model: Module, encoding: Encoding) -> None:
    """Give a model its encoding; one that makes its layers for the columns makes them now."""
    meet = getattr(type(model), "meet", None)
    if meet is not None:
        meet(model, encoding)
    model.__dict__[ATTRIBUTE] = encoding


def encoded_inputs(
    model: Module, inputs: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of `predict`, a frame among them as arrays."""
    encoding = encoding_of(model)
    if len(inputs) != 1 or named:
        return inputs, named
    if encoding is None:
        if hasattr(type(model), "meet"):
            raise UsageError(f"{type(model).__name__} {UNMET}")
        if isinstance(inputs[0], np.ndarray) or not _is_frame(inputs[0]):
            return inputs, named
        from wholestep.data.frame import as_frame
        from wholestep.data.framed import matrix

        return (matrix(as_frame(inputs[0])),), named
    if not (_is_frame(inputs[0]) or isinstance(inputs[0], Mapping)):
        raise UsageError(
            f"this model was trained on a table with the columns {', '.join(map(repr, encoding.names))}; received "
            f"{type(inputs[0]).__name__}. Give a frame, or ws.data.as_frame({{'{encoding.names[0]}': values, ...}})."
        )
    from wholestep.data.frame import as_frame

    found = encoding.encode(as_frame(inputs[0]))
    return ((found["x"],), {}) if list(found) == ["x"] else ((), found)


def _is_frame(value: object) -> bool:
    from wholestep.data.frame import is_frame

    return is_frame(value)
