"""The table encoding of a model: how columns become numbers, fitted in training and stored with the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.ir.masked_arrays import is_data_set
from wholestep.errors import UsageError

if TYPE_CHECKING:
    from wholestep.data.tables.encoding import Encoding
    from wholestep.nn.module.module import Module

ATTRIBUTE = "_encoding"
# key of the encoding (as JSON) in the header of a weights file and in the metadata of a checkpoint
HEADER = "wholestep.encoding"
UNMET = (
    "has no layers yet: it makes them for the columns of a table. Train it on a frame, ws.fit(model, (frame, 'target')"
    ", loss=...), or load the file of a trained one."
)


def encoding_of(model: Module) -> Encoding | None:
    """The encoding that was fitted in training or loaded from a file; None: the model takes arrays."""
    encoding: Encoding | None = model.__dict__.get(ATTRIBUTE)
    return encoding


def encoding_metadata(model: Module) -> dict[str, str]:
    """The metadata that stores the table encoding of a model in its weights file."""
    encoding = encoding_of(model)
    return {} if encoding is None else {HEADER: encoding.to_json()}


def keep_encoding(model: Module, encoding: Encoding) -> None:
    """Store the table encoding in a model, and build the layers of a model that depends on the columns."""
    meet = getattr(type(model), "meet", None)
    if meet is not None:
        meet(model, encoding)
    model.__dict__[ATTRIBUTE] = encoding


def encode_inputs(
    model: Module, inputs: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of `predict`, with a frame encoded as arrays."""
    encoding = encoding_of(model)
    if len(inputs) != 1 or named:
        return inputs, named
    if encoding is None:
        if hasattr(type(model), "meet"):
            raise UsageError(f"{type(model).__name__} {UNMET}")
        if isinstance(inputs[0], np.ndarray):
            return inputs, named
        if not _is_frame(inputs[0]):
            return _data_set_inputs(inputs)
        from wholestep.data.tables.frame import as_frame
        from wholestep.data.tables.frame_data import matrix

        return (matrix(as_frame(inputs[0], may_be_empty=True)),), named
    if not (_is_frame(inputs[0]) or isinstance(inputs[0], Mapping)):
        raise UsageError(
            f"this model was trained on a table with the columns {', '.join(map(repr, encoding.names))}; received "
            f"{type(inputs[0]).__name__}. Give a frame, or ws.data.as_frame({{'{encoding.names[0]}': values, ...}})."
        )
    from wholestep.data.tables.frame import as_frame

    arrays = encoding.encode(as_frame(inputs[0], may_be_empty=True))
    return ((arrays["x"],), {}) if list(arrays) == ["x"] else ((), arrays)


def _data_set_inputs(inputs: tuple[Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The inputs of a data set with `len` and `[i]`, or of a part from `ws.data.split`; arrays are unchanged."""
    from wholestep.data.sources import RowSource, inputs_of
    from wholestep.data.table import Table, names_by_position

    data = inputs[0]
    if not isinstance(data, Table):
        if not is_data_set(data):
            return inputs, {}
        data = data if isinstance(data, RowSource) else RowSource(data)
    arrays = inputs_of(data)
    return (tuple(arrays.values()), {}) if [*arrays] == names_by_position(len(arrays)) else ((), arrays)


def _is_frame(value: object) -> bool:
    from wholestep.data.tables.frame import is_frame

    return is_frame(value)
