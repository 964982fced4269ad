"""Metrics of the order of scores: ROC-AUC and average precision.  They keep every score of an epoch."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from wholestep.compiler.frontend import functions as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, product
from wholestep.errors import DTypeError, InputError, OptionError, UsageError
from wholestep.metrics.base import Array, States
from wholestep.metrics.likelihood import log_softmax
from wholestep.metrics.reading import Form, Kind, OfScores, Seen, X, check_range, row_count
from wholestep.metrics.rows import Reading

NEITHER = -1  # a target that is neither yes nor no


@dataclass(eq=False)
class Ranked(OfScores):
    """What orders all scores of an epoch.

    Scores are `(...)` for targets 0 and 1, or `(..., C)` for classes `(...)`: two columns are one score, more are one
    question for each class against the others, averaged over classes.  More than two columns are raw scores that become
    probabilities (softmax) before rows are compared, unless `from_logits=False`.  Of several labels (N, L) each is
    ranked by itself, and their mean is the result.

    `capacity` is the number of rows of an epoch: inside a step the scores are kept in a state of that length, of which
    every step writes its own rows (`python -m benchmarks metrics`).  `fit` knows it from the `examples` of its data; on
    arrays it may be left open.
    """

    capacity: int | None = None
    from_logits: bool = True
    ignore_index: int | None = field(default=None, kw_only=True)
    examples: int | None = field(default=None, kw_only=True)

    @abstractmethod
    def score(self, curve: Curve) -> float:
        """The metric of one class against the others."""

    def with_capacity(self, rows: int) -> Self:
        return self if self.capacity is not None else replace(self, examples=rows)

    # -- inside the step -----------------------------------------------------------------------------------------

    def record(self, graph: Graph, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Write the batch's rows behind those that are there."""
        told = self.told(graph.meanings.get(prediction.node))
        pair, batch = told._ranked(prediction, target), told.contributions(prediction, target, weight)
        room = self._rows_of_an_epoch(1 if pair.questions > 1 else product(pair.rows[1:]))
        seen = graph.state(self.state_name("rows"), (), 0, "int64")
        count = row_count(batch["labels"].shape[:1])
        for part, rows in batch.items():
            kept = graph.state(self.state_name(part), (room, *rows.shape[1:]), 0, rows.dtype)
            graph.update(kept, fn.write_rows(kept, rows, seen))
        graph.update(seen, seen + count)

    def _rows_of_an_epoch(self, each: Extent) -> int:
        """As many as were said; else those of all examples, which may have several `each`: tokens, pixels."""
        if self.capacity is not None:
            return self.capacity
        if self.examples is None or not isinstance(each, int):
            fail(
                OptionError,
                f"{self.kind} keeps every score of an epoch: say how many rows it has, capacity=len(x), or use it on "
                "arrays.",
            )
        return self.examples * each

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        seen = self._ranked(prediction, target)
        p, t, asks = seen.prediction, seen.target, seen.questions > 1
        flat = tuple(p.shape[:1]) if asks else (product(seen.rows),)
        rows = tuple(p.shape) if asks else flat
        if seen.form is Form.EACH:
            scores = p.reshape(rows)
            labels = t.astype("int32") if self._plain(Kind.of(t)) else self._told_apart(t)
        else:
            scores = self._columns(p).reshape((*flat, *self._columns(p).shape[len(seen.rows) :]))
            labels = (t.argmax(-1) if seen.form is Form.ROWS else t).astype("int32")
        counted = None if self._ignored(seen) is None else labels != self._ignored(seen)
        if counted is not None:
            labels = fn.where(counted, labels, 0)
        out = {"scores": scores, "labels": labels.reshape(rows)}
        if weight is not None or counted is not None:
            each = self._each(seen, weight)
            each = each if counted is None else fn.where(counted, 1.0 if each is None else each, 0.0).astype("float64")
            assert each is not None
            out["weights"] = each.reshape(flat)
        return out

    def _each(self, seen: Seen[Tensor], weight: Tensor | None) -> Tensor | None:
        if weight is None:
            return None
        return self.spread(weight, seen.rows[:1] if seen.questions > 1 else seen.rows).astype("float64")

    def _columns(self, p: X) -> X:
        """Scores of classes: two are one score, more are one for each class."""
        if p.shape[-1] != 2:
            return p
        return p[..., 1] - p[..., 0] if self.from_logits else p[..., 1]

    # -- on arrays -----------------------------------------------------------------------------------------------

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        seen = self._ranked(prediction, target)
        p, t, asks = seen.prediction, seen.target, seen.questions > 1
        if seen.form is Form.EACH:
            scores = p if asks else p.reshape(-1)
            labels = t.astype(np.int64) if self._plain(Kind.of(t)) else self._told_apart_of(t)
            labels = labels if asks else labels.reshape(-1)
        else:
            columns = self._columns(p)
            scores = columns.reshape(-1, *columns.shape[len(seen.rows) :])
            labels = (t.argmax(-1) if seen.form is Form.ROWS else t).reshape(-1)
        ignored = self._ignored(seen)
        counted = np.ones(labels.shape, bool) if ignored is None else labels != ignored
        classes = 2 if seen.form is Form.EACH else p.shape[-1]
        if (labels == NEITHER).any() and not self._plain(Kind.of(t)):
            fail(InputError, self._neither())
        check_range(self.kind, "labels", labels[counted].reshape(-1), classes)
        out = {"scores": scores, "labels": np.where(counted, labels, 0).astype(np.int32)}
        if weight is not None or ignored is not None:
            rows = seen.rows[:1] if asks else seen.rows
            each = np.ones(rows) if weight is None else self.spread(weight, rows)
            out["weights"] = np.where(counted if not asks else True, each.reshape(-1), 0.0).astype(np.float64)
        return out

    @property
    def _answers(self) -> tuple[int, int]:
        """What the targets of yes or no are: no, yes."""
        return (-1, 1) if self.meaning is not None and self.meaning.signs else (0, 1)

    def _plain(self, target: Kind) -> bool:
        return target.whole and self._answers == (0, 1)

    def _told_apart(self, t: Tensor) -> Tensor:
        """0 and 1, or what is neither: a probability has no place in an order, and `result` refuses it."""
        no, yes = self._answers
        return fn.where(t == yes, 1, fn.where(t == no, 0, NEITHER)).astype("int32")

    def _told_apart_of(self, t: Array) -> Array:
        """The same on arrays."""
        no, yes = self._answers
        return np.where(t == yes, 1, np.where(t == no, 0, NEITHER))

    def _ignored(self, seen: Seen[Any]) -> int | None:
        return Reading(self, ignore_index=self.ignore_index).ignored(seen.form)

    def _ranked(self, prediction: X, target: X) -> Seen[X]:
        seen = self.see(prediction, target)
        if seen.form is Form.CLASSES:
            fail(
                DTypeError,
                f"{self.kind} needs scores (floats) and classes (whole numbers); received {Kind.of(prediction)} and "
                f"{Kind.of(target)}.",
            )
        if seen.questions > 1 and self.ignore_index is not None:
            fail(OptionError, f"{self.kind}: ignore_index is for classes; weigh rows of several labels instead.")
        several = seen.form is not Form.EACH and int(seen.prediction.shape[-1]) > 2
        if several and self.from_logits and self.meaning is not None and not self.meaning.logits:
            fail(
                UsageError,
                f"{self.kind} compares probabilities of classes, and the loss makes none of its scores. To rank the "
                f"scores as they are: ws.metrics.{type(self).__name__}(from_logits=False).",
            )
        return seen

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

    def _neither(self) -> str:
        no, yes = self._answers
        return (
            f"{self.kind} orders rows that have a class and rows that have not; some targets are neither {no} nor "
            f"{yes}, or no class. Make them so, (y > 0.5).astype('int32'), or leave the metric out."
        )

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
        if labels.min() < 0 or labels.max() >= (2 if scores.ndim == 1 or labels.ndim == 2 else scores.shape[1]):
            fail(InputError, self._neither())
        if np.isnan(scores).any():
            return float("nan")
        if scores.ndim == 1:
            return self.score(Curve.of(scores, labels == 1, weights))
        if labels.ndim == 2:
            asked = range(scores.shape[1])
            return float(np.mean([self.score(Curve.of(scores[:, i], labels[:, i] == 1, weights)) for i in asked]))
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
    higher_is_better: ClassVar[bool | None] = True

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
    higher_is_better: ClassVar[bool | None] = True

    def score(self, curve: Curve) -> float:
        if not curve.hits[-1] > 0:
            return 0.0
        seen = curve.hits + curve.misses
        precision = np.divide(curve.hits, seen, out=np.zeros_like(seen), where=seen > 0)
        return float((np.diff(np.append(0.0, curve.hits / curve.hits[-1])) * precision).sum())
