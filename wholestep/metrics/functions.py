"""User-defined metrics: a function of predictions and targets, recorded in the step or called on arrays.

`metrics=[my_function]` records the function, as `loss=my_function` does: it is given tensors, costs what its
expressions cost, and adds up over batches.  A function of NumPy arrays, such as scikit-learn's, is given as
`ws.metrics.OverEpoch(function)`, which keeps an epoch's rows and calls it once, on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any, ClassVar

import numpy as np

from wholestep.compiler.frontend.graph import Graph, record_into
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import product
from wholestep.errors import OptionError, UsageError, WholestepError
from wholestep.metrics.array_functions import X, row_count
from wholestep.metrics.base import Array, Metric, Result, States
from wholestep.metrics.means import Mean
from wholestep.metrics.reading import ArrayKind, check_weight, merge_weighted_axes
from wholestep.metrics.row_buffers import KeptRows, rows_to_store

WEIGHT = "sample_weight"


@dataclass(eq=False)
class OfFunction(Metric):
    """A metric that calls a function, under the name of the function."""

    function: Callable[..., Any]
    better: bool | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.function):
            fail(
                UsageError,
                f"{type(self).__name__} takes a function of predictions and targets; received {self.function!r}.",
            )
        function_name = getattr(self.function, "__name__", "")
        if not self.name and function_name in ("", "<lambda>"):
            what = type(self).__name__
            fail(
                UsageError,
                f"a metric needs a name, and {function_name or 'this object'} has none: "
                f"ws.metrics.{what}(function, name='gap').",
            )
        self.name = self.name or function_name
        if self.better is None:
            self.better = getattr(self.function, "higher_is_better", None)
        self.higher_is_better = self.better  # type: ignore[misc]

    @property
    def takes_weight(self) -> bool:
        """Does the function have an argument `sample_weight`?"""
        try:
            parameters = signature(self.function).parameters.values()
        except ValueError:  # a builtin function without a signature
            return False
        return any(p.name == WEIGHT or p.kind is Parameter.VAR_KEYWORD for p in parameters)


@dataclass(eq=False)
class Function(OfFunction, Mean):
    """The mean over an epoch of a function of (prediction, target), which is recorded in the step like a loss.

    It may return a value for each row (or each element of a row), a number or a boolean: these are averaged over all
    rows of the epoch, with the data's weights if it has any.  Or it may return one number per batch: of a mean,
    `….mean()`, sum and count are added up, which is exact; any other number is weighted by the rows of its batch.

    Args:
        function: of the prediction and the target, tensors; with a third argument `sample_weight` where it weighs rows
            itself.
        name: the name of the metric; by default the function's.
        better: True where more is better, False where less is; by default `function.higher_is_better`, else callbacks
            infer it from the name.

    Example: `ws.metrics.Function(lambda p, t: ws.abs(p - t), name="gap")`.
    """

    kind: ClassVar[str] = "function"

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        value = self._call_function(prediction, target, weight)
        if not value.shape:
            return self._number(value, prediction, weight)
        if value.shape[0] != prediction.shape[0]:
            fail(
                UsageError,
                f"the metric {self.name!r} gave {value.node.type}: expected one number, or a value for each row, whose "
                f"first axis is that of the prediction, {prediction.node.type}. Reduce it: value.mean().",
            )
        if weight is None or self.takes_weight:
            return {"sum": value.astype("float64").sum(), "weight": row_count(value.shape, "float64")}
        weight, value = merge_weighted_axes(weight, value)
        values, inside = value.astype("float64"), product(value.shape[1:])
        check_weight(self.name, ArrayKind.of(weight), value.shape[:1])
        w = weight.astype("float64")
        rows = values.sum(tuple(range(1, values.ndim))) if values.ndim > 1 else values
        return {"sum": (w * rows).sum(), "weight": w.sum() * inside}

    def _call_function(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
        options = {WEIGHT: weight} if weight is not None and self.takes_weight else {}
        try:
            value = self.function(prediction, target, **options)
        except (WholestepError, TypeError, ValueError, AttributeError) as error:
            fail(
                UsageError,
                f"the metric {self.name!r} was given tensors, as a loss is, and failed: {str(error).splitlines()[0]} A "
                f"function of NumPy arrays is called once an epoch: metrics=[ws.metrics.OverEpoch({self.name})].",
            )
        if not isinstance(value, Tensor):
            fail(
                UsageError,
                f"the metric {self.name!r} returned {value!r}, which is no tensor: the step would not compute it from "
                f"the data. Compute it from the tensors, or use ws.metrics.OverEpoch({self.name}) for NumPy.",
            )
        return value

    def _number(self, value: Tensor, prediction: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        if weight is not None and not self.takes_weight:
            fail(
                UsageError,
                f"the data has sample weights, and the metric {self.name!r} gives one number without them. Let it give "
                f"a value for each row, or take them: def {self.name}(prediction, target, sample_weight).",
            )
        if value.node.op == "ratio":
            above, below = (Tensor(n, value.graph) for n in value.node.inputs)
            return {"sum": above.astype("float64"), "weight": below.astype("float64")}
        rows = row_count(prediction.shape[:1], "float64")
        return {"sum": value.astype("float64") * rows, "weight": rows}

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        """Evaluate the recorded expressions on arrays."""
        from wholestep.compiler.ir.semantics.interpret import interpret

        inputs = {"prediction": prediction, "target": target, **({} if weight is None else {WEIGHT: weight})}
        with record_into(Graph()) as g:
            tensors = {name: g.input(name, a.shape, a.dtype) for name, a in inputs.items()}
            parts = self.contributions(tensors["prediction"], tensors["target"], tensors.get(WEIGHT))
            g.set_outputs({part: value * 1 for part, value in parts.items()})
        outputs = interpret(g.to_ir(), inputs=inputs, state={}, scalars={}, sizes={}, seed=0, step=0).outputs
        return {part: np.asarray(outputs[part], np.float64) for part in parts}


@dataclass(eq=False)
class OverEpoch(KeptRows, OfFunction):
    """A function of NumPy arrays, called once on all predictions and targets of an epoch.

    They are stored in states of `capacity` rows, as in `ws.metrics.RocAuc`; `fit` sets the capacity.  The function
    returns a number or an array.

    Args:
        function: of predictions and targets, arrays of all rows; with a third argument `sample_weight` where it takes
            weights.
        capacity: the rows of an epoch; `fit` sets it.
        name: the name of the metric; by default the function's.
        better: True where more is better, False where less is.

    Example: `ws.metrics.OverEpoch(lambda p, t: np.median(abs(p - t)), name="median_error")`.
    """

    kind: ClassVar[str] = "over_epoch"

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        if weight is not None and not self.takes_weight:
            fail(
                UsageError,
                f"the data has sample weights, and the metric {self.name!r} does not take them: give it a third "
                f"argument, def {self.name}(predictions, targets, sample_weight).",
            )
        return rows_to_store(prediction, target, weight)

    def result(self, states: States) -> Result:
        parts = self._all_rows(states)
        if not parts:
            return float("nan")
        options = {WEIGHT: parts["weights"]} if "weights" in parts else {}
        returned = self.function(parts["predictions"], parts["targets"], **options)
        try:
            value = np.asarray(returned, np.float64)
        except (TypeError, ValueError):
            fail(
                OptionError,
                f"the metric {self.name!r} returned {returned!r}; expected a number or an array of numbers.",
            )
        return float(value) if value.ndim == 0 else value


def refuse_description(config: Mapping[str, Any]) -> None:
    """Raise UsageError for the `to_config()` of a metric of a function: a file cannot store the function."""
    if config.get("kind") in (Function.kind, OverEpoch.kind):
        fail(
            UsageError,
            f"the metric {config.get('name')!r} is a function, which a description cannot store; give the function "
            "itself: metrics=[my_function].",
        )
