"""Connectionist temporal classification: labels without an alignment to time steps."""

from __future__ import annotations

import math

from wholestep.compiler.frontend.control.scan import scan
from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError
from wholestep.losses.shared import REDUCTIONS, Target, on_arrays, reduce

NEVER = -1e30  # log 0 as a finite number: NEVER - NEVER is 0, not NaN


@on_arrays
def ctc_loss(
    logits: Tensor,
    target: Target,
    input_lengths: Target | None = None,
    target_lengths: Target | None = None,
    blank: int = 0,
    reduction: str = "mean",
    *,
    zero_infinity: bool = False,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """The negative log-probability of the labels, summed over all alignments (Graves et al., 2006).

    Each time step has a class or the blank; adjacent equal classes are one label.  A mean divides the loss of each row
    by its number of labels first, as in torch.

    Args:
        logits: (rows, time, classes), raw scores or log-probabilities.
        target: (rows, labels), integers, padded at the end with the blank or with negative numbers.
        input_lengths: (rows,), the number of time steps of each row; by default all.
        target_lengths: (rows,), the number of labels of each row; by default those before its padding.
        blank: the index of the blank class.
        zero_infinity: rows with too few time steps for their labels have the loss 0 instead of an infinite one; their
            gradient is 0 either way.

    Example: `ws.losses.ctc_loss(x.reshape(2, 2, 3), labels.reshape(2, 2))`.
    """
    labels = _check_target(logits, target, blank, reduction)
    rows = logits.shape[0]
    spoken = (labels >= 0) & (labels != blank)
    count = (
        spoken.astype("int32").sum(1) if target_lengths is None else _lengths("target_lengths", target_lengths, rows)
    )
    safe_labels = where(spoken, labels, blank)
    states = pad(_between(safe_labels, blank), [(0, 0), (0, 1)], float(blank)).astype("int32")  # (rows, 2·labels + 1)
    logs = _at(fn.log_softmax(logits), states)
    ends = None if input_lengths is None else _lengths("input_lengths", input_lengths, rows)
    last = _forward(logs.transpose(0, 1), _may_skip(states, blank), ends)
    place = fn.iota(last.shape, 1)
    final = (2 * count).reshape((rows, 1))
    score = fn.logsumexp(where((place == final) | (place == final - 1), last, NEVER), 1)
    possible = score > 0.5 * NEVER
    values = where(possible, -score, 0.0 if zero_infinity else math.inf)
    if reduction == "mean":
        values = values / fn.maximum(count, 1).astype(values.dtype)
    return reduce("ctc_loss", values, reduction, sample_weight)


def _forward(logs: Tensor, may_skip: Tensor, ends: Tensor | None) -> Tensor:
    """The log-probability of each state after the last step, summed over all paths to it; logs (time, rows, states)."""
    rows, states = logs.shape[1:]
    first = where(fn.iota((rows, states), 1) == 0, 0.0, NEVER).astype(logs.dtype)

    def step(before: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        emitted, number = now
        one = pad(before, [(0, 0), (1, 0)], NEVER)[:, :-1]
        two = where(may_skip, pad(before, [(0, 0), (2, 0)], NEVER)[:, :-2], NEVER)
        after = _log_add_exp(before, one, two) + emitted
        if ends is not None:
            after = where((number < ends).reshape((rows, 1)), after, before)
        return after, number

    last, _ = scan(step, first, (logs, fn.arange(logs.shape[0])))
    out: Tensor = last
    return out


def _at(logs: Tensor, states: Tensor) -> Tensor:
    """The log-probability of each state's class in each step, (time, rows, states), by a product with one-hot rows."""
    chosen = fn.iota((*states.shape, logs.shape[2]), 2) == states.reshape((*states.shape, 1))
    with pin_float32():  # a half type would lose half of the digits
        return logs @ chosen.astype(logs.dtype).transpose(1, 2)


def _log_add_exp(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """log(eᵃ + eᵇ + eᶜ)"""
    most = fn.stop_gradient(fn.maximum(fn.maximum(a, b), c))
    return most + fn.log(fn.exp(a - most) + fn.exp(b - most) + fn.exp(c - most))


def _between(labels: Tensor, blank: int) -> Tensor:
    """Interleave labels with blanks: (rows, labels) -> (rows, 2·labels)."""
    empty = labels * 0 + blank
    return fn.stack([empty, labels], 2).reshape((labels.shape[0], labels.shape[1] * 2))


def _may_skip(states: Tensor, blank: int) -> Tensor:
    """May the blank before a state be skipped?  Only between two different labels."""
    before = pad(states, [(0, 0), (2, 0)], float(blank))[:, :-2]
    return (states != blank) & (states != before)


def _check_target(logits: Tensor, target: Target, blank: int, reduction: str) -> Tensor:
    labels = as_tensor(target)
    if logits.ndim != 3 or labels.ndim != 2 or logits.shape[0] != labels.shape[0]:
        fail(
            ShapeError,
            f"ctc_loss takes scores (rows, time, classes) and labels (rows, labels); received "
            f"{shape_text(logits.shape)} and {shape_text(labels.shape)}. Convert torch's (time, rows, classes): "
            "x.transpose(0, 1).",
        )
    if labels.dtype.is_float:
        fail(DTypeError, f"ctc_loss: the labels are integers; received {labels.dtype}. Cast: y.astype('int32').")
    classes = logits.shape[2]
    if not isinstance(blank, int) or blank < 0 or (isinstance(classes, int) and blank >= classes):
        fail(OptionError, f"ctc_loss: blank must be one of the {classes} classes, from 0; received {blank!r}.")
    if reduction not in REDUCTIONS:
        fail(OptionError, f"reduction is 'mean', 'sum' or 'none'; received {reduction!r}.")
    return labels.astype("int32")


def _lengths(name: str, lengths: Target, rows: object) -> Tensor:
    t = as_tensor(lengths)
    if t.shape != (rows,) or t.dtype.is_float:
        fail(ShapeError, f"ctc_loss: {name} has an integer for each row, ({rows},); received {t!r}.")
    return t.astype("int32")
