"""`ws.fit` of a `@ws.step` function: checks of arguments and data, and the session over the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.frontend.step import Step
from wholestep.compiler.ir.types import Dim, shape_text
from wholestep.data.loader import DataLoader
from wholestep.data.table import Array, Batch, Table, check_finite
from wholestep.errors import ShapeError, UsageError, WholestepError
from wholestep.session import Session, build_session
from wholestep.session.building.arguments import shared_arguments
from wholestep.steps.options import as_measures, modes_of
from wholestep.train.data.loaders import batch_capacity, rows_to_measure, sample_of, with_room
from wholestep.train.learning_rates import resolve_schedule
from wholestep.train.step_source import updates_of

if TYPE_CHECKING:
    from wholestep.train.experiment import Experiment

# Arguments of `fit` that a step function defines itself, and where.
DEFINED_BY_STEP = {
    "loss": "the first output that it returns is the loss",
    "optimizer": "ws.Adam().update(g, params, grads) there",
    "loss_weights": "multiply the parts of its loss there",
    "augment": "change its inputs there",
    "class_weight": "ws.losses.cross_entropy(scores, labels, class_weight=[...]) there",
    "accumulate": "it makes one update of each batch; give a larger batch_size",
    "per_micro_batch": "it makes one update of each batch",
    "clip_norm": "grads, norm = ws.optim.clip_by_global_norm(grads, 1.0) there",
    "clip_value": "ws.optim.clip_by_value(grads, 0.5) there",
    "gradient_norm": 'return {"loss": loss, "norm": ws.optim.global_norm(grads)} from it: what it returns is logged',
    "loss_scale": "ws.LossScale().gradients(g, loss, params) there",
    "privacy": "there are no gradients of rows; train a ws.nn.Module",
    "encoder": "encode frames before: ws.data.Encoder",
    "observer": "keep what you want to see: tensor.keep('name')",
}


def refuse_step_arguments(run: Experiment) -> None:
    """Raise UsageError for arguments of a run that the step function defines itself."""
    defaults = {f.name: f.default for f in fields(run)}
    for name, how in DEFINED_BY_STEP.items():
        value = getattr(run, name)
        if value is not None and value != defaults.get(name):
            raise UsageError(f"{name}={value!r}: a @ws.step function defines that itself: {how}. Leave {name}= out.")
    if run.nonfinite == "skip":
        raise UsageError("nonfinite='skip' cannot be added to a @ws.step function; give 'raise' or 'ignore'.")


def names_for(step: Step, batch: Batch) -> dict[str, str]:
    """The step's inputs by the names of the data's columns: the same names, or for `(x, y)` the first and second."""
    columns, inputs = batch.named(), list(step.inputs)
    if columns.keys() == set(inputs):
        return {}
    plain = [name for name in columns if name in ("x", "labels")]
    if len(columns) == len(inputs) and len(plain) == len(columns):
        return dict(zip(plain, inputs, strict=True))
    raise UsageError(
        f"the step {step.body.__name__} takes {', '.join(inputs) or 'nothing'}; the data has {', '.join(columns)}. "
        f"Name arrays as its inputs: data={{{', '.join(f'{name!r}: ...' for name in inputs)}}}."
    )


def check_data(step: Step, columns: Mapping[str, Array], names: Mapping[str, str], *, takes_nan: bool) -> None:
    """Raise ShapeError or InputError for columns that do not fit the step, before anything is compiled."""
    for name, array in columns.items():
        input_name = names.get(name, name)
        shape = step.inputs[input_name].shape
        fits = len(shape) == array.ndim and all(
            isinstance(e, Dim) or e == n for e, n in zip(shape[1:], array.shape[1:], strict=True)
        )
        if not fits:
            raise ShapeError(
                f"the input {input_name!r} of {step.body.__name__} has shape {shape_text(shape)}; the data has rows of "
                f"shape {array.shape[1:]}. Reshape one of them."
            )
    if not takes_nan:
        check_finite(Table(columns, {}))


def capacity_for(step: Step, batch: Batch, names: Mapping[str, str], rows: int) -> dict[str, int]:
    """The largest size of every symbolic dimension: rows of a batch, and the sizes of the data."""
    capacity: dict[str, int] = {}
    for name, array in batch.named().items():
        for axis, extent in enumerate(step.inputs[names.get(name, name)].shape):
            if isinstance(extent, Dim) and len(extent.symbols) == 1:
                (symbol,) = extent.symbols
                capacity.setdefault(symbol, rows if axis == 0 else array.shape[axis])
    return capacity


def outputs_as_metrics(step: Step) -> list[Any]:
    """A metric for each number that a step returns besides its loss: its mean over the rows of an epoch."""
    from wholestep.metrics.means import LossTracker

    first = next(iter(step.inputs), "")
    return [(LossTracker(name=name), name, first) for name in step.graph().loss_parts]


def build_step(run: Experiment, step: Step, loader: DataLoader, held: Table | None) -> tuple[Session, dict[str, str]]:
    """A session over a step for the data of a run, and the step's input for each column."""
    batch = sample_of(loader)
    names = names_for(step, batch)
    whole = isinstance(loader.source, Table) and not loader.transforms
    columns, takes_nan = loader.source.columns if whole else batch.named(), run.nonfinite == "ignore"  # type: ignore[union-attr]
    check_data(step, columns, names, takes_nan=takes_nan)
    if held is not None:
        try:
            names_for(step, held.take(np.arange(1)))
            check_data(step, held.columns, names, takes_nan=takes_nan)
        except WholestepError as error:
            raise type(error)(f"validation: {error}") from None
    asked = [*with_room(run.metrics, rows_to_measure(loader, held)), *outputs_as_metrics(step)]
    arguments = shared_arguments(
        run,
        metrics=asked,
        schedule=resolve_schedule(run.schedule, run.epochs, updates_of(loader, 1), modes_of(as_measures(asked))),
        batch_size=None,
        capacity=capacity_for(step, batch, names, batch_capacity(loader, batch.rows, exact=False)),
        nonfinite="ignore",  # the trainer examines the losses it reads
    )
    session = build_session(step, **{name: value for name, value in arguments.items() if name not in DEFINED_BY_STEP})
    return session, names


def config_for(config: Any, names: Mapping[str, str]) -> Any:
    """A trainer's configuration with the names of the step's inputs."""
    return replace(config, data_input=names.get("x", "x"), label_input=names.get("labels", "labels"))
