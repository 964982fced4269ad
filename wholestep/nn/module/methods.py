"""Methods of `Module` for arrays, files and specs.  They import later stages when they are called."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.errors import UsageError
from wholestep.lazy import interop

if TYPE_CHECKING:
    from wholestep.nn.module.module import Module
    from wholestep.nn.module.summary import Summary
    from wholestep.nn.state.state_dict_diff import LoadReport, Rename
    from wholestep.train.tuning.intervals import PredictionInterval


def predict(
    self: Module,
    *inputs: object,
    batch_size: int = 256,
    probabilities: bool | str = False,
    interval: float | None = None,
    calibration: object = None,
    device: str = "cpu",
    **named: object,
) -> Any:
    """The outputs for arrays, with the current weights; dropout is off, and no state changes.

    Inputs are arrays, in the order or by the names of `forward`'s arguments; or a frame; or one data set with `len` and
    `[i]`, whose inputs are read into memory and whose targets are left alone.  No rows give outputs of no rows.
    Rows are taken `batch_size` at a time, so that many of them need no more memory than one batch; all at once
    where the output of a row depends on other rows.  Compiled for the next power of two of the batch, once.  A
    tuple from `forward` is a tuple here, a dict a dict.  `device` is that of `ws.build_session`.

    Args:
        probabilities: give probabilities instead of scores, by softmax or sigmoid as the loss of the model says;
            needed for a model without a loss: "softmax" or "sigmoid".
        interval: a coverage such as 0.9: a `ws.PredictionInterval` of numbers that contains the target in this share of
            the cases, by the residuals of the rows of `calibration`.
        calibration: data `(x, y)` that the model was not trained on, such as the validation rows, for `interval`.

    Example: `logits = model.predict(images)`.
    """
    if interval is not None:
        return _predict_interval(
            self, inputs, named, interval, calibration, {"batch_size": batch_size, "device": device}
        )
    from wholestep.session.running.prediction import predict

    outputs = predict(self, inputs, _inputs_by_name(self, "predict", named), batch_size, device)
    if probabilities is False:
        return outputs
    from wholestep.nn.module import predictions

    return predictions.probabilities(self, outputs, probabilities)


def _predict_interval(
    self: Module, inputs: tuple[object, ...], named: object, interval: float, calibration: object, how: dict[str, Any]
) -> PredictionInterval:
    """The interval of split conformal prediction (Lei et al., arXiv:1604.04173)."""
    if calibration is None or len(inputs) != 1 or named:
        raise UsageError(
            "predict(interval=) takes one array and rows that the model was not trained on: model.predict(x, "
            "interval=0.9, calibration=(xv, yv)). Without such rows: ws.cross_validate(...).predict(x, interval=0.9)."
        )
    from wholestep.data.table import as_table
    from wholestep.train.tuning.intervals import cv_plus

    return cv_plus((self,), (as_table(calibration),), inputs[0], interval, **how)


def predict_classes(
    self: Module,
    *inputs: object,
    batch_size: int = 256,
    scores: str | None = None,
    device: str = "cpu",
    **named: object,
) -> Any:
    """The most probable class of each row as an integer; for binary scores 1 or 0 each.

    A model that was trained on a frame gives the labels of its target.  `scores` is "softmax" or "sigmoid", needed for
    a model without a loss; the other arguments are those of `predict`.

    Example: `model.predict_classes(images) == labels`.
    """
    from wholestep.nn.module import predictions
    from wholestep.session.running.prediction import predict

    named = _inputs_by_name(self, "predict", named)
    return predictions.classes(self, predict(self, inputs, named, batch_size, device), scores)


def _inputs_by_name(self: Module, function: str, named: dict[str, Any]) -> dict[str, Any]:
    """Inputs by name, without the arguments that Keras' method of that name has, such as `verbose=0`."""
    if not named:
        return named
    from inspect import signature

    return interop.drop_foreign_arguments(function, signature(self.forward).parameters, named)


def activations(self: Module, *inputs: object, **named: object) -> dict[str, np.ndarray[Any, Any]]:
    """The output of each inner layer for arrays, by layer name, as in evaluation; all rows at once.

    Example: `model.activations(x[:8])["0"]` is what the first layer of a Sequential gives.
    """
    from wholestep.session.running.array_gradients import activations

    return activations(self, inputs, named)


