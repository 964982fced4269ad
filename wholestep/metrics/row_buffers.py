"""Metrics over all rows of an epoch at once: each step appends its rows to a buffer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent
from wholestep.errors import InputError, OptionError
from wholestep.metrics.array_functions import X, row_count
from wholestep.metrics.base import Array, Metric, States


@dataclass(eq=False)
class KeptRows(Metric):
    """The base class of metrics that store rows: buffers whose first axis is the row, and the number of rows.

    `capacity` is the number of rows of an epoch: inside a step the buffer is a state of that length, and every step
    writes its rows into it (for the cost see `python -m benchmarks metrics`).  `fit` sets `examples` from its data; on
    arrays buffers grow, and `capacity` may be left out.
    """

    stored_item: ClassVar[str] = "row"  # one stored item, for error texts

    capacity: int | None = None
    examples: int | None = field(default=None, kw_only=True)

    def with_capacity(self, rows: int) -> Self:
        return self if self.capacity is not None else replace(self, examples=rows)

    def rows_each(self, prediction: Tensor, target: Tensor) -> Extent:
        """The number of rows of an example: tokens, pixels."""
        return 1

    # -- inside the step -----------------------------------------------------------------------------------------

    def record(self, graph: Graph, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Append the rows of the batch to the buffers."""
        metric = self.told(graph.meanings.get(prediction.node))
        batch = metric.contributions(prediction, target, weight)
        capacity = self._rows_of_an_epoch(metric.rows_each(prediction, target))
        seen = graph.state(self.state_name("rows"), (), 0, "int64")
        count = row_count(next(iter(batch.values())).shape[:1])
        for part, rows in batch.items():
            buffer = graph.state(self.state_name(part), (capacity, *rows.shape[1:]), 0, rows.dtype)
            graph.update(buffer, fn.write_rows(buffer, rows, seen))
        graph.update(seen, seen + count)

    def _rows_of_an_epoch(self, each: Extent) -> int:
        """`capacity` if it is given, otherwise the number of rows of all examples."""
        if self.capacity is not None:
            return self.capacity
        if self.examples is None or not isinstance(each, int):
            fail(
                OptionError,
                f"{self.name} stores every {self.stored_item} of an epoch, so it needs the number of rows: give it, "
                "capacity=len(x), or use the metric on arrays.",
            )
        return self.examples * each

    # -- on arrays -----------------------------------------------------------------------------------------------

    def _join(self, new: dict[str, Array]) -> None:
        """Append rows to the buffers, which double in size unless a capacity was given."""
        if not new:
            return
        added = int(new["rows"]) if "rows" in new else len(next(iter(new.values())))
        seen = int(self._states.get("rows", np.int64(0)))
        self._need_parts(new, seen)
        if self.capacity is not None and seen + added > self.capacity:
            fail(InputError, self._full(seen + added))
        for part, rows in new.items():
            if part != "rows":
                buffer = self._buffer_for(part, rows, seen, seen + added)
                buffer[seen : seen + added] = rows[:added]
        self._states["rows"] = np.asarray(seen + added, np.int64)

    def _need_parts(self, new: dict[str, Array], seen: int) -> None:
        if seen and ("weights" in new) != ("weights" in self._states):
            fail(
                InputError,
                f"{self.name}: all batches have weights or none has; received both. Give weights to every update.",
            )

    def _buffer_for(self, part: str, rows: Array, seen: int, needed: int) -> Array:
        buffer = self._states.get(part)
        if buffer is None or len(buffer) < needed:
            size = self.capacity or max(64, 1 << (needed - 1).bit_length())
            fresh = np.zeros((size, *rows.shape[1:]), rows.dtype)
            if buffer is not None:
                fresh[:seen] = buffer[:seen]
            self._states[part] = buffer = fresh
        return buffer

    # -- both ----------------------------------------------------------------------------------------------------

    def _all_rows(self, states: States) -> dict[str, Array]:
        """The stored rows of each part; an empty dict if there are none."""
        rows = int(states["rows"])
        parts = {part: values for part, values in states.items() if part != "rows"}
        if rows > min(map(len, parts.values())):
            fail(InputError, self._full(rows))
        return {part: values[:rows] for part, values in parts.items()} if rows else {}

    def _full(self, rows: int) -> str:
        return f"{self.name} has room for {self.capacity} rows and received {rows}. Make it larger: capacity={rows}."


def rows_to_store(prediction: X, target: X, weight: X | None) -> dict[str, X]:
    """Predictions and targets, and weights as float64 if there are any."""
    parts = {"predictions": prediction, "targets": target}
    return parts if weight is None else {**parts, "weights": weight.astype("float64")}
