"""Evaluation and prediction over any number of rows: entry points that change no parameter."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, overload

import numpy as np

from wholestep.compiler.frontend.step import Step
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import GraphError, UsageError
from wholestep.nn.module.module import Module
from wholestep.session.metrics import Measurements
from wholestep.session.programs import Programs
from wholestep.session.running.entry_point import EntryPoint, StepResult
from wholestep.session.running.run import batches as cut
from wholestep.session.running.run import evaluate_rows
from wholestep.steps.evaluate import EVALUATE, VALIDATE
from wholestep.steps.module import only_module

log = logging.getLogger("wholestep")


class Evaluation:
    """The part of a session that evaluates and predicts."""

    def __init__(self, programs: Programs, measurements: Measurements) -> None:
        self._programs, self._measurements = programs, measurements
        self._averages = False  # does `evaluate_all` average the losses of batches?
        self._local = False  # does each worker evaluate all validation rows, because rows cannot be divided?
        self._mixes_rows: str | None = None  # the reason why `predict` needs all rows at once; None: not determined yet

    @overload
    def predict(self: Any, model: Module, /, *arrays: object, **inputs: object) -> Any: ...
    @overload
    def predict(
        self: Any, batch: Mapping[str, object] | None = None, /, **inputs: object
    ) -> AnyArray | dict[str, AnyArray]: ...
    def predict(self: Any, batch_or_model: Any = None, /, *arrays: object, **inputs: Any) -> Any:
        """The outputs other than the loss, with nothing changed: an array, or a dict where there are several.

        More rows than the capacity are taken part by part, where every input and output has one row for each.  Of a
        `@ws.step` function with one module, this is that module's `predict`; where there are several, name one.

        Example: `session.predict(generator, noise)`.
        """
        if isinstance(batch_or_model, Module):
            return batch_or_model.predict(*arrays, **{"device": self._programs.where.device.name, **inputs})
        named = {
            **(self._programs.by_name("predict", batch_or_model, arrays) if batch_or_model is not None else {}),
            **inputs,
        }
        compiled = self._programs.compiled
        if compiled is not None and isinstance(compiled.definition.model, Step):
            module = only_module(compiled.definition.graph)
            if module is not None:
                positional, others = (tuple(named.values()), {}) if len(named) == 1 else ((), named)
                return module.predict(*positional, **{"device": self._programs.where.device.name, **others})
        outputs = self._outputs(named)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    @overload
    def evaluate(self: Any, model: Module, /, *data: object, **options: Any) -> dict[str, Any]: ...
    @overload
    def evaluate(self: Any, batch: Mapping[str, object] | None = None, /, **inputs: object) -> StepResult: ...
    def evaluate(self: Any, batch_or_model: Any = None, /, *data: object, **inputs: Any) -> Any:
        """The loss, the outputs and the metrics of any number of rows, with nothing changed and nothing dropped.

        More rows than the capacity are taken batch by batch, the loss being that of all of them; the outputs of each
        row then come from `predict` alone.  Of a `@ws.step` function these are the outputs of its step without its
        updates.  Pass a module first to evaluate it with a separate loss: its `evaluate`.

        Example: `session.evaluate(student, x, labels, loss="cross_entropy", metrics=["accuracy"])`.
        """
        if isinstance(batch_or_model, Module):
            return batch_or_model.evaluate(*data, **{"device": self._programs.where.device.name, **inputs})
        named = {
            **(self._programs.by_name("evaluate", batch_or_model, data) if batch_or_model is not None else {}),
            **inputs,
        }
        return self._measure(named)

    def _outputs(self, named: Mapping[str, object]) -> dict[str, AnyArray]:
        """The outputs of any number of rows, by name; UsageError if rows depend on each other and do not fit."""
        entry = self._programs.entry("predict")
        batches = list(entry.parts(named))
        if len(batches) > 1:
            self._need_independent_rows()
        parts = [entry(part).outputs for part in batches]
        return parts[0] if len(parts) == 1 else {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}

    def _need_independent_rows(self) -> None:
        from wholestep.steps.separable_loss import what_mixes_rows

        if self._mixes_rows is None:
            graph = self._programs.need("the entry point 'predict'").definition.trace("predict")
            self._mixes_rows = what_mixes_rows(graph)
        if self._mixes_rows:
            raise UsageError(
                f"predict was given more rows than the capacity, and parts of them would have other outputs: "
                f"{self._mixes_rows}. Give fewer rows at once, or build the session with a larger batch_size."
            )

    def _measure(self, named: Mapping[str, object], kind: str = EVALUATE) -> StepResult:
        """The loss, outputs and metrics; more rows than the capacity are evaluated batch by batch."""
        entry, fits = self._entry_for(named, kind)
        self._measurements.reset_metrics(EVALUATE)
        return entry(named) if fits else evaluate_rows(entry, named)

    def _entry_for(self, named: Mapping[str, object], kind: str) -> tuple[EntryPoint, bool]:
        """The entry point that evaluates this number of rows, and whether it takes all of them at once."""
        programs = self._programs
        fits = programs.need(f"the entry point {kind!r}").definition.fits(named)
        return programs.entry(kind) if fits else programs.entry_for_all_rows(kind), fits

    def _kind_for(self, arrays: Mapping[str, object]) -> str:
        """VALIDATE if all ranks evaluate together; EVALUATE for one rank, or if rows cannot be divided."""
        where = self._programs.where
        if where.ranks * where.model_ranks < 2 or self._local or self._takes_batches("validation"):
            return EVALUATE
        if self._leaves_ranks_without_rows(arrays):
            return EVALUATE
        try:
            self._entry_for(arrays, VALIDATE)
        except GraphError as error:
            log.info("validation runs on each worker, over all rows: %s", error)
            self._local = True
        return EVALUATE if self._local else VALIDATE

    def _leaves_ranks_without_rows(self, arrays: Mapping[str, object]) -> bool:
        """Has the last batch fewer rows than ranks, on a device whose libraries refuse empty arrays?"""
        where, definition = self._programs.where, self._programs.need("validation").definition
        rows = definition.rows_in(arrays)
        if where.device.target.family == "cpu" or rows is None:
            return False
        count, most = rows[0], rows[1] // definition.step_options.accumulate
        return 0 < (count % most or min(count, most)) < where.ranks

    def prepare(self, arrays: Mapping[str, object]) -> None:
        """Compile the entry point of `evaluate_together`."""
        if self._kind_for(arrays) == VALIDATE:
            return
        if not self._takes_batches("evaluate_all"):
            try:
                self._entry_for(arrays, EVALUATE)
            except GraphError as error:
                self._take_batches(error)
        if self._averages:
            self._programs.entry(EVALUATE)

    def evaluate_all(self, arrays: Mapping[str, object]) -> dict[str, Any]:
        """The loss over all rows of data sets of any length, and the metrics, with nothing changed.

        A loss that is not separable is averaged over batches, weighted by rows, with one warning.

        Example: `session.evaluate_all({"x": X, "labels": Y})["loss"]`.
        """
        return self._evaluate_all(arrays, EVALUATE)

    def evaluate_together(self, arrays: Mapping[str, object]) -> dict[str, Any]:
        """Collective: `evaluate_all` by all workers, each over its rows of every batch.

        All workers call it with the same arrays.  If rows cannot be divided, each evaluates all of them.
        """
        return self._evaluate_all(arrays, self._kind_for(arrays))

    def _evaluate_all(self, arrays: Mapping[str, object], kind: str) -> dict[str, Any]:
        if not self._takes_batches("evaluate_all"):
            try:
                return {"loss": self._measure(arrays, kind).loss, **self._measurements.metrics(EVALUATE)}
            except GraphError as error:
                self._take_batches(error)
        loss = self._mean_of_batches(arrays)
        return {"loss": loss, **self._measurements.metrics(EVALUATE)}

    def _takes_batches(self, what: str) -> bool:
        """Can the loss be computed batch by batch?"""
        self._averages = self._averages or self._programs.need(what).definition.has_fixed_batch
        return self._averages

    def _take_batches(self, why: GraphError) -> None:
        log.warning("the loss over all rows is the mean of the losses of batches, weighted by rows: %s", why)
        self._averages = True

    def evaluate_batches(self, batches: Iterable[Mapping[str, object]]) -> dict[str, Any]:
        """The metrics over an iterable of batches, with one batch in memory at a time."""
        entry = self._programs.entry(EVALUATE)
        self._measurements.reset_metrics(EVALUATE)
        for batch in batches:
            for part in cut(entry, batch):
                entry(part)
        return self._measurements.metrics(EVALUATE)

    def _mean_of_batches(self, arrays: Mapping[str, object]) -> float:
        entry = self._programs.entry(EVALUATE)
        self._measurements.reset_metrics(EVALUATE)
        total = count = 0.0
        for part in cut(entry, arrays):
            rows = len(next(iter(part.values())))
            total, count = total + rows * entry(part).loss, count + rows
        return total / count
