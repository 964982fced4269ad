"""Metrics of ranked lists: NDCG, reciprocal rank, hit rate and average precision of each query, averaged over queries.

A row is a query: scores (N, items) and the relevance of each item (N, items).  The value of a query depends on its own
row alone, so that sums over queries are kept instead of scores.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.metrics.array_functions import X, cumsum, maximum, ordered_by, where
from wholestep.metrics.base import Array
from wholestep.metrics.means import Mean, check_numbers, weighted_rows
from wholestep.metrics.reading import ArrayKind


@dataclass(eq=False)
class OfLists(Mean):
    """The base class of metrics of one ranked list per row.

    Items are ranked by decreasing score; among equal scores the item that comes first is better.  Only the first `k`
    ranks count; None: all.  An item is relevant if its target is above 0; a query without relevant items has the
    value 0.
    """

    k: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k is not None and (not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1):
            fail(OptionError, f"{self.kind}: k must be an integer of at least 1, or None; received {self.k!r}.")

    @abstractmethod
    def of_ranked(self, relevance: Any, places: Array) -> Any:
        """The value of each query (N,), from relevances (N, items) by decreasing score; ranks above k do not count."""

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        shape = prediction.shape
        check_numbers(self.kind, ArrayKind.of(prediction), ArrayKind.of(target))
        if len(shape) != 2 or not isinstance(shape[1], int):
            fail(
                ShapeError,
                f"{self.kind} ranks the items of each row: scores and relevances (queries, items) with a fixed number "
                f"of items; received {shape_text(shape)}. Pad shorter lists with scores of -inf and relevance 0.",
            )
        places = np.arange(1, shape[1] + 1, dtype=np.float64)
        relevance: Any = self._relevance(target.astype("float64"))
        return weighted_rows(self.kind, self.of_ranked(ordered_by(relevance, prediction), places), weight)

    def _relevance(self, target: X) -> Any:
        return where(target > 0.0, 1.0, 0.0 * target)

    def _counts(self, places: Array) -> Array:
        """1 for the first k ranks, 0 for others."""
        return np.where(places <= (self.k or len(places)), 1.0, 0.0)


@dataclass(eq=False)
class NDCG(OfLists):
    """Normalized discounted cumulative gain: Σ relevance/log₂(rank + 1) over the first k ranks, divided by this sum for
    the best order (Järvelin and Kekäläinen, 2002).  Relevances are numbers of at least 0.

    Example: `ws.metrics.NDCG(k=10)`.
    """

    kind: ClassVar[str] = "ndcg"
    higher_is_better: ClassVar[bool | None] = True

    def _relevance(self, target: X) -> Any:
        return maximum(target, 0.0)

    def of_ranked(self, relevance: Any, places: Array) -> Any:
        discount = self._counts(places) / np.log2(places + 1.0)
        best = (ordered_by(relevance, relevance) * discount).sum(1)
        return (relevance * discount).sum(1) / where(best > 0.0, best, 1.0 + 0.0 * best)


@dataclass(eq=False)
class MRR(OfLists):
    """The mean reciprocal rank: 1 / rank of the first relevant item; 0 if its rank is above k.

    Example: `ws.metrics.MRR()`.
    """

    kind: ClassVar[str] = "mrr"
    higher_is_better: ClassVar[bool | None] = True

    def of_ranked(self, relevance: Any, places: Array) -> Any:
        return (relevance * (self._counts(places) / places)).max(1)


@dataclass(eq=False)
class HitRate(OfLists):
    """The fraction of queries with a relevant item among the first k.

    Example: `ws.metrics.HitRate(k=10)`.
    """

    kind: ClassVar[str] = "hit_rate"
    higher_is_better: ClassVar[bool | None] = True
    k: int | None = 10

    def of_ranked(self, relevance: Any, places: Array) -> Any:
        return (relevance * self._counts(places)).max(1)


@dataclass(eq=False)
class RetrievalMAP(OfLists):
    """Mean average precision: the precision at the rank of each relevant item, averaged over the relevant items (at
    most k), then over queries.

    Example: `ws.metrics.RetrievalMAP()`.
    """

    kind: ClassVar[str] = "retrieval_map"
    higher_is_better: ClassVar[bool | None] = True

    def of_ranked(self, relevance: Any, places: Array) -> Any:
        precisions = (relevance * cumsum(relevance) * (self._counts(places) / places)).sum(1)
        relevant = relevance.sum(1)
        most = float(self.k or len(places))
        return precisions / maximum(where(relevant > most, most + 0.0 * relevant, relevant), 1.0)
