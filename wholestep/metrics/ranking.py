"""Metrics of the order of scores: ROC-AUC and average precision.  They keep every score of an epoch."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from wholestep.compiler.frontend import functions as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import product
from wholestep.errors import DTypeError, InputError, OptionError
from wholestep.metrics.base import Array, Metric, States
from wholestep.metrics.likelihood import log_softmax
from wholestep.metrics.reading import Form, Kind, check_range, check_weight, form_of, row_count


@dataclass(eq=False)
class Ranked(Metric):
    """What orders all scores of an epoch.

    Scores are `(...)` for targets 0 and 1, or `(..., C)` for classes `(...)`: two columns are one score, more are one
    question for each class against the others, averaged over classes.  More than two columns are raw scores that become
    probabilities (softmax) before rows are compared, unless `from_logits=False`.

    `capacity` is the number of rows of an epoch: inside a step the scores are kept in a state of that length, of which
    every step writes its own rows (`python -m benchmarks metrics`).  On arrays it may be left open.
    """

    capacity: int | None = None
    from_logits: bool = True

    @abstractmethod
    def score(self, curve: Curve) -> float:
        """The metric of one class against the others."""

    def with_capacity(self, rows: int) -> Self:
        return self if self.capacity is not None else replace(self, capacity=rows)

    # -- inside the step -----------------------------------------------------------------------------------------

    def record(self, graph: Graph, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Write the batch's rows behind those that are there."""
        if self.capacity is None:
            fail(
                OptionError,
                f"{self.kind} keeps every score of an epoch: say how many rows it has, capacity=len(x), or use it on "
                "arrays.",
            )
        batch = self.contributions(prediction, target, weight)
        seen = graph.state(self.state_name("rows"), (), 0, "int64")
        count = row_count(batch["labels"].shape)
        for part, rows in batch.items():
            kept = graph.state(self.state_name(part), (self.capacity, *rows.shape[1:]), 0, rows.dtype)
            graph.update(kept, fn.write_rows(kept, rows, seen))
        graph.update(seen, seen + count)

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        form = self._form(Kind.of(prediction), Kind.of(target))
        rows = (product(target.shape),)
        if form is Form.BINARY:
            scores = prediction.reshape(rows)
        elif prediction.shape[-1] == 2:
            scores = prediction[..., 1] - prediction[..., 0] if self.from_logits else prediction[..., 1]
            scores = scores.reshape(rows)
        else:
            scores = prediction.reshape((*rows, prediction.shape[-1]))
        out = {"scores": scores, "labels": target.reshape(rows).astype("int32")}
        if weight is not None:
            check_weight(self.kind, Kind.of(weight), target.shape)
            out["weights"] = weight.reshape(rows).astype("float64")
        return out

    # -- on arrays -----------------------------------------------------------------------------------------------

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        form = self._form(Kind.of(prediction), Kind.of(target))
        scores: Array
        columns = 2 if form is Form.BINARY else prediction.shape[-1]
        check_range(self.kind, "labels", target.reshape(-1), columns)
        if form is Form.BINARY:
            scores = prediction.reshape(-1)
        elif columns == 2:
            scores = prediction[..., 1] - prediction[..., 0] if self.from_logits else prediction[..., 1]
            scores = scores.reshape(-1)
        else:
            scores = prediction.reshape(-1, columns)
        out = {"scores": scores, "labels": target.reshape(-1).astype(np.int32)}
        if weight is not None:
            check_weight(self.kind, Kind.of(weight), target.shape)
            out["weights"] = weight.reshape(-1).astype(np.float64)
        return out

    def _join(self, new: dict[str, Array]) -> None:
        """Write rows behind those that are there, into buffers that double where no capacity was given."""
        if not new:
            return
        added = int(new["rows"]) if "rows" in new else len(new["labels"])
        seen = int(self._states.get("rows", np.int64(0)))
        self._need_parts(new, seen)
        if self.capacity is not None and seen + added > self.capacity:
            fail(InputError, self._full(seen + added))
        for part, rows in new.items():
            if part != "rows":
                buffer = self._room(part, rows, seen, seen + added)
                buffer[seen : seen + added] = rows[:added]
        self._states["rows"] = np.asarray(seen + added, np.int64)

    def _need_parts(self, new: dict[str, Array], seen: int) -> None:
        if seen and ("weights" in new) != ("weights" in self._states):
            fail(InputError, f"{self.kind}: either all batches have weights or none has; the others were different.")

    def _room(self, part: str, rows: Array, seen: int, needed: int) -> Array:
        buffer = self._states.get(part)
        if buffer is None or len(buffer) < needed:
            size = self.capacity or max(64, 1 << (needed - 1).bit_length())
            fresh = np.zeros((size, *rows.shape[1:]), rows.dtype)
            if buffer is not None:
                fresh[:seen] = buffer[:seen]
            self._states[part] = buffer = fresh
        return buffer

    def _form(self, prediction: Kind, target: Kind) -> Form:
        form = form_of(self.kind, prediction, target)
        if form in (Form.CLASSES, Form.ROWS) or not target.whole:
            fail(
                DTypeError,
                f"{self.kind} needs scores (floats) and classes (whole numbers); received {prediction} and {target}.",
            )
        return form

    def _full(self, rows: int) -> str:
        return f"{self.kind} has room for {self.capacity} rows and received {rows}. Say more: capacity={rows}."

    # -- both ----------------------------------------------------------------------------------------------------

    def result(self, states: States) -> float:
        rows = int(states["rows"])
        if not rows:
            return float("nan")
        if rows > len(states["labels"]):
            fail(InputError, self._full(rows))
        scores, labels = states["scores"][:rows].astype(np.float64), states["labels"][:rows]
        weights = states["weights"][:rows] if "weights" in states else np.ones(rows)
        if np.isnan(scores).any():
            return float("nan")
        if scores.ndim == 1:
            return self.score(Curve.of(scores, labels == 1, weights))
        if self.from_logits:
            scores = np.exp(log_softmax(scores))
        each = [self.score(Curve.of(scores[:, c], labels == c, weights)) for c in range(scores.shape[1])]
        return float(np.mean(each))


