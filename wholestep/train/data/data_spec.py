"""The types of a model's data, which determine the inputs of a session, and checks of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wholestep import losses
from wholestep.compiler.frontend.step import Spec
from wholestep.compiler.ir.types import Shape, letter_of
from wholestep.data.loader import DataLoader
from wholestep.data.table import Array, Batch, Table, check_finite
from wholestep.errors import DTypeError, InputError, ShapeError, UsageError, WholestepError
from wholestep.losses.forms import class_axis, shapes_match
from wholestep.nn.module.module import Module
from wholestep.session import Session
from wholestep.session.running.prediction import spec_of
from wholestep.train.data.targets import BINARY, check_targets


@dataclass(frozen=True)
class DataSpec:
    """A model and a batch of its data, which determine the inputs of a session."""

    model: Module
    batch: Batch
    loss: Any
    takes_nan: bool = False  # skip the check for NaN, for a model that replaces it

    def inputs(self) -> Spec | dict[str, Spec]:
        inputs = self.batch.inputs
        if isinstance(inputs, Mapping):
            return {name: spec_of(self.model, a, "batch") for name, a in inputs.items()}
        return spec_of(self.model, inputs, "batch")

    def targets(self) -> dict[str, Spec]:
        targets = self.batch.targets
        named = targets if isinstance(targets, Mapping) else {} if targets is None else {"labels": targets}
        weights = self.batch.weights
        weight = {} if weights is None else {"sample_weight": spec_of(self.model, weights, "batch")}
        return {**{name: spec_of(self.model, a, "batch") for name, a in named.items()}, **weight}

    def build(self, build: Callable[..., Session], **arguments: Any) -> Session:
        """A session for this data.  If the model multiplies integers, the error names the integer input."""
        arguments_of_data = {"inputs": self.inputs(), "targets": self.targets(), "loss": self.loss}
        try:
            return build(self.model, **{**arguments, **arguments_of_data})
        except DTypeError as error:
            named = {
                n: a for n, a in self.batch.named().items() if letter_of(a.dtype) in "iu" and n not in self.targets()
            }
            if not named:
                raise
            name, array = next(iter(named.items()))
            first_line = str(error).splitlines()[0]
            raise InputError(
                f"the input {name!r} is {array.dtype}, and the model multiplies it; integer inputs are for "
                f"embeddings. Convert features, x.astype('float32'), and scale pixels, / 255. ({first_line})"
            ) from None

    # -- checks --------------------------------------------------------------------------------

    def check(self, loader: DataLoader) -> None:
        """Checks before anything is compiled: of every row of data in memory, else of the first batch."""
        if self.batch.targets is None and not callable(self.loss):
            raise UsageError("there are no targets: data is (x, y). For a model without targets give loss= a function.")
        inputs = self.batch.inputs if isinstance(self.batch.inputs, Mapping) else {"x": self.batch.inputs}
        for array in inputs.values():
            _refuse_images_of_bytes(array)
        whole = isinstance(loader.source, Table) and not loader.transforms
        self.check_values(loader.source if whole else _as_table(self.batch))  # type: ignore[arg-type]

    def check_values(self, table: Table) -> None:
        """Raise InputError for values that are not finite, and for targets that the loss does not take."""
        targets = self.table_losses()
        if not self.takes_nan:
            check_finite(Table(table.inputs, {} if self._is_function else table.targets))
        for name, loss in targets.items():
            if name in table.targets:
                check_targets(loss, table.targets[name])

    def check_held(self, held: Table, session: Session) -> None:
        """Checks of the validation data, before the first epoch."""
        seen, held_columns = self.batch.named(), held.columns
        try:
            if seen.keys() != held_columns.keys():
                raise ShapeError(
                    f"it has {_list_names(held_columns)}, the training data has {_list_names(seen)}. Give the same."
                )
            for name, array in held_columns.items():
                if array.shape[1:] != seen[name].shape[1:]:
                    raise ShapeError(
                        f"the rows of {name!r} have shape {array.shape[1:]}, those of the training data "
                        f"{seen[name].shape[1:]}. Prepare both in the same way."
                    )
            self.check_values(held)
            self.check_classes(session, held)
        except WholestepError as error:
            raise type(error)(f"validation: {error}") from None

    def check_classes(self, session: Session, table: Table) -> None:
        """Raise InputError for class indices outside the range of the scores, and binary targets except 0 and 1."""
        self.check_class_range({name: session.plan.buffers[id].type.shape for name, id in session.plan.outputs}, table)

    def check_class_range(self, outputs: Mapping[str, Shape], table: Table) -> None:
        """`check_classes` for outputs of these shapes."""
        for name, loss in self.table_losses().items():
            y, scores = table.targets.get(name), outputs.get("output" if name == "labels" else name)
            if y is None or scores is None or not loss.takes_classes or letter_of(y.dtype) not in "iu":
                continue
            shape = (*scores[:1], *y.shape[1:])
            if loss.kind in BINARY and shapes_match(scores, shape):
                BINARY[loss.kind](loss, y)
            else:
                _check_range(loss, y, scores[class_axis(loss.kind, scores, shape, loss.options.get("axis"))])

    @property
    def _is_function(self) -> bool:
        return callable(self.loss) and not isinstance(self.loss, losses.Loss)

    @property
    def by_output(self) -> bool:
        """Is there a loss for each output?  Otherwise a dict is the `to_config()` of one loss."""
        targets = self.batch.targets if isinstance(self.batch.targets, Mapping) else {}
        return isinstance(self.loss, Mapping) and ("kind" not in self.loss or "kind" in targets)

    def table_losses(self) -> dict[str, losses.Loss]:
        """The losses of the table by target; without user-defined functions."""
        named = dict(self.loss) if self.by_output else {"labels": self.loss}
        functions = {name: one if callable(one) else losses.get(one) for name, one in named.items()}
        return {name: one for name, one in functions.items() if isinstance(one, losses.Loss)}


def _check_range(loss: losses.Loss, y: Array, scores: object) -> None:
    ignored = loss.options.get("ignore_index")
    labels = y if ignored is None else y[y != ignored]
    if not labels.size:
        return
    low, high = int(labels.min()), int(labels.max())
    if isinstance(scores, int) and high >= scores:
        raise InputError(
            f"the labels go up to {high}, which needs {high + 1} classes; the model has {scores} "
            "outputs. Make its last layer larger, or number the classes from 0."
        )
    if low < 0:
        raise InputError(
            f"the labels go down to {low}; classes are numbered from 0: y - y.min(). To leave rows out of the loss "
            f"give ws.losses.Loss('cross_entropy', ignore_index={low})."
        )


def _as_table(batch: Batch) -> Table:
    inputs = batch.inputs if isinstance(batch.inputs, Mapping) else {"x": batch.inputs}
    targets = batch.targets if isinstance(batch.targets, Mapping) else {"labels": batch.targets}
    return Table(inputs, {n: a for n, a in targets.items() if a is not None}, batch.weights)


def _list_names(names: Mapping[str, Array]) -> str:
    return ", ".join(map(repr, names))


def _refuse_images_of_bytes(x: Array) -> None:
    if x.dtype == np.uint8 and x.ndim >= 3:
        raise InputError(
            "the inputs are uint8 images; a network takes floats around 0..1: x.astype('float32') / 255, or "
            "DataLoader(..., transform=ws.data.Scale(1 / 255))."
        )
