"""`model.evaluate`: a loss and metrics of a model over data, without a session that trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from wholestep.compiler.devices import device_named
from wholestep.data.loader import DataLoader
from wholestep.data.table import as_table
from wholestep.errors import InputError, OptionError, UsageError
from wholestep.losses import Loss
from wholestep.metrics import LossTracker, Metric
from wholestep.nn.module.module import Module
from wholestep.session import Session
from wholestep.session.building.build import build_measuring_session
from wholestep.session.running.prediction import room
from wholestep.steps.options import as_measures
from wholestep.steps.states import state_with_numbers, structure
from wholestep.train.data.data_spec import DataSpec
from wholestep.train.data.frames import encode_for_evaluation
from wholestep.train.data.loaders import table_of, with_room
from wholestep.train.step_source import need_batches

LOSS = "loss of all batches"  # the loss from the summed numerators and denominators of all batches
MAX_SESSIONS = 4  # the most sessions per model; a dropped one is loaded from the cache again


# The loss and metrics of each model's last run in this process, which are the defaults of `evaluate`.
_FITTED: WeakKeyDictionary[Module, tuple[Any, Any]] = WeakKeyDictionary()


def remember_loss(model: Module, loss: Any, metrics: Any) -> None:
    """Store the loss and metrics of a run as defaults of `model.evaluate(x, y)`."""
    _FITTED[model] = loss, metrics  # None: evaluate cannot compute it


def _fitted(model: Module) -> tuple[Any, Any]:
    fitted = _FITTED.get(model)
    if fitted is None or fitted[0] is None:
        raise UsageError(
            f"evaluate: loss= is missing, and this {type(model).__name__} was not fitted in this process, or was "
            "fitted with loss_weights=, so there is no default. Give one: model.evaluate(x, y, loss='cross_entropy', "
            "metrics=['accuracy'])."
        )
    return fitted


def evaluate(
    model: Module, data: object, loss: Any, metrics: Any, batch_size: int, device: str, nonfinite: str = "raise"
) -> dict[str, Any]:
    """The loss and the metrics over all rows, by name."""
    if loss is None:
        loss, fitted_metrics = _fitted(model)
        metrics = metrics or fitted_metrics
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise OptionError(f"evaluate: batch_size must be an integer of at least 1; received {batch_size!r}.")
    if nonfinite not in ("raise", "ignore"):
        raise OptionError(f"evaluate: nonfinite={nonfinite!r}: expected 'raise' or 'ignore'.")
    encoded = encode_for_evaluation(model, data)
    loader = encoded if isinstance(encoded, DataLoader) else DataLoader(encoded, None, batch_size, shuffle=False)
    need_batches(loader)
    # A metric that stores all scores needs their number: the data is then read into memory.
    if loader.every_row() is None and not _keeps_rows(metrics):
        return _of_batches(model, loader, loss, metrics, batch_size, device, nonfinite)
    table = table_of(encoded)
    described = DataSpec(model, table.take(np.arange(1)), loss, takes_nan=nonfinite == "ignore")
    described.check(DataLoader(table, shuffle=False))
    rows = room(len(table))
    session, names = _session(model, described, rows, metrics, min(batch_size, rows), device)
    described.check_classes(session, table)
    results = session.evaluate_all(table.columns)
    return {names.get(name, name): value for name, value in results.items()}


def _of_batches(
    model: Module, loader: DataLoader, loss: Any, metrics: Any, batch_size: int, device: str, nonfinite: str
) -> dict[str, Any]:
    """`evaluate` over an iterable, one batch in memory at a time."""
    batches = iter(copy(loader))
    first = next(batches, None)
    if first is None:
        raise InputError("the data is empty: it has no batches. There is nothing to measure.")
    described = DataSpec(model, as_table(first).take(np.arange(1)), loss, takes_nan=nonfinite == "ignore")
    described.check(DataLoader(as_table(first), shuffle=False))
    with_loss = [*([metrics] if isinstance(metrics, str | Metric) else metrics), LossTracker(name=LOSS)]
    session, names = _session(model, described, 0, with_loss, batch_size, device)

    def columns() -> Iterator[Mapping[str, Any]]:
        for batch in chain((first,), batches):
            table = as_table(batch)
            described.check_values(table)
            described.check_classes(session, table)
            yield table.columns

    results = session.evaluate_batches(columns())
    return {"loss": results.pop(LOSS), **{names.get(name, name): value for name, value in results.items()}}


def _keeps_rows(metrics: Any) -> bool:
    """Does any metric store all rows?"""
    return any(m.metric.with_capacity(1) is not m.metric for m in as_measures(metrics or ()))


def _session(
    model: Module, described: DataSpec, rows: int, metrics: Any, capacity: int, device: str
) -> tuple[Session, dict[str, str]]:
    """A cached session for data of this type, and the names of its metrics.

    A metric that stores all rows has states of the data's size; its name contains the size, so that other sizes have
    other states.
    """
    sessions: dict[object, tuple[Session, dict[str, str]]] = model.__dict__.setdefault("_evaluators", {})
    targets = tuple(described.targets().items())
    what = (_key(described.inputs()), targets, _key(described.loss), _key(metrics))
    key = (*what, capacity, rows, structure(model), device_named(device).name)
    if key not in sessions:
        sized, names = list(with_room(metrics, rows)), {}
        for i, measure in enumerate(as_measures(metrics)):
            metric, *about = sized[i] if isinstance(sized[i], tuple) else (sized[i],)
            if metric is not measure.metric and metric.to_config() != measure.metric.to_config():
                renamed = replace(metric, name=f"{metric.name} of {rows}")
                sized[i] = (renamed, *about)
                names[renamed.name] = metric.name
        state_with_numbers(model)
        if len(sessions) >= MAX_SESSIONS:
            sessions.pop(next(iter(sessions)))
        session = described.build(build_measuring_session, metrics=sized, batch_size=capacity, device=device)
        sessions[key] = session, names
    return sessions[key]


def _key(value: Any) -> object:
    """A cache key of a description: losses and metrics by their configuration, functions by identity."""
    if isinstance(value, Loss | Metric):
        return type(value), _key(value.to_config())
    if isinstance(value, Mapping):
        return tuple((k, _key(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(_key(v) for v in value)
    return value.tobytes() if isinstance(value, np.ndarray) else value