@dataclass(frozen=True)
class Curve:
    """The weight of rows at or above each distinct score, from the highest down: of those that are and are not."""

    hits: Array
    misses: Array

    @staticmethod
    def of(scores: Array, positive: Array, weight: Array) -> Curve:
        order = np.argsort(-scores, kind="stable")
        ordered = scores[order]
        last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)  # of each run of equal scores
        w, yes = weight[order], positive[order]
        return Curve(np.cumsum(w * yes)[last], np.cumsum(w * ~yes)[last])


@dataclass(eq=False)
class RocAuc(Ranked):
    """The area under the ROC curve: how probably a row of the class has a higher score than one without it.

    NaN where a class has no rows, or all of them (Hanley and McNeil, 1982).

    Example: `ws.metrics.RocAuc(capacity=1000)`.
    """

    kind: ClassVar[str] = "roc_auc"

    def score(self, curve: Curve) -> float:
        if not (curve.hits[-1] > 0 and curve.misses[-1] > 0):
            return float("nan")
        x = np.append(0.0, curve.misses / curve.misses[-1])
        y = np.append(0.0, curve.hits / curve.hits[-1])
        return float((np.diff(x) * (y[1:] + y[:-1])).sum() / 2)


@dataclass(eq=False)
class AveragePrecision(Ranked):
    """Σ (recallᵢ - recallᵢ₋₁)·precisionᵢ over the distinct scores from the highest down; 0 for a class without rows.

    Example: `ws.metrics.AveragePrecision(capacity=1000)`.
    """

    kind: ClassVar[str] = "average_precision"

    def score(self, curve: Curve) -> float:
        if not curve.hits[-1] > 0:
            return 0.0
        seen = curve.hits + curve.misses
        precision = np.divide(curve.hits, seen, out=np.zeros_like(seen), where=seen > 0)
        return float((np.diff(np.append(0.0, curve.hits / curve.hits[-1])) * precision).sum())
