"""Intervals of predictions from residuals of rows that a model has not seen: CV+ and the jackknife+."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import Any

import numpy as np

from wholestep.data.table import Table
from wholestep.errors import InputError, OptionError, UsageError
from wholestep.nn.module.module import Module

Array = np.ndarray[Any, Any]
MOST = 1 << 22  # values that are sorted at a time


@dataclass(frozen=True)
class PredictionInterval:
    """Predictions, and the ends of their intervals; infinite where the rows are too few for the asked coverage."""

    prediction: Array
    low: Array
    high: Array


def cv_plus(models: Sequence[Module], held: Sequence[Any], x: Any, interval: float, **how: Any) -> PredictionInterval:
    """The CV+ interval of Barber, Candès, Ramdas and Tibshirani, "Predictive inference with the jackknife+", eq. 6.

    Args:
        held: the rows that each model has not seen; of one model, the interval is that of split conformal prediction.
        how: arguments of `model.predict`.
    """
    if not isinstance(interval, int | float) or not 0.0 < interval < 1.0:
        raise OptionError(f"interval={interval!r}: expected a coverage between 0 and 1, e.g. 0.9.")
    residuals, fold = [], []
    for i, (model, rows) in enumerate(zip(models, held, strict=True)):
        residuals.append(_residuals(model, rows, how))
        fold += [i] * len(residuals[-1])
    predictions = np.stack([np.asarray(model.predict(x, **how), float) for model in models])
    errors = np.concatenate(residuals)
    low, high = np.empty_like(predictions[0]), np.empty_like(predictions[0])
    step = max(1, MOST // max(1, errors.size))
    for start in range(0, len(low), step):
        part = slice(start, start + step)
        centers = predictions[fold, part]  # (rows held out, new rows, outputs)
        around = errors.reshape(len(errors), 1, *errors.shape[1:])
        low[part] = _smallest(centers - around, floor((1 - interval) * (len(errors) + 1) + 1e-9))
        high[part] = _smallest(centers + around, ceil(interval * (len(errors) + 1) - 1e-9))
    return PredictionInterval(predictions.mean(0), low, high)


def _smallest(values: Array, rank: int) -> Array | float:
    """The value of a rank, from 1, along the first axis; infinite below the first and above the last."""
    if not 1 <= rank <= len(values):
        return -inf if rank < 1 else inf
    smallest: Array = np.partition(values, rank - 1, axis=0)[rank - 1]
    return smallest


def _residuals(model: Module, rows: Any, how: Mapping[str, Any]) -> Array:
    """|target - prediction| of rows."""
    if not isinstance(rows, Table) or len(rows.inputs) != 1 or len(rows.targets) != 1:
        raise UsageError("intervals are for data (x, y) of arrays: one input, and one target with one number per row.")
    inputs, target = next(iter(rows.inputs.values())), np.asarray(next(iter(rows.targets.values())))
    prediction = np.asarray(model.predict(inputs, **how), float)
    if not np.issubdtype(target.dtype, np.floating) or prediction.size != target.size:
        raise InputError(
            f"intervals are for numbers: expected targets of dtype float and the shape {prediction.shape} of the "
            f"predictions; received {target.dtype} {target.shape}."
        )
    distances: Array = np.abs(target.reshape(prediction.shape) - prediction)
    return distances
