"""Frames as training data: split off validation rows, fit an encoder to the others, attach it to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wholestep import losses
from wholestep.data.splits import Holdout
from wholestep.data.table import Table
from wholestep.data.tables.frame_data import Framed, as_framed, plain_table
from wholestep.errors import UsageError
from wholestep.nn.layers.table_encoding import encoding_of, keep_encoding
from wholestep.nn.module.module import Module

if TYPE_CHECKING:
    from wholestep.data.tables.encoder import Encoder

ANSWERS = ("binary_cross_entropy",)


def encode_data(
    model: Module, data: Any, validation: Any, encoder: Encoder | None, loss: Any, shuffle: bool, seed: int
) -> tuple[Any, Any]:
    """Training and validation data as arrays; data that is not a frame is returned unchanged."""
    takes_columns = encoder is not None or hasattr(model, "meet")
    framed = as_framed(data, dicts=takes_columns)
    if framed is None:
        if takes_columns:
            who = "an encoder" if encoder is not None else type(model).__name__
            raise UsageError(
                f"{who} needs the columns of a frame; data is {_type_of(data)}. Give (frame, 'target'), where frame "
                "is a DataFrame or a dict of columns: ({'age': ages, 'city': cities}, labels)."
            )
        return data, validation
    held: Any = None
    if isinstance(validation, float | Holdout):
        framed, held = split_holdout(framed, validation, seed, shuffle)
    elif validation is not None:
        held = as_framed(validation, dicts=True)
        if held is None:
            raise UsageError(
                f"validation: data is a frame, so validation is one too, (frame, 'target'); received "
                f"{type(validation).__name__}."
            )
    if encoding_of(model) is None and takes_columns:
        from wholestep.data.tables.encoder import Encoder  # imported here because most models take arrays

        keep_encoding(model, (encoder or Encoder()).fit(framed, aim_of(loss)))
    return table_for(model, framed), None if held is None else table_for(model, held)


def split_holdout(data: Any, validation: float | Holdout, seed: int, shuffle: bool) -> tuple[Any, Any]:
    """Training rows and validation rows; with `shuffle=False` the last rows are held out."""
    how = validation if isinstance(validation, Holdout) else Holdout(validation)
    if how.shuffle is None and not shuffle and how.groups is None and how.stratify is False:
        how = Holdout(how.fraction, shuffle=False)
    return how.split(data, seed)


def aim_of(loss: Any) -> str:
    """The kind of target that a loss takes: "classes", "answers" (binary targets) or "numbers"."""
    if isinstance(loss, Mapping) and "kind" not in loss:
        return "numbers"
    function = losses.get(loss)
    if not isinstance(function, losses.Loss):
        return "numbers"
    return "answers" if function.kind in ANSWERS else "classes" if function.takes_classes else "numbers"


def table_for(model: Module, data: Framed) -> Table:
    """A frame as arrays: by the model's encoder, or column by column if it has none."""
    encoding = encoding_of(model)
    return plain_table(data) if encoding is None else encoding.table(data)


def encode_for_evaluation(model: Module, data: Any) -> Any:
    """Data for `evaluate`: a frame as arrays by the model's encoder, anything else unchanged."""
    framed = as_framed(data, dicts=encoding_of(model) is not None)
    return data if framed is None else table_for(model, framed)


def _type_of(data: Any) -> str:
    """`tuple of ndarray, list`: the types in a tuple, since "tuple" alone does not say what is wrong."""
    name = type(data).__name__
    return f"{name} of {', '.join(type(part).__name__ for part in data)}" if isinstance(data, tuple) else name
