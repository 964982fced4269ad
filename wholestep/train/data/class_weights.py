"""`class_weight=` of a run: the weight of each class in the loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np

from wholestep import losses
from wholestep.compiler.ir.types import letter_of
from wholestep.data.loader import DataLoader
from wholestep.data.sequences.packing import PackedTable
from wholestep.data.table import Array, Table
from wholestep.errors import InputError, OptionError, UsageError
from wholestep.losses.forms import class_axis
from wholestep.steps.module import forward_graph
from wholestep.train.data.data_spec import DataSpec

BALANCED = "balanced"


def with_class_weight(described: DataSpec, weights: Any, loader: DataLoader) -> DataSpec:
    """The description with class weights in its loss; itself without `class_weight=`."""
    if weights is None:
        return described
    loss = _loss(described)
    labels = _labels(loader.source) if isinstance(loader.source, Table) else None
    # for a binary loss: the weight of the positive class relative to the negative one
    if "pos_weight" in signature(loss.function).parameters:
        no, yes = _numbers(weights, 2, labels)
        if not no > 0.0:
            raise OptionError(f"class_weight={weights!r}: the weight of class 0 must be positive; received {no:g}.")
        options: dict[str, Any] = {"pos_weight": yes / no}
    else:
        options = {"class_weight": np.array(_numbers(weights, _classes(described, loss), labels))}
    return replace(described, loss=losses.Loss(loss.kind, **loss.options, **options))


def _labels(table: Table) -> Array | None:
    """The classes of all rows; of packed rows without those at padding."""
    labels = table.targets.get("labels")
    if not isinstance(table, PackedTable) or labels is None or table.weights is None:
        return labels
    return np.asarray(labels[table.weights > 0])


def _loss(described: DataSpec) -> losses.Loss:
    """The loss; UsageError unless it has class weights."""
    fix = "Weigh rows instead: data=(x, y, weights[y])."
    if described.by_output:
        raise UsageError(
            "class_weight= is for one loss, and this one is a dict by output. Give the output its own: loss={'name': "
            "ws.losses.Loss('cross_entropy', class_weight=[...])}."
        )
    loss = losses.get(described.loss)
    if not isinstance(loss, losses.Loss):
        raise UsageError(f"class_weight= cannot change a user-defined loss, {loss!r}. {fix}")
    parameters = signature(loss.function).parameters
    options = {"class_weight", "pos_weight"} & set(parameters)
    if not options:
        raise UsageError(f"class_weight= is for losses of classes; {loss.kind} has none. {fix}")
    if twice := options & loss.options.keys():
        raise UsageError(f"the loss has its own {twice.pop()}=; leave class_weight= out.")
    return loss


def _classes(described: DataSpec, loss: losses.Loss) -> int:
    """The number of classes: scores per row of the model's output."""
    graph, _ = forward_graph(described.model, described.inputs())
    shape = next(iter(graph.outputs.values())).shape
    labels = described.targets()["labels"].shape
    count = shape[class_axis(loss.kind, shape, labels, loss.options.get("axis"))]
    assert isinstance(count, int), "a model has so many outputs as its last layer"
    return count


def _numbers(weights_option: Any, classes: int, labels: Array | None) -> list[float]:
    """One weight per class: from a dict (1 for classes it lacks), from a list, or "balanced" by class frequency."""
    if weights_option == BALANCED if isinstance(weights_option, str) else False:
        return _balanced_weights(labels, classes)
    if isinstance(weights_option, Mapping):
        named = {_class_number(name, weights_option): value for name, value in weights_option.items()}
        if beyond := [c for c in named if not 0 <= c < classes]:
            raise OptionError(
                f"class_weight has the class {beyond[0]}, and the model has the classes 0 to {classes - 1}. Number "
                "classes from 0."
            )
        weights = [named.get(c, 1.0) for c in range(classes)]
    elif isinstance(weights_option, Sequence | np.ndarray) and not isinstance(weights_option, str):
        weights = list(weights_option)
    else:
        raise OptionError(
            f"class_weight={weights_option!r}: expected a dict, {{0: 1.0, 1: 5.0}}, a number for each class, [1.0, "
            "5.0], or 'balanced'."
        )
    if len(weights) != classes:
        raise OptionError(
            f"class_weight has {len(weights)} numbers, and the model has {classes} classes; give one each."
        )
    for value in weights:
        if isinstance(value, bool | str) or not math.isfinite(value) or value < 0:
            raise OptionError(f"class_weight: a weight must be a number of at least 0; received {value!r}.")
    return [float(w) for w in weights]


def _class_number(name: object, weights_option: Any) -> int:
    try:
        return int(name)  # type: ignore[call-overload, no-any-return]  # JSON has names alone: {"0": 1.0}
    except (TypeError, ValueError):
        raise OptionError(
            f"class_weight={weights_option!r}: classes are numbers from 0, {{0: 1.0, 1: 5.0}}; received {name!r}."
        ) from None


def _balanced_weights(labels: Array | None, classes: int) -> list[float]:
    """rows / (classes · rows of the class), as scikit-learn has it."""
    if labels is None or (letter_of(labels.dtype) not in "iub" and not _are_whole(labels)):
        raise UsageError(
            "class_weight='balanced' counts class indices of data in memory, (x, y). Count them yourself: "
            "class_weight=[1.0, 5.0]."
        )
    counts = np.bincount(labels.astype(np.int64).ravel(), minlength=classes)
    if len(counts) > classes or not counts.all():
        missing = np.flatnonzero(counts == 0)
        what = f"no row has the class {missing[0]}" if missing.size else f"labels go up to {len(counts) - 1}"
        raise InputError(
            f"class_weight='balanced': {what}, and the model has the classes 0 to {classes - 1}. Give the weights "
            "yourself: class_weight={0: 1.0, 1: 5.0}."
        )
    return [float(labels.size / (classes * c)) for c in counts]


def _are_whole(labels: Array) -> bool:
    return bool(np.isin(labels, (0, 1)).all())  # binary targets as floats