def evaluate(
    self: Module,
    x: object,
    y: object = None,
    *,
    loss: Any = None,
    metrics: Any = (),
    sample_weight: object = None,
    batch_size: int = 256,
    device: str = "cpu",
    nonfinite: str = "raise",
) -> dict[str, Any]:
    """The loss and the metrics of the model over data, by name; dropout is off, and no state changes.

    Args:
        x: inputs, an array or a dict of arrays; or whole data, as `ws.fit` takes it, when `y` is left out.
        y: targets, an array or a dict of arrays.
        loss: as for `ws.fit`: a name, a `ws.losses.Loss`, a function of (output, target).  None: the loss, and the
            metrics unless others are given, that the model was last fitted with.
        metrics: names or objects, e.g. `["accuracy"]`.
        sample_weight: the weight of each row.
        batch_size: rows that are computed at once; a mean is over all rows whatever it is.
        device: as for `ws.build_session`.
        nonfinite: "raise" refuses data that holds NaN or infinity; "ignore" gives it to a model that replaces them.

    Example: `model.evaluate(images, labels, loss="cross_entropy", metrics=["accuracy"])["accuracy"]`.
    """
    from wholestep.train.evaluation import evaluate

    data = x if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
    return evaluate(self, data, loss, metrics, batch_size, device, nonfinite)


def state_dict(self: Module) -> dict[str, np.ndarray[Any, Any]]:
    """Copies of all parameters and buffers by name; tied ones under each of their names."""
    from wholestep.steps.states import numbers

    values = numbers(self)
    first = {owned: name for name, owned in self.named_arrays().items()}
    return StateDictCopies({name: values[first[owned]] for name, owned in self.all_names()})


class StateDictCopies(dict[str, "np.ndarray[Any, Any]"]):
    """Copies of a module's arrays by name.  An optimizer rejects them, since updating a copy would have no effect."""

    holds_copies = True


def load_state_dict(
    self: Module, values: Mapping[str, object], strict: bool = True, rename: Rename | None = None
) -> LoadReport:
    """Load arrays by name (or a torch `state_dict`); the returned report lists what did not match.

    Nothing changes unless everything that is to be loaded fits.

    Args:
        values: arrays or torch tensors by name.
        strict: refuse unless names and shapes are the model's. With False, what matches is loaded; the report
            lists the rest; printed it is a diff. Where shapes differ and nothing at all matches, it is an error.
        rename: a dict from names in `values`, or prefixes of them, to names in the model (the longest key that
            matches is used), or a function of a name. The new name None leaves the array out. A `*` matches within
            one component of a path and is replaced by the same text in the new name: `{"encoder.layer.*": "blocks.*"}`.

    Example: `print(model.load_state_dict(values, strict=False, rename={"module.": "", "fc": "head"}))`.
    """
    from wholestep.nn.state.weights import load_state_dict

    return load_state_dict(self, values, strict, rename)


def save(self: Module, path: str | PathLike[str]) -> None:
    """Write all parameters and buffers as safetensors, atomically."""
    from wholestep.nn.state.weights import save

    save(self, path)


def load(self: Module, path: str | PathLike[str], strict: bool = True, rename: Rename | None = None) -> LoadReport:
    """Read weights by name; nothing changes unless the file is complete and everything to be loaded fits.

    Args:
        path: a file that `save` wrote, under any name; a safetensors file; an index of shards,
            `model.safetensors.index.json`; a folder with either; a file of torch's, which torch itself reads, without
            running what it holds; a checkpoint; or the folder of a run (`checkpoint=`, `ModelCheckpoint`): its newest
            checkpoint, or the best one where `ModelCheckpoint` keeps the best alone.
        strict, rename: as in `load_state_dict`.

    Example: `model.load("theirs.safetensors", rename={"module.": ""})`.
    """
    from wholestep.nn.state.weights import load

    if Path(path).is_dir():
        from wholestep.train.checkpoint.read import weights_in_run

        path = weights_in_run(Path(path)) or path
    return load(self, path, strict, rename)


def summary(self: Module, *inputs: object, **named: object) -> Summary:
    """A table of layers, shapes, parameters, flops and bytes for inputs of these `ws.Spec`s.

    A model that has been trained, evaluated or asked for predictions needs none: its input types are known.

    `print_fn` is called with its text, as Keras does.

    Example: `print(model.summary(ws.Spec(("batch", 784))))`.
    """
    from wholestep.nn.module.summary import summarize

    print_fn = named.pop("print_fn", None)
    table = summarize(self, inputs, _inputs_by_name(self, "summary", named))
    if callable(print_fn):
        print_fn(str(table))
    return table
