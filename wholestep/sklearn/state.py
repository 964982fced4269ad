"""What a pickle of an estimator holds: parameters, numbers, texts, and weights as the bytes of a safetensors file."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from wholestep.data.tables.encoding import Encoding
from wholestep.options import CompileOptions
from wholestep.sklearn.matrix import ColumnStatistics
from wholestep.sklearn.networks import InputColumns, NetworkKey

WEIGHTS, COLUMNS, KIND = "_weights", "_columns", "_kind_used"


def pack_state(state: dict[str, Any]) -> dict[str, Any]:
    """A fitted estimator's attributes, with nothing in them but numbers, texts, arrays and bytes."""
    if WEIGHTS in state:
        from safetensors.numpy import save

        state[WEIGHTS] = save({name: np.ascontiguousarray(a) for name, a in state[WEIGHTS].items()})
        state[COLUMNS] = _columns_as_data(state[COLUMNS])
        state[KIND] = asdict(state[KIND])
    return state


def unpack_state(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes again."""
    if WEIGHTS in state:
        from safetensors.numpy import load

        state[WEIGHTS] = load(state[WEIGHTS])
        state[COLUMNS] = _columns_from_data(state[COLUMNS])
        state[KIND] = _kind_from_data(state[KIND])
    return state


def _columns_as_data(columns: ColumnStatistics | Encoding) -> Any:
    return columns.to_json() if isinstance(columns, Encoding) else (columns.mean, columns.std, columns.gaps)


def _columns_from_data(data: Any) -> ColumnStatistics | Encoding:
    return Encoding.from_json(data, "the pickle") if isinstance(data, str) else ColumnStatistics(*data)


def _kind_from_data(data: dict[str, Any]) -> NetworkKey:
    options = data["options"]
    known = {**data, "columns": InputColumns(**data["columns"]), "hidden": tuple(data["hidden"])}
    return NetworkKey(**{**known, "options": None if options is None else CompileOptions(**options)})
