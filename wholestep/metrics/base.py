"""The base of all metrics: states that add up over batches, inside the step or on arrays, and a result from them.

A metric is the same sums in two places.  *Inside the step*, `record` declares a state `metrics.<name>.<part>` for each
part and adds to it what a batch contributes; the program returns the numbers only when `result` is requested.  *On
arrays*, `update` adds the same to states of the metric's own, and `compute` gives the result.  Counts are int64 and
sums are float64, so that the result does not depend on how the examples were split into batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail, report_config_errors
from wholestep.compiler.ir.masked_arrays import refuse_mask
from wholestep.errors import HabitError, OptionError, UsageError

if TYPE_CHECKING:
    from wholestep.losses.forms import Meaning

Array = np.ndarray[Any, Any]
States = Mapping[str, Array]
Result = float | Array


@dataclass(eq=False)
class Metric(ABC):
    """A number (or array) computed from predictions and targets, which does not depend on how rows form batches.

    `name` is the name of results and states; two metrics of one session need two names.  With `takes_loss` the
    "prediction" of `record` is the loss itself.  `higher_is_better` is the direction for callbacks that monitor the
    metric.

    Example::

        accuracy = ws.metrics.Accuracy()
        accuracy.update(scores, labels)
        print(accuracy.compute())
    """

    kind: ClassVar[str] = ""
    higher_is_better: ClassVar[bool | None] = None  # None: the result is an array, or its direction is unknown
    takes_loss: ClassVar[bool] = False

    name: str = field(default="", kw_only=True)
    meaning: Meaning | None = field(default=None, init=False, repr=False)  # how the loss interprets the prediction
    _states: dict[str, Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.name = self.name or self.kind

    # -- the interface of a metric -------------------------------------------------------------------------------

    @abstractmethod
    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        """The contribution of a batch to each part, as tensors."""

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        """The contribution of a batch to each part, as arrays: unless overridden, `contributions` of the arrays."""
        formula: Any = self.contributions
        return {part: np.asarray(value) for part, value in formula(prediction, target, weight).items()}

    @abstractmethod
    def result(self, states: States) -> Result:
        """The metric from its parts (`"correct"`, `"total"`); NaN if nothing was counted."""

    def joined(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        """Merge the parts of two sets of rows, tensors or arrays; the default adds them."""
        return {part: old[part] + new[part] for part in new}

    # -- inside the step -----------------------------------------------------------------------------------------

    def record(self, graph: Graph, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Count the batch inside a step: declare the states `metrics.<name>.<part>` and their updates."""
        new = self.told(graph.meanings.get(prediction.node)).contributions(prediction, target, weight)
        old = {part: graph.state(self.state_name(part), t.shape, 0, t.dtype) for part, t in new.items()}
        for part, value in self.joined(old, new).items():
            graph.update(old[part], value)

    def told(self, meaning: Meaning | None) -> Self:
        """The metric with the loss's interpretation of the prediction; the metric itself if the loss has none."""
        if meaning is None:
            return self
        out = self.copy()
        out.meaning = meaning
        return out

    def state_name(self, part: str) -> str:
        """The name of the state that stores a part inside a step."""
        return f"metrics.{self.name}.{part}"

    def own(self, states: States) -> dict[str, Array]:
        """The parts of this metric, selected from states by their full names, as `result` takes them."""
        prefix = self.state_name("")
        return {name.removeprefix(prefix): value for name, value in states.items() if name.startswith(prefix)}

    def with_capacity(self, rows: int) -> Self:
        """The metric with buffers for this number of rows; the metric itself if it needs none."""
        return self

    # -- on arrays -----------------------------------------------------------------------------------------------

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raises HabitError, since a metric is not called."""
        fail(
            HabitError,
            f"a metric is not called: {self.name}.update(prediction, target) counts a batch, {self.name}.compute() is "
            "the value of all that was counted.",
        )

    def update(self, prediction: object, target: object = None, weight: object = None) -> None:
        """Count a batch.

        Args:
            prediction: scores, classes or numbers, as the metric documents.
            target: the truth for each row.
            weight: the weight of each row; None: 1.
        """
        for value in (prediction, target, weight):
            refuse_mask(value, f"{self.name}.update")
        arrays = (np.asarray(prediction), np.asarray(target), None if weight is None else np.asarray(weight))
        self._join(self.measure(*arrays))

    def compute(self) -> Result:
        """The metric over all rows counted so far; NaN before any update."""
        return self.result(self._states) if self._states else float("nan")

    def reset(self) -> None:
        """Discard all counts."""
        self._states = {}

    def merge(self, other: Self) -> None:
        """Merge the counts of another metric of the same configuration."""
        if type(other) is not type(self) or other._options() != self._options():
            fail(UsageError, f"merge takes a metric of the same description, {self!r}; received {other!r}.")
        self._join(other.state_dict())

    def _join(self, new: dict[str, Array]) -> None:
        if not new:
            return
        old = {part: self._states.get(part, np.zeros_like(value)) for part, value in new.items()}
        pairs = {part: alike(old[part], value) for part, value in new.items()}
        joined = self.joined({k: a for k, (a, _) in pairs.items()}, {k: b for k, (_, b) in pairs.items()})
        self._states = {part: np.asarray(value) for part, value in joined.items()}

    def state_dict(self) -> dict[str, Array]:
        """Copies of the counts so far."""
        return {part: value.copy() for part, value in self._states.items()}

    def load_state_dict(self, states: States) -> None:
        """Restore a `state_dict()`."""
        self._states = {part: np.array(value) for part, value in states.items()}

    # -- as plain data -------------------------------------------------------------------------------------------

    def to_config(self) -> dict[str, Any]:
        """The metric as plain data: `{"kind": "accuracy", "name": "accuracy", ...}`."""
        return {"kind": self.kind, "name": self.name, **self._options()}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Metric:
        """The metric that `to_config` described.  Example: `ws.metrics.Metric.from_config({"kind": "accuracy"})`."""
        from wholestep.metrics.functions import refuse_description
        from wholestep.metrics.table import metric_class

        if "kind" not in config:
            fail(OptionError, f"the description of a metric needs a 'kind', e.g. 'accuracy'; received {dict(config)}.")
        refuse_description(config)
        options = {k: v for k, v in config.items() if k != "kind"}
        cls = metric_class(config["kind"])
        field_names = {f.name for f in fields(cls) if f.init}
        for option in options.keys() - field_names:
            fail(OptionError, f"{cls.kind} has no option {option!r}; it has: {', '.join(sorted(field_names))}.")
        with report_config_errors(cls.kind):
            return cls(**options)

    def copy(self) -> Self:
        """A metric of the same configuration without counts."""
        return replace(self)

    def _options(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name != "name"}


def alike(a: Array, b: Array) -> tuple[Array, Array]:
    """Pad both with zeros to the larger size of each axis: a class that one of them lacks has count 0."""
    if a.shape == b.shape:
        return a, b
    shape = tuple(max(n, m) for n, m in zip(a.shape, b.shape, strict=True))
    return _pad_to(a, shape), _pad_to(b, shape)


def _pad_to(array: Array, shape: tuple[int, ...]) -> Array:
    return np.pad(array, [(0, n - have) for n, have in zip(shape, array.shape, strict=True)])
