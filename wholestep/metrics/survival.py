"""The concordance index of survival analysis (Harrell et al., 1982), of all pairs of rows of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Shape, product, shape_text
from wholestep.errors import ShapeError
from wholestep.metrics.array_functions import X
from wholestep.metrics.base import Array, States
from wholestep.metrics.reading import ArrayKind, check_weight
from wholestep.metrics.row_buffers import KeptRows, rows_to_store

_BLOCK = 512  # number of rows per block that is compared with all rows


@dataclass(eq=False)
class Concordance(KeptRows):
    """The fraction of comparable pairs in which the row with the higher risk has its event first; equal risks count
    half.  NaN without comparable pairs.

    Predictions (N,) or (N, 1) are risks, as the "cox" loss trains them; targets (N, 2) are times, and 1 for an event or
    0 for a censored row; of targets (N,) or (N, 1) all are events.  A pair is comparable if the earlier time is that of
    an event.  With row weights a pair counts by the product of both.  All pairs are compared: n² comparisons.

    Example: `ws.metrics.Concordance(capacity=1000)`.
    """

    kind: ClassVar[str] = "concordance"
    higher_is_better: ClassVar[bool | None] = True

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        p: Shape = prediction.shape
        t: Shape = target.shape
        if product(p[1:]) != 1 or len(t) > 2 or (t[1:] not in ((), (1,), (2,))) or p[:1] != t[:1]:
            fail(
                ShapeError,
                "concordance takes risks (N,) and targets (N, 2), time and event, or times (N,); received "
                f"{shape_text(p)} and {shape_text(t)}.",
            )
        if weight is not None:
            check_weight(self.kind, ArrayKind.of(weight), p[:1])
        return rows_to_store(prediction.reshape(p[:1]), target.reshape((t[0], *(t[1:] or (1,)))), weight)

    def result(self, states: States) -> float:
        parts = self._all_rows(states)
        if not parts:
            return float("nan")
        risk, target = parts["predictions"].astype(np.float64), parts["targets"].astype(np.float64)
        time, event = target[:, 0], target[:, 1] > 0 if target.shape[1] == 2 else np.ones(len(target), bool)
        if np.isnan(risk).any():
            return float("nan")
        weight = parts.get("weights", np.ones(len(risk)))
        starts = range(0, len(risk), _BLOCK)
        pairs = sum(_pairs(slice(i, i + _BLOCK), risk, time, event, weight) for i in starts)
        concordant, comparable = np.asarray(pairs)
        return float(concordant / comparable) if comparable > 0 else float("nan")


def _pairs(rows: slice, risk: Array, time: Array, event: Array, weight: Array) -> Array:
    """The weight of concordant and of comparable pairs whose earlier row is one of `rows`.

    At equal times an event precedes a censored row.
    """
    first, last = time[rows, None], time[None]
    comparable = event[rows, None] & ((first < last) | ((first == last) & ~event[None]))
    amounts = np.where(comparable, weight[rows, None] * weight[None], 0.0)
    order = np.sign(risk[rows, None] - risk[None])
    return np.array([(amounts * (order + 1.0) / 2.0).sum(), amounts.sum()])
