"""The loss of survival analysis: Cox's partial likelihood, which compares the rows of a batch with each other."""

from __future__ import annotations

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, ratio
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, ShapeError
from wholestep.losses.shared import Target, on_arrays, reduce


@on_arrays
def cox_loss(risk: Tensor, target: Target, reduction: str = "mean") -> Tensor:
    """log Σ exp(riskⱼ) over the rows j at risk, minus riskᵢ, averaged over the events i (Cox, 1972; ties as Breslow's).

    The rows at risk at the time of an event are those whose time is the same or later.  The loss compares rows: it is
    not separable, and risk sets contain rows of the batch only, so large batches are better.

    Args:
        risk: the logarithm of the relative hazard, (rows,) or (rows, 1).
        target: (rows, 2): the time, and 1 for an event or 0 for a row that is censored then.

    Example: `ws.losses.cox_loss(x[:, 0], x[:, :2])`.
    """
    t = as_tensor(target)
    if t.ndim != 2 or t.shape[1] != 2 or risk.shape not in (t.shape[:1], (t.shape[0], 1)):
        fail(
            ShapeError,
            "cox_loss takes risks (rows,) and targets (rows, 2), time and event (1, or 0 for a censored row); received "
            f"{shape_text(risk.shape)} and {shape_text(t.shape)}.",
        )
    if not t.dtype.is_float:
        fail(DTypeError, f"cox_loss: times are floats; received {t.dtype}. Cast them: target.astype('{risk.dtype}').")
    rows = risk.shape[0]
    scores, time, event = risk.reshape((rows,)), t[:, 0], (t[:, 1] > 0.0).astype(risk.dtype)
    at_risk = time.reshape((1, rows)) >= time.reshape((rows, 1))  # (event, row)
    highest = fn.stop_gradient(fn.where(at_risk, scores.reshape((1, rows)), -risk.dtype.largest).max(1))
    shifted = scores.reshape((1, rows)) - highest.reshape((rows, 1))
    total = fn.where(at_risk, fn.exp(fn.where(at_risk, shifted, 0.0)), 0.0).sum(1)
    values = event * (fn.log(total) + highest - scores)
    if reduction != "mean":
        return reduce("cox_loss", values, reduction)
    return ratio(values.sum(), fn.maximum(event.sum(), 1.0))
